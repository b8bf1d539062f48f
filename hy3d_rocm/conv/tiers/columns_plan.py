"""The plan of `gemm`: how columns of the input are laid out, and how large a piece is.

In channels-last order the kW taps of a row lie next to each other, so a matrix whose rows start
one position apart, and overlap, holds all of them without a copy. BLAS wants rows that don't
overlap: every m-th position (m at least kW / stride) makes such a matrix, and the m of them are one
batched product. Only the kH taps (and kT, where that is cheaper than adding products up) are
copied: 3 or 9 times the input instead of 27, for one box of the output at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.windows import Geometry, Sizes, geometry

# Bytes at most, together below 256 MB with the BLAS library's own workspace (32 MiB on Hopper).
_WEIGHT_BYTES = 48 << 20
_COPY_BYTES = 64 << 20
_PIECE_BYTES = 96 << 20
# Sums start at multiples of so many positions (64 bytes of f32): where rows are no multiples of 16
# bytes cuBLAS has slow kernels only. What the rounding adds is computed and not stored.
ALIGNED = 16
# Channels of half types are held in multiples of 16 bytes for the same reason, if there are more
# than this many (below it the zeros that fill them up cost more than the kernels).
_FEW_CHANNELS = 2
# More than kW / stride phases where those divide the width: the result is written at once then.
_MORE_PHASES = 2

# Costs, in bytes that a GPU moves in that time. In the time of a byte a card of 3 TB/s has done
# 200 products and sums of half types, or 20 of f32; the host takes 10 us to start an operator.
_HALF_FLOPS, _FULL_FLOPS = 200, 20
OPERATOR = 30_000_000
# How much of what a product is added to is read when the rest is done.
_READ_LATE = 0.75
# What starting and ending a tile of a product takes, as so much more depth.
PROLOGUE = 128
# Products of fewer rows take as long.
LEAST_ROWS = 64


@dataclass(frozen=True)
class Plan:
    """How one group of a convolution is cut.

    channels: of the input, with zeros to make whole 16 bytes. rows: output channels at a time.
    phases: m above. turns: products that are added up (kT or 1). line: positions a row of outputs
    takes. copied: elements copied for each position. outer: the box whose input is put into
    channels-last order at once; inner: that of a product. cost: bytes moved in that time.
    """

    shape: Geometry
    channels: int
    rows: int
    phases: int
    turns: int
    free_width: bool
    line: int
    copied: int
    outer: Sizes
    inner: Sizes
    bytes: int
    cost: float

    @property
    def cin(self) -> int:
        """Channels of a group."""
        return self.shape.cin // self.shape.groups

    @property
    def step(self) -> int:
        """Elements from one output's columns to the next one's."""
        return self.copied * (self.shape.stride[2] if self.free_width else 1)

    @property
    def depth(self) -> int:
        """Products of one output in one turn."""
        return self.copied * (self.shape.kernel[2] if self.free_width else 1)

    @property
    def width(self) -> int:
        """Positions of the input held for a line."""
        return self.line * (self.shape.stride[2] if self.free_width else 1)

    def planes(self, steps: Sizes) -> int:
        """Frames of columns that a box needs."""
        return self.shape.window_sizes((steps[0], 1, 1))[0] if self.turns > 1 else steps[0]

    def sums(self, steps: Sizes) -> int:
        """Positions of each phase that a box is computed for."""
        return -(-steps[0] * steps[1] * self.line // (self.phases * ALIGNED)) * ALIGNED

    def column_elems(self, inner: Sizes) -> int:
        """The last rows of the overlapping matrix reach past the last position, and those that
        round their number up lie past it: elements for them, whose results are not stored."""
        slack = self.phases * ALIGNED * self.step + self.depth
        return self.planes(inner) * inner[1] * self.width * self.copied + slack

    def sum_elems(self, inner: Sizes) -> int:
        return self.phases * self.sums(inner) * self.rows

    def copy_sizes(self, steps: Sizes) -> Sizes:
        """T, H, W of the copy of a box's input. Its lines are as long as those of the columns, so
        that a gather has one dimension less; what is beyond the window is not written."""
        t, h, w = self.shape.window_sizes(steps)
        return t, h, max(w, self.width) if self.free_width else w

    def copy_elems(self, outer: Sizes) -> int:
        return math.prod(self.copy_sizes(outer)) * self.channels


@dataclass(frozen=True)
class _Costs:
    """Bytes an element of operands and sums; products a byte; whether the input is copied first;
    the number of channels' unit."""

    work: int
    total: int
    flops: int
    relaid: bool
    unit: int


def folded(spec: ConvSpec) -> Geometry:
    """The geometry, in which the samples of a batch of single frames are frames of one sample."""
    shape = geometry(spec)
    if shape.batch == 1 or (shape.size[0], shape.kernel[0], shape.out[0]) != (1, 1, 1):
        return shape
    if shape.before[0] or shape.after[0]:
        return shape
    size, out = (shape.batch, *shape.size[1:]), (shape.batch, *shape.out[1:])
    stride, dilation = (1, *shape.stride[1:]), (1, *shape.dilation[1:])
    return dataclasses.replace(
        shape, batch=1, size=size, out=out, stride=stride, dilation=dilation
    )  # fmt: skip


def flops_a_byte(dtype: torch.dtype) -> int:
    """Products and sums (each counts) of this type in the time of a byte."""
    return _HALF_FLOPS if products.is_half(dtype) else _FULL_FLOPS


def plan(spec: ConvSpec) -> Plan | None:
    """The cut of a convolution, or None where not even the smallest piece is small enough."""
    return min(candidates(spec), key=lambda plan: plan.cost, default=None)


def candidates(spec: ConvSpec) -> tuple[Plan, ...]:
    """Every way to lay the columns out: taps copied or added up, with phases or without."""
    work = products.work_dtype(spec.device, spec.dtype)
    total = products.sum_dtype(spec.device, spec.dtype)
    shape, half = folded(spec), products.is_half(work)
    costs = _Costs(
        work.itemsize, total.itemsize, flops_a_byte(work),
        shape.is_padded or not spec.channels_last, 16 // work.itemsize if half else 1,
    )  # fmt: skip
    return _candidates(shape, costs, products.is_half(total))


@functools.lru_cache(maxsize=1024)
def _candidates(shape: Geometry, costs: _Costs, rounds: bool) -> tuple[Plan, ...]:
    cin = shape.cin // shape.groups
    unit = costs.unit if cin > _FEW_CHANNELS else 1
    channels = -(-cin // unit) * unit
    rows = min(shape.cout // shape.groups, _WEIGHT_BYTES // (channels * shape.taps * costs.work))
    if rows == 0 or min(shape.out) == 0:
        return ()
    found: list[Plan] = []
    for turns in dict.fromkeys((1, 1 if rounds or shape.stride[0] > 1 else shape.kernel[0])):
        for free in (True, False) if shape.dilation[2] == 1 else (False,):
            for width in (shape.out[2], *(-(-shape.out[2] // n) for n in (4, 16, 64, 256, 1024))):
                cut = _cut(shape, costs, channels, rows, turns, free, width)
                if cut is not None:
                    found.append(cut)
                    break
    return tuple(found)


def _cut(
    shape: Geometry, costs: _Costs, channels: int, rows: int, turns: int, free: bool, width: int
) -> Plan | None:
    """The plan with boxes of `width` outputs a row; None if a row is too long."""
    copied = channels * shape.kernel[1] * (1 if turns > 1 else shape.kernel[0])
    phases, line = 1, width
    if free:
        phases = _phases(shape, width)
        window = shape.window_sizes((1, 1, width))[2]
        line = math.ceil(math.ceil(window / shape.stride[2]) / phases) * phases
    else:
        copied *= shape.kernel[2]
    none = (0, 0, 0)
    draft = Plan(shape, channels, rows, phases, turns, free, line, copied, none, none, 0, 0.0)

    def copy(steps: Sizes) -> int:
        return draft.copy_elems(steps) * costs.work

    def piece(steps: Sizes) -> int:
        return draft.column_elems(steps) * costs.work + draft.sum_elems(steps) * costs.total

    outer = windows.least_halo(shape, width, copy, _COPY_BYTES, shape.out)
    inner = outer and windows.least_halo(
        shape, width, piece, _PIECE_BYTES, outer, frames=turns > 1, rows=False
    )
    if outer is None or inner is None:
        return None
    total = rows * channels * shape.taps * costs.work + copy(outer) + piece(inner)
    plan = dataclasses.replace(draft, outer=outer, inner=inner, bytes=total)
    return dataclasses.replace(plan, cost=_cost(plan, costs))


def _phases(shape: Geometry, width: int) -> int:
    least = -(-shape.kernel[2] // shape.stride[2])
    for phases in range(least, least + _MORE_PHASES + 1):
        if width % phases == 0:
            return phases
    return least


def _cost(plan: Plan, costs: _Costs) -> float:
    """The longer of what the GPU does and what the host does, in bytes."""
    shape, inner = plan.shape, plan.inner
    outputs = shape.cout // shape.groups
    parts = shape.batch * shape.groups * -(-outputs // plan.rows)
    boxes = math.prod(-(-n // step) for n, step in zip(shape.out, inner, strict=True))
    positions = boxes * plan.sums(inner) * plan.phases
    # Columns are written, then read; sums are read where products are added up, written, and read
    # again for the result.
    gather = 2 * positions * plan.planes(inner) / inner[0] * plan.copied * costs.work
    relaid = 4 * math.prod(shape.out) * plan.cin * costs.work if costs.relaid else 0
    depth = plan.depth + PROLOGUE
    pairs = positions * depth * max(plan.rows, LEAST_ROWS) * 2 / costs.flops
    sums = positions * plan.rows * costs.total
    product = max(pairs, positions * plan.step * costs.work + 2 * sums)
    product += _READ_LATE * sums if plan.turns > 1 else 0
    write = sums + positions * plan.rows * costs.work
    gpu = parts * (gather + relaid + plan.turns * product + write)
    host = (12 + parts * boxes * (4 + plan.turns + (inner[2] % plan.phases > 0))) * OPERATOR
    return max(gpu, host) + min(gpu, host) / 8
