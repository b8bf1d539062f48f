"""How the tensors of a convolution lie in memory, which kernel can read that in place, and how a
weight is packed.

Kernels read weights as (outputs, taps, channels), for a narrow convolution as (kw, outputs,
kt * kh, channels), channels innermost and a multiple of 8. Pure integers: no torch, no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.conv.triton import plan
from hy3d_rocm.conv.triton.plan import Problem, Triple

if TYPE_CHECKING:
    import torch

Strides = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Layout:
    """Strides of x and out (n, c, t, h, w); aligned: x starts at a multiple of 16 bytes.

    weight: its strides (o, c, t, h, w), None for those of a dense one; weight_aligned: as of x.
    """

    x: Strides
    out: Strides
    aligned: bool
    weight: Strides | None = None
    weight_aligned: bool = True

    @classmethod
    def of(cls, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor | None = None) -> Layout:
        """That of the tensors; the batch of a 4-dimensional one is the time."""
        aligned = x.data_ptr() % 16 == 0
        if weight is None:
            return cls(_strides_of(x), _strides_of(out), aligned)
        stride = weight.stride()
        o, c, t, h, w = stride if len(stride) == 5 else (*stride[:2], 0, *stride[2:])
        of_weight = (o, c, t, h, w)
        return cls(
            _strides_of(x), _strides_of(out), aligned, of_weight, weight.data_ptr() % 16 == 0
        )


def is_points(p: Problem, layout: Layout) -> bool:
    """Whether `conv_points` computes this: 1x1x1, dense NCDHW, whole vectors."""
    if p.batch > plan.GRID_LIMIT:
        return False
    t, h, w = p.size
    dense = all(
        s[2:] == (h * w, w, 1) or (t == 1 and s[3:] == (w, 1)) for s in (layout.x, layout.out)
    )
    plain = p.kernel == (1, 1, 1) and p.is_flat and not p.is_padded and p.groups == 1
    whole = p.channels % 8 == 0 and t * h * w % 8 == 0 and t * h * w < 2**31 - 512
    strided = all(s[1] % 8 == 0 and (p.batch == 1 or s[0] % 8 == 0) for s in (layout.x, layout.out))
    return dense and plain and whole and strided and layout.aligned


def is_rows(p: Problem, layout: Layout) -> bool:
    """Whether x lies in memory as rows that the kernel can read."""
    t, h, w = p.size
    c = p.row_channels
    if c != p.channels * p.groups or not layout.aligned or c * p.itemsize % 16:
        return False
    wanted = (t * h * w * c, 1, h * w * c, w * c, c)
    sizes = (p.batch, c, t, h, w)
    return all(n == 1 or a == b for n, a, b in zip(sizes, layout.x, wanted, strict=True))


def _strides_of(tensor: torch.Tensor) -> Strides:
    """In the order n, c, t, h, w."""
    if tensor.dim() == 5:
        n, c, t, h, w = tensor.stride()
        return (n, c, t, h, w)
    n, c, h, w = tensor.stride()
    return (0, c, n, h, w)


def rows_strides(size: Triple, channels: int) -> Strides:
    """Strides of a dense (n, t, h, w, c) tensor in the order n, c, t, h, w."""
    t, h, w = size
    return (t * h * w * channels, 1, h * w * channels, w * channels, channels)


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
