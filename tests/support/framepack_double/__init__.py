"""A stand-in for ComfyUI-FramePackWrapper: its names, the order of its calls, small numbers."""

from __future__ import annotations

from .nodes import NODE_CLASS_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS"]
