"""FramePack on cards of any size: what is kept free, what stays resident, when models go.

Nothing here imports ComfyUI; hy3d_rocm/comfy/patches/framepack.py puts it into kijai's wrapper,
examples/framepack into lllyasviel's own demo_gradio.py.
"""
