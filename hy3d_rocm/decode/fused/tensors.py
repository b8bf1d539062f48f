"""What the launches ask of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from hy3d_rocm.conv.triton.plan import Triple
from hy3d_rocm.decode.fused.job import Piece, Strides
from hy3d_rocm.decode.layers import Norm, Weights


def piece_of(tensor: Tensor) -> Piece:
    """A (1, C, t, H, W) tensor of the source."""
    return Piece(int(tensor.shape[2]), strides_of(tensor), tensor.data_ptr() % 16 == 0)


def strides_of(tensor: Tensor) -> Strides:
    """Of (1, C, T, H, W): c, t, h, w; 0 along an axis of one position, 1 for a single channel."""
    sides = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    c, t, h, w = (0 if n == 1 else int(s) for n, s in sides)
    return (1 if tensor.shape[1] == 1 else c, t, h, w)


def last_strides(channels: int, frames: int, size: tuple[int, int]) -> Strides:
    """Of a dense channels-last tensor."""
    h, w = size
    return (1, h * w * channels, w * channels, channels)


def overlaps(tensor: Tensor) -> bool:
    """Whether two positions may be one in memory (an expanded tensor)."""
    sides = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    end = 0
    for stride, length in sides:
        if stride <= end:
            return True
        end += stride * (length - 1)
    return False


def triple(values: Iterable[int]) -> Triple:
    t, h, w = (int(n) for n in values)
    return (t, h, w)


def all_of(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """A module's setting for each axis."""
    return value if isinstance(value, tuple) else (value,)


def affine_of(norm: Norm, channels: int, weights: Weights) -> tuple[Tensor, Tensor] | None:
    """Float32 (C,) factor and summand after a norm over the channels; None where there are none."""

    def of(name: str | None) -> Tensor | None:
        found = None if name is None else weights.of(norm.module, name)
        return None if found is None else found.reshape(-1).float()

    factor, summand = of(norm.weight), of(norm.bias)
    like = next((t for t in (factor, summand, norm.scale, norm.shift) if t is not None), None)
    if like is None and norm.kind != "l2":
        return None
    if like is None:
        raise ValueError("an l2 norm without a weight: its channels have no place to be scaled")
    if factor is None:
        factor = like.new_ones(channels).float()
    if summand is None:
        summand = like.new_zeros(channels).float()
    if norm.kind == "l2":
        factor = factor * math.sqrt(channels)
    if norm.scale is not None:
        scale = 1 + norm.scale.reshape(-1).to(like.device).float()
        factor, summand = factor * scale, summand * scale
    if norm.shift is not None:
        summand = summand + norm.shift.reshape(-1).to(summand.device).float()
    return factor.expand(channels).contiguous(), summand.expand(channels).contiguous()
