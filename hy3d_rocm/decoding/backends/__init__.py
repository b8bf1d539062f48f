"""What computes a layer on some frames: torch's operators, Triton kernels, the C convolution."""
