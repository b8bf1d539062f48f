"""The fused decode on conv/triton/ and kernels of its own; selfcheck.py and trial.py try them."""
