"""`hy3d-rocm tune`: measures ahead which tier computes each convolution of a decode best."""
