"""ComfyUI nodes: the only place that imports ComfyUI's modules."""

from __future__ import annotations
