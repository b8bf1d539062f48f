"""The tiers: each is one implementation of conv2d and conv3d."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hy3d_rocm.conv.call import Limits
from hy3d_rocm.conv.tiers.base import Tier
from hy3d_rocm.conv.tiers.conv2d import Conv2dTier
from hy3d_rocm.conv.tiers.cpu import CpuTier
from hy3d_rocm.conv.tiers.current import CurrentTier, select_backend
from hy3d_rocm.conv.tiers.gemm import GemmTier
from hy3d_rocm.conv.tiers.native import NativeTier
from hy3d_rocm.conv.tiers.triton import TritonTier
from hy3d_rocm.conv.tiers.vendor import VendorTier

__all__ = [
    "TIER_NAMES", "Conv2dTier", "CpuTier", "CurrentTier", "GemmTier", "Limits", "NativeTier",
    "Tier", "TritonTier", "VendorTier", "make_tier", "select_backend",
]  # fmt: skip

_TIERS = (CurrentTier, VendorTier, TritonTier, GemmTier, Conv2dTier, NativeTier, CpuTier)
_MAKERS: dict[str, Callable[..., Tier]] = {tier.name: tier for tier in _TIERS}
TIER_NAMES = tuple(_MAKERS)


def make_tier(name: str, **cpu_options: Any) -> Tier:
    """The tier of that name (TIER_NAMES), with `cpu_options` for "cpu"; a sentence for another."""
    if name not in _MAKERS:
        *others, last = (repr(n) for n in TIER_NAMES)
        raise ValueError(f"tiers: {name!r} is no tier; use {', '.join(others)} or {last}")
    return _MAKERS[name](**(cpu_options if name == "cpu" else {}))
