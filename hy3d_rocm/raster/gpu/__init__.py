"""The rasteriser on tensors of a GPU, in Triton: the same results, bit for bit, as the C core."""
