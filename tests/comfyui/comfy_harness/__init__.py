"""The harness of tests/comfyui/run.py: starts the real ComfyUI and looks at what it does."""
