"""The fused decode on the kernels of conv/triton/, and a kernel for attention."""
