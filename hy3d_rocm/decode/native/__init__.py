"""A layer on some frames by the C convolution, on the CPU.

norm (GroupNorm's factor and summand), activation, up-sampling and padding are part of reading the
input, bias and residual of writing the result: no padded, up-sampled or normalised copy exists.
"""
