"""`hy3d-rocm tune`: measures ahead the tiles of decode()'s kernels, and convolutions by tier."""
