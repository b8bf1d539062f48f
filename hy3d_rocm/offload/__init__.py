"""Whether a pipeline's weights stay on the accelerator or are offloaded; see docs/offload.md.

No part of this imports torch, diffusers or accelerate before a function is called.
"""

from __future__ import annotations

from hy3d_rocm.offload.components import components_of, current_mode
from hy3d_rocm.offload.memory import HEADROOM_BYTES, decide, estimate, measuring, needed_bytes
from hy3d_rocm.offload.placement import apply, diffusers_changes, offload_scope
from hy3d_rocm.offload.transfer import move, reporting_moves

__all__ = [
    "HEADROOM_BYTES", "apply", "components_of", "current_mode", "decide", "diffusers_changes",
    "estimate", "measuring", "move", "needed_bytes", "offload_scope", "reporting_moves",
]  # fmt: skip
