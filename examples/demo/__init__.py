"""`hy3d-rocm demo`: a filmed clip through failing convolutions."""
