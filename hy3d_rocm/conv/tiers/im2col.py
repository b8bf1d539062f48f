"""Small layers of `gemm`: PyTorch's own im2col, then one product, where the host is what costs.

Columns ask the GPU for less, and the host for twice as many operators. Frames are samples: with kT
taps, the frames that an output reads are channels of one sample, as the weight has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products
from hy3d_rocm.conv.tiers.windows import Geometry, geometry

# Larger ones cost the GPU more than twice as many operators cost the host
# (paint_unet_512_b1 and seven other sets on an H200).
_COLUMN_BYTES = 32 << 20
_MOST_BYTES = 160 << 20
# Each of them is a kernel.
_MOST_SAMPLES = 4


@dataclass(frozen=True)
class Plan:
    """bytes: all that a run takes."""

    shape: Geometry
    samples: int
    depth: int
    positions: int
    bytes: int


def plan(spec: ConvSpec) -> Plan | None:
    """None where im2col has no words for the padding, or is too large."""
    shape = geometry(spec)
    samples = shape.batch * shape.out[0]
    positions, depth = math.prod(shape.out[1:]), shape.cin * shape.taps
    if min(shape.out) == 0 or shape.groups > 1 or min(shape.batch, shape.out[0]) > 1:
        return None
    if samples > _MOST_SAMPLES or not _has_plain_padding(shape):
        return None
    if products.work_dtype(spec.device, spec.dtype) is not spec.dtype:
        return None
    columns = samples * positions * depth * spec.dtype.itemsize
    # Frames are copied where they are no channels as they lie, and by im2col; a weight where it is
    # not contiguous.
    frames = math.prod(shape.size[1:]) * shape.cin * shape.kernel[0] * samples
    held = columns + (2 * frames + shape.cout * depth) * spec.dtype.itemsize
    sums = products.sum_dtype(spec.device, spec.dtype).itemsize
    total = held + samples * positions * shape.cout * sums
    if columns > _COLUMN_BYTES or total > _MOST_BYTES:
        return None
    return Plan(shape, samples, depth, positions, total)


def _has_plain_padding(shape: Geometry) -> bool:
    """None in time, and zeros, as many before as after, in H and W."""
    if shape.before[0] or shape.after[0] or shape.before != shape.after:
        return False
    return all(mode == "zeros" or not n for mode, n in zip(shape.modes, shape.before, strict=True))


def run(
    found: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """All of 4 or 5 dimensions."""
    shape, samples = found.shape, found.samples
    columns = torch._C._nn.im2col(
        _frames(shape, samples, x), shape.kernel[1:], shape.dilation[1:], shape.before[1:],
        shape.stride[1:],
    )  # fmt: skip
    rows = weight.reshape(1, shape.cout, found.depth)
    if samples > 1:
        rows = rows.expand(samples, -1, -1)
    by_channel = out.stride(1) == 1 and shape.cout > 1
    a, b = (columns.mT, rows.mT) if by_channel else (rows, columns)
    wide = products.sum_dtype(x.device, x.dtype)
    adds = bias is not None and products.is_half(wide)  # multiply() adds the bias itself
    if bias is not None:
        bias = bias.view((1, 1, -1) if by_channel else (1, -1, 1))
    total = products.multiply(a, b, bias if adds else None)
    each = out.stride(2 if shape.out[0] > 1 else 0) if samples > 1 else 0
    channel, step = out.stride(1), out.stride(-1)
    if shape.out[2] == 1:
        step = out.stride(-2)
    sizes, strides = (samples, shape.cout, found.positions), (each, channel, step)
    if by_channel:
        sizes, strides = (samples, found.positions, shape.cout), (each, step, channel)
    products.write(out.as_strided(sizes, strides), total, None if adds else bias)


def _frames(shape: Geometry, samples: int, x: torch.Tensor) -> torch.Tensor:
    """x as (samples, C x kT, H, W)."""
    if x.dim() == 4:
        return x
    n, c, t, h, w = x.stride()
    taps, height, width = shape.kernel[0], *shape.size[1:]
    tap = t * shape.dilation[0]
    each = t * shape.stride[0] if shape.out[0] > 1 else n
    start = x.storage_offset()
    if taps == 1 or c == taps * tap:
        sizes = (samples, shape.cin * taps, height, width)
        return x.as_strided(sizes, (each, tap if taps > 1 else c, h, w), start)
    sizes5 = (samples, shape.cin, taps, height, width)
    copy = torch.as_strided_copy(x, sizes5, (each, c, tap, h, w), start)
    return copy.view(samples, shape.cin * taps, height, width)
