"""Implicit-GEMM convolution in Triton, and what its compiler makes of it."""
