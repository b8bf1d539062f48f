"""FramePackWrapper's memory module, where ComfyUI computes on something else than CUDA's current
device: `--cpu` on a machine with a GPU, a second GPU, DirectML.

Its `gpu` is the device that was current when it was imported, and its question for free memory
raises for a device that is no CUDA device. Where not even the import works, the hook of
comfy/framepack_door.py has been there before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, names_missing
from hy3d_rocm.comfy.patches.common import comfy_device
from hy3d_rocm.framepack.importing import free_memory_gb

NAME = "framepack-import"


def _expects(place: Place) -> str | None:
    memory = place.part("memory")
    query = getattr(memory, "get_cuda_free_memory_gb", None)
    if query is None:
        return "its memory module has no get_cuda_free_memory_gb"
    if query.__module__ != memory.__name__:
        return None  # ours, from the import
    return names_missing(query, ("memory_stats", "mem_get_info"))


def _query(original: Callable[..., float]) -> Callable[..., float]:
    safe = free_memory_gb(original, comfy_device)

    def get_cuda_free_memory_gb(device: Any = None) -> float:
        if NAME in settings.current().patches_off:
            return original(device)
        return safe(device)

    return get_cuda_free_memory_gb


SPEC = PatchSpec(
    NAME,
    "FramePackWrapper: free memory of the device that ComfyUI computes on",
    _expects,
    lambda place: [Change(place.part("memory"), "get_cuda_free_memory_gb", _query)],
)
