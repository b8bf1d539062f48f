"""What the nodes' option inputs mean to DecodeOptions. Pure: no torch, no ComfyUI.

A number widget can't be empty, so each option that may be None has a number that means it.
"""

from __future__ import annotations

from typing import Any

from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.units import MB

__all__ = ["DEFAULTS", "decode_options"]

_PLAIN = DecodeOptions()
# What the nodes offer, by the names of their inputs.
DEFAULTS: dict[str, Any] = {
    "memory_threshold": _PLAIN.memory_threshold,
    "memory_fraction": 0.0,
    "cpu_offload": _PLAIN.cpu_offload,
    "chunk_size": 0,
    "cleanup_frequency": -1,
    "synchronization": _PLAIN.synchronization,
    "fallback_precision": _PLAIN.fallback_precision,
    "slice_mb": 0,
    "statistic_passes": _PLAIN.statistic_passes,
    "halo_pixels": _PLAIN.halo_pixels,
    "overlap_pixels": _PLAIN.overlap_pixels,
    "min_tile_pixels": _PLAIN.min_tile_pixels,
}
_NONE_AT = {"memory_fraction": 0, "chunk_size": 0, "slice_mb": 0, "cleanup_frequency": -1,
            "halo_pixels": -1}  # fmt: skip


def decode_options(given: dict[str, Any]) -> DecodeOptions:
    """DecodeOptions of a node's optional inputs; those that are missing have their defaults.

    ValueError (a sentence) for a value that DecodeOptions does not take, and for a name that is
    none of DEFAULTS.
    """
    for name in given:
        if name not in DEFAULTS:
            raise ValueError(f"{name!r} is no option of a decode; known are {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **given}
    for name, none in _NONE_AT.items():
        if values[name] == none and not isinstance(values[name], bool):
            values[name] = None
    slice_mb = values.pop("slice_mb")
    return DecodeOptions(slice_bytes=None if slice_mb is None else slice_mb * MB, **values)
