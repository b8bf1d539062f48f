"""The narrow way of `gemm`: products of every tap with the input as it lies, then a shifted sum.

With few output channels the columns of an implicit im2col are far larger than the result. Here one
product makes taps x Cout values for each input position (81 for 128 -> 3 with 3x3x3), reading the
input once and in place; a strided view in which each tap is shifted to its output is summed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import columns_plan, in_place, products, windows
from hy3d_rocm.conv.tiers.windows import Box, Geometry, Sizes, geometry

_PIECE_BYTES = 160 << 20


@dataclass(frozen=True)
class Plan:
    """Boxes of `steps` at a time; `cost` is bytes moved in that time (see columns)."""

    shape: Geometry
    dtype: torch.dtype  # of the operands; sums are in f32, or f64 for it
    steps: Sizes
    bytes: int
    cost: float

    def made_elems(self, steps: Sizes) -> int:
        """What the taps give for the input of a box, rows rounded up (columns_plan.ALIGNED)."""
        t, h, w = self.shape.window_sizes(steps)
        line = -(-h * w // columns_plan.ALIGNED) * columns_plan.ALIGNED
        return self.shape.taps * self.shape.cout // self.shape.groups * t * line


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
    draft = Plan(shape, dtype, (1, 1, 1), 0, 0.0)
    weights = 2 * outputs * cin * shape.taps * dtype.itemsize

    def need(steps: Sizes) -> int:
        read = math.prod(shape.window_sizes(steps))
        made = draft.made_elems(steps) + outputs * math.prod(steps)
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
    sums = made * max(dtype.itemsize, 4)
    moved = sums + cin * dtype.itemsize
    depth = cin + columns_plan.PROLOGUE
    pairs = 2 * depth * max(made, columns_plan.LEAST_ROWS) / columns_plan.flops_a_byte(dtype)
    gpu = parts * (
        read * (max(moved, pairs) + sums) + shape.cout * math.prod(shape.out) * dtype.itemsize
    )
    host = (8 + parts * boxes * 8) * columns_plan.OPERATOR
    return max(gpu, host) + min(gpu, host) / 8


def run(
    found: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:  # fmt: skip
    """x and out (N, C, T, H, W), weight (Cout, C / groups, kT, kH, kW)."""
    shape = found.shape
    cin, outputs = shape.cin // shape.groups, shape.cout // shape.groups
    products_of = _Products(found, x.device)
    for group in range(shape.groups):
        # (kT, kH, kW, Cout) x C: the taps of one output channel are planes of their own.
        o, c, t, h, w = weight.stride()
        sizes, strides = (*shape.kernel, outputs, cin), (t, h, w, o, c)
        start = int(weight.storage_offset()) + group * outputs * o
        matrix = torch.as_strided_copy(weight, sizes, strides, start).to(found.dtype)
        addend = None
        if bias is not None:
            step = bias.stride(0)
            first = int(bias.storage_offset()) + group * outputs * step
            addend = bias.as_strided((outputs, 1, 1, 1), (step, 0, 0, 0), first)
        for n in range(shape.batch):
            for box in windows.boxes(shape.box, found.steps):
                each = _matrices(found, x, n, group, box)
                t, h, w = windows.counts(box)
                place = out.as_strided(
                    (outputs, t, h, w), out.stride()[1:],
                    n * out.stride(0) + group * outputs * out.stride(1)
                    + sum(box[a][0] * out.stride(2 + a) for a in range(3)),
                )  # fmt: skip
                products.write(place, products_of.sum((t, h, w), each, matrix), addend)
                del each


class _Products:
    """What each tap gives, and its shifted sum; the same memory for every box."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        shape = plan.shape
        self.rows = shape.taps * shape.cout // shape.groups
        dtype = torch.float32 if products.is_half(plan.dtype) else plan.dtype
        self.made = torch.empty(plan.made_elems(plan.steps), dtype=dtype, device=device)

    def sum(self, counts: Sizes, each: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """(Cout, T, H, W) of a box, unrounded; each (T, C, H x W) is what it reads."""
        shape = self.plan.shape
        frames, cin, positions = each.shape
        line = -(-positions // columns_plan.ALIGNED) * columns_plan.ALIGNED
        plane, outputs = self.rows * line, shape.cout // shape.groups
        made = self.made.as_strided((frames, self.rows, positions), (plane, line, 1))
        factor = matrix.as_strided((frames, self.rows, cin), (0, cin, 1))
        products.multiply(factor, each, None, made)
        t, h, w = counts
        width = shape.window_sizes(counts)[2]
        kt, kh, kw = shape.kernel
        strides = (
            line * outputs * kh * kw + plane * shape.dilation[0],
            line * outputs * kw + width * shape.dilation[1],
            line * outputs + shape.dilation[2],
            line, plane, width, 1,
        )  # fmt: skip
        return self.made.as_strided((kt, kh, kw, outputs, t, h, w), strides).sum(dim=(0, 1, 2))


def _matrices(found: Plan, x: torch.Tensor, n: int, group: int, box: Box) -> torch.Tensor:
    """The padded input of a box as (T, C, H x W): a view of the input where that is possible."""
    shape = found.shape
    cin = shape.cin // shape.groups
    if windows.is_inside(shape, box) and x.dtype is found.dtype:
        counts = windows.counts(box)
        spans = [shape.span(axis, part)[0] for axis, part in enumerate(box)]
        start = int(x.storage_offset()) + n * x.stride(0) + group * cin * x.stride(1)
        start += sum(a * s for a, s in zip(spans, x.stride()[2:], strict=True))
        view = _planes((cin, *shape.window_sizes(counts)), x.stride()[1:])
        if view is not None:
            return x.as_strided(*view, start)
    part = windows.window(x[n : n + 1, group * cin : (group + 1) * cin], shape, box)
    view = _planes(part.shape[1:], part.stride()[1:]) if part.dtype is found.dtype else None
    if view is None:
        part = part.to(dtype=found.dtype, memory_format=torch.contiguous_format, copy=True)
        view = _planes(part.shape[1:], part.stride()[1:])
        assert view is not None
    return part.as_strided(*view)


def _planes(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
    """(C, T, H, W) as (T, C, H x W), each of them a matrix for BLAS: sizes and strides, or None."""
    (channels, frames, *plane), positions = sizes, sizes[2] * sizes[3]
    step = in_place.flat_step(plane, strides[2:])
    found = None if step is None else in_place.blas_strides(channels, positions, strides[0], step)
    return found and ((frames, channels, positions), (strides[1], *found))
