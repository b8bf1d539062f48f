"""The narrow way of `gemm`: products of every tap with the input as it lies, then a shifted sum.

With few output channels the columns of an implicit im2col are far larger than the result. Here one
product makes taps x Cout values for each input position (81 for 128 -> 3 with 3x3x3), reading the
input once and in place; a strided view in which each tap is shifted to its output is summed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import columns_plan, products, windows
from hy3d_rocm.conv.tiers.windows import Box, Geometry, Sizes, geometry

_PIECE_BYTES = 160 << 20
_MAX_LEADING = (1 << 31) - 1


@dataclass(frozen=True)
class Plan:
    """Boxes of `steps` at a time; `cost` is bytes moved in that time (see columns_plan)."""

    shape: Geometry
    dtype: torch.dtype  # of the operands; sums are in f32, or f64 for it
    steps: Sizes
    bytes: int
    cost: float


def plan(spec: ConvSpec) -> Plan | None:
    """None with a stride (most products would be thrown away), or where no row fits."""
    dtype = products.work_dtype(spec.device, spec.dtype)
    if products.is_half(dtype) and not products.can_widen(spec.device, dtype):
        dtype = torch.float32  # what each tap gives must not be rounded before the sum
    return _plan(geometry(spec), dtype)


@functools.lru_cache(maxsize=1024)
def _plan(shape: Geometry, dtype: torch.dtype) -> Plan | None:
    if any(s != 1 for s in shape.stride) or min(shape.out) == 0:
        return None
    cin, outputs = shape.cin // shape.groups, shape.cout // shape.groups
    wide = max(dtype.itemsize, 4)
    weights = 2 * outputs * cin * shape.taps * dtype.itemsize

    def need(steps: Sizes) -> int:
        read = math.prod(shape.window_sizes(steps))
        made = shape.taps * outputs * read + outputs * math.prod(steps)
        copies = 2 if dtype is torch.float32 else 1  # one more where half types become f32
        return copies * cin * read * dtype.itemsize + made * wide

    limit = _PIECE_BYTES - weights
    steps = windows.least_halo(shape, shape.out[2], need, limit, shape.out)
    steps = steps or windows.steps_that_fit(shape, need, limit, cut_width=True)
    if steps is None:
        return None
    return Plan(shape, dtype, steps, weights + need(steps), _cost(shape, dtype, steps))


def _cost(shape: Geometry, dtype: torch.dtype, steps: Sizes) -> float:
    """Products are written and read again; boxes overlap."""
    cin, made = shape.cin // shape.groups, shape.taps * shape.cout // shape.groups
    parts = shape.batch * shape.groups
    boxes = math.prod(-(-n // step) for n, step in zip(shape.out, steps, strict=True))
    read = boxes * math.prod(shape.window_sizes(steps))
    moved = 2 * made * max(dtype.itemsize, 4) + cin * dtype.itemsize
    pairs = 2 * cin * max(made, columns_plan.LEAST_ROWS) / columns_plan.flops_a_byte(dtype)
    gpu = parts * (read * max(moved, pairs) + shape.cout * math.prod(shape.out) * dtype.itemsize)
    return max(gpu, (6 + parts * boxes * 6) * columns_plan.OPERATOR)


def run(
    found: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """x and out (N, C, T, H, W), weight (Cout, C / groups, kT, kH, kW)."""
    shape = found.shape
    cin, outputs = shape.cin // shape.groups, shape.cout // shape.groups
    for group in range(shape.groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        # (kT, kH, kW, Cout) x C: the taps of one output channel are planes of their own.
        matrix = weight[rows].permute(2, 3, 4, 0, 1).reshape(-1, cin).to(found.dtype)
        addend = None if bias is None else bias[rows].view(-1, 1, 1, 1)
        for n in range(shape.batch):
            source = x[n : n + 1, group * cin : (group + 1) * cin]
            for box in windows.boxes(shape.box, found.steps):
                place = windows.target(out[n : n + 1, rows], box)[0]
                total = _sum(shape, box, _matrices(found, source, box), matrix)
                if addend is None:
                    place.copy_(total)
                else:
                    torch.add(total, addend.to(total.dtype), out=place)
                del total


def _planes(x: torch.Tensor) -> torch.Tensor | None:
    """(1, C, T, H, W) as (T, C, H x W), each of them a matrix for BLAS, or None."""
    _, channels, frames, height, width = x.shape
    _, channel, frame, row, step = x.stride()
    if width == 1:
        step = row
    if height > 1 and row != width * step:
        return None
    if height == width == 1:
        step = max(channels, 1) if channel == 1 else 1
    if channels == 1:
        channel = height * width if step == 1 else 1
    plain = step == 1 and channel >= height * width
    if not plain and not (channel == 1 and step >= channels):
        return None
    if max(channel, step, height * width) > _MAX_LEADING:
        return None
    return x.as_strided((frames, channels, height * width), (frame, channel, step))


def _matrices(found: Plan, source: torch.Tensor, box: Box) -> torch.Tensor:
    """The padded input of a box as (T, C, H x W): a view of the input where that is possible."""
    part = windows.window(source, found.shape, box)
    each = _planes(part) if part.dtype is found.dtype else None
    if each is None:
        copy = part.to(dtype=found.dtype, memory_format=torch.contiguous_format, copy=True)
        each = _planes(copy)
        assert each is not None
    return each


def _sum(shape: Geometry, box: Box, each: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """(Cout, T, H, W) of a box, unrounded."""
    made = products.multiply(matrix.expand(each.shape[0], -1, -1), each)
    t, h, w = (b - a for a, b in box)
    width = shape.window_sizes((t, h, w))[2]
    kt, kh, kw = shape.kernel
    outputs = matrix.shape[0] // shape.taps
    plane, row = made.stride(0), made.stride(1)
    sizes = (kt, kh, kw, outputs, t, h, w)
    tap = row * outputs
    strides = (
        tap * kh * kw + plane * shape.dilation[0],
        tap * kw + width * shape.dilation[1],
        tap + shape.dilation[2],
        row, plane, width, 1,
    )  # fmt: skip
    return made.as_strided(sizes, strides).sum(dim=(0, 1, 2))
