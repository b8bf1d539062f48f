"""`hy3d-rocm demo` of a source checkout: a filmed clip through failing convolutions."""
