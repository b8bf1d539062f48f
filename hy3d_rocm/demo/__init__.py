"""What the demo runs on: a small trained video VAE and a filmed clip that it never saw."""

from __future__ import annotations

from hy3d_rocm.demo.clips import ClipNotFoundError, held_out_clip
from hy3d_rocm.demo.model import DemoModelError, load_demo_vae

__all__ = ["ClipNotFoundError", "DemoModelError", "held_out_clip", "load_demo_vae"]
