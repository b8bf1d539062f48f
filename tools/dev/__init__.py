"""A developer's tools: kernels compiled for AMD without a GPU and read, benches of kernels."""
