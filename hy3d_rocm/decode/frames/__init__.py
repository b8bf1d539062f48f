"""Where frames go: tensors, arrays, video files; and `hy3d-rocm decode`, which can be resumed."""
