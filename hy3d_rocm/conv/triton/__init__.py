"""The Triton tier: implicit-GEMM convolution, f32 accumulation, no workspace beyond a bounded one.

`kernel.py` holds the device code and is the only module here that imports triton at its top;
`work.py`, `plan.py` and `configs.py` are pure, and the fused decode's, too; `launch.py` is what the
tier calls.
"""
