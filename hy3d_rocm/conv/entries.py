"""What a mode knows about one call signature, and the key of that."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.policy import Plan
from hy3d_rocm.conv.stats import Named, Row
from hy3d_rocm.conv.tiers import Tier
from hy3d_rocm.conv.verdicts import Verdict
from hy3d_rocm.conv.watching import Watching


@dataclass
class Entry:
    """What a mode knows about one call signature: read once, used at every call.

    fast: the tier that calls go straight to; None where the ladder has to look at each.
    """

    spec: ConvSpec | None
    what: Named
    config: Hashable
    plan: Plan | None = None
    generation: int = -1
    expires: float = math.inf
    standing: tuple[Verdict | None, ...] = ()
    fast: Tier | None = None
    is_current: bool = False
    is_straight: bool = False  # is_current, and nothing is measured or expires
    recovers: bool = False
    rows: tuple[Row, ...] = ()
    watching: Watching | None = None
    job: Any = None  # gradients.Job, once a gradient was wanted


def backend_flags() -> tuple[bool, bool]:
    """The switches that decide what "current" means (ComfyUI flips the first on RDNA3+)."""
    return torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled()


def _autocast(kind: str) -> Hashable:
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def key_of(values: tuple[Any, ...], ndim: int) -> Hashable:
    x, weight, bias, stride, padding, dilation, groups = values
    return (
        ndim, x.shape, x.stride(), x.dtype, x.device, weight.shape, weight.stride(), weight.dtype,
        weight.device, None if bias is None else (bias.shape, bias.dtype, bias.device),
        tuple(stride) if type(stride) is list else stride,
        tuple(padding) if type(padding) is list else padding,
        tuple(dilation) if type(dilation) is list else dilation,
        groups, torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled(),
        _autocast(x.device.type) if torch._C._is_any_autocast_enabled() else None,
    )  # fmt: skip
