"""The weight in the order in which the kernels read it: whether it must be copied, and how.

Kernels read (outputs, taps, channels), for a narrow convolution (kw, outputs, kt * kh, channels),
channels innermost and a multiple of 8. Pure integers: no torch, no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hy3d_rocm.conv.triton.layout import Strides
from hy3d_rocm.conv.triton.plan import Problem

# Taps and channels of one program. Taps lie together in memory, so a tile reads stretches of all
# taps of its channels; as few tiles as there are kernels to be checked on each architecture.
TILES = ((4, 512), (16, 256), (32, 128))


@dataclass(frozen=True)
class Packing:
    """Programs of `pack_weight`, its numbers and its constants."""

    programs: int
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]


def channels_of(p: Problem) -> int:
    """Channels of one tap of a packed weight."""
    return p.channels if p.groups > 1 else p.row_channels


def plain_strides(p: Problem) -> Strides:
    """Those of a dense weight in PyTorch's order, (o, c, t, h, w)."""
    kt, kh, kw = p.kernel
    return (p.channels * kt * kh * kw, kt * kh * kw, kh * kw, kw, 1)


def packed_strides(p: Problem, narrow: bool) -> Strides:
    """Those of the packed weight, in the order o, c, t, h, w."""
    kt, kh, kw = p.kernel
    c, total = channels_of(p), p.outputs * p.groups
    if narrow:
        return (kt * kh * c, 1, kh * c, c, total * kt * kh * c)
    return (kt * kh * kw * c, 1, kh * kw * c, kw * c, c)


def is_packed(p: Problem, narrow: bool, strides: Strides) -> bool:
    """Whether a weight with these strides lies as a packed one does."""
    if channels_of(p) != p.channels:
        return False
    sizes = (p.outputs * p.groups, p.channels, *p.kernel)
    wanted = packed_strides(p, narrow)
    return all(n == 1 or a == b for n, a, b in zip(sizes, strides, wanted, strict=True))


def make_packing(p: Problem, narrow: bool, strides: Strides) -> Packing:
    """How a weight with these strides is packed."""
    kt, kh, kw = p.kernel
    taps, c = kt * kh * kw, channels_of(p)
    to = packed_strides(p, narrow)
    lie = zip(p.kernel, strides[2:], (kh * kw, kw, 1), strict=True)
    dense = taps > 1 and all(n == 1 or a == b for n, a, b in lie)
    block_t, block_c = next((t for t in TILES if t[0] >= taps), TILES[-1])
    programs = p.outputs * p.groups * -(-taps // block_t) * -(-c // block_c)
    numbers = (p.channels, c // 8, taps, kh, kw, to[0] // c, to[3] // c, to[4] // c, *strides)
    return Packing(programs, numbers, (dense, block_t, block_c))
