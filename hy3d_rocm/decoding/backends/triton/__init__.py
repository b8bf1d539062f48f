"""The fused decode on the kernels of conv/triton/, a kernel for attention, and selfcheck.py."""
