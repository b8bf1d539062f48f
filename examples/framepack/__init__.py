"""lllyasviel's own FramePack with its memory looked after: what examples/framepack_rocm.py runs."""
