"""A diffusers pipeline on the right device with one generator; see proxy.py."""

from __future__ import annotations

from hy3d_rocm.offload.components import unwrap
from hy3d_rocm.pipeline.proxy import PipelineProxy, seed_mode_of

__all__ = ["PipelineProxy", "seed_mode_of", "unwrap"]
