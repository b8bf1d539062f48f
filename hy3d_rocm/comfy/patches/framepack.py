"""What is patched in ComfyUI-FramePackWrapper, in the order in which it is applied."""

from __future__ import annotations

from hy3d_rocm.comfy.patch import PatchSpec
from hy3d_rocm.comfy.patches import (
    framepack_device,
    framepack_memory,
    framepack_preview,
    framepack_unload,
)

SPECS: tuple[PatchSpec, ...] = (
    framepack_device.SPEC,
    framepack_unload.SPEC,
    framepack_memory.SPEC,
    framepack_preview.SPEC,
)
