"""A stand-in for ComfyUI-Hunyuan3DWrapper: its node ids and faults, none of its code."""

from .nodes import NODE_CLASS_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS"]
