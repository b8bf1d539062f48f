"""Products of the input as it lies: kernels of one element, and few output channels.

The columns of a 1x1x1 kernel are the input itself. With few output channels the columns of an
implicit im2col are far larger than the result: there one product makes taps x Cout values for each
input position (81 for 128 -> 3 with 3x3x3), reading the input once and in place, and a strided view
in which each tap is shifted to its output is summed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.windows import Box, Geometry, Sizes

_PIECE_BYTES = 160 << 20
# Sums of a 1x1x1 at a time: about what a card's last-level cache holds, since they are read back at
# once to be rounded.
_SUM_BYTES = 40 << 20
_MAX_LEADING = (1 << 31) - 1


@dataclass(frozen=True)
class Plan:
    """Boxes of `steps` at a time. dtype: of the operands; wide: of the sums; is_direct: those are
    made in the result itself. bytes: all that a run takes."""

    shape: Geometry
    dtype: torch.dtype
    wide: torch.dtype
    is_direct: bool
    steps: Sizes = (1, 1, 1)
    bytes: int = 0

    @property
    def rows(self) -> int:
        """Products of a position: of each tap, the outputs of a group."""
        return self.shape.taps * self.shape.cout // self.shape.groups

    def made_elems(self, steps: Sizes) -> int:
        """What the taps give for the input of a box."""
        t, h, w = self.shape.window_sizes(steps)
        return 0 if self.is_direct else self.rows * t * windows.aligned(h * w)


def plan(spec: ConvSpec) -> Plan | None:
    """None with a stride, with several taps that give more values for a position than lie there,
    or where no row fits."""
    dtype = products.work_dtype(spec.device, spec.dtype)
    wide = products.sum_dtype(spec.device, spec.dtype)
    shape = windows.folded(spec)
    if shape.taps > 1 and products.is_half(wide):
        dtype = wide = torch.float32  # what each tap gives must not be rounded before the sum
    return _plan(shape, dtype, wide, shape.taps == 1 and wide is spec.dtype)


@functools.lru_cache(maxsize=1024)
def _plan(shape: Geometry, dtype: torch.dtype, wide: torch.dtype, is_direct: bool) -> Plan | None:
    if any(s != 1 for s in shape.stride) or min(shape.out) == 0:
        return None
    cin, outputs = shape.cin // shape.groups, shape.cout // shape.groups
    draft = Plan(shape, dtype, wide, is_direct)
    if shape.taps > 1 and draft.rows > cin:
        return None
    weights = 2 * draft.rows * cin * dtype.itemsize

    def need(steps: Sizes) -> int:
        copy = cin * math.prod(shape.window_sizes(steps)) * dtype.itemsize
        total = outputs * math.prod(steps) * wide.itemsize if shape.taps > 1 else 0
        return copy + total + draft.made_elems(steps) * wide.itemsize

    def excess(steps: Sizes) -> int:
        over = weights + need(steps) - _PIECE_BYTES
        if shape.taps > 1:
            return over
        return max(over, draft.made_elems(steps) * wide.itemsize - _SUM_BYTES)

    steps = windows.least_halo(shape, shape.out[2], excess, 0, shape.out)
    steps = steps or windows.steps_that_fit(shape, excess, 0, cut_width=True)
    if steps is None:
        return None
    return Plan(shape, dtype, wide, is_direct, steps, weights + need(steps))


def run(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:  # fmt: skip
    """out = x * weight + bias. All are as the caller of the tier has them: of 4 or 5 dimensions."""
    shape = plan.shape
    outputs, place = shape.cout // shape.groups, windows.strides_of(out, shape)
    products_of = _Products(plan, x, place[1] == 1 and outputs > 1)
    for group in range(shape.groups):
        matrix = _matrix(plan, weight, group)
        addend = None
        if bias is not None:
            step = bias.stride(0)
            first = int(bias.storage_offset()) + group * outputs * step
            addend = bias.as_strided((outputs, 1, 1, 1), (step, 0, 0, 0), first)
        for n in range(shape.batch):
            for box in windows.boxes(shape.box, plan.steps):
                counts = windows.counts(box)
                at = n * place[0] + group * outputs * place[1]
                at += sum(box[a][0] * place[2 + a] for a in range(3))
                each = products_of.operand(n, group, box)
                if plan.is_direct:
                    view = _planes((outputs, *counts), place[1:])
                    assert view is not None  # the result is dense
                    products_of.write(out.as_strided(*view, at), each, matrix, addend)
                else:
                    target = out.as_strided((outputs, *counts), place[1:], at)
                    products.write(target, products_of.sums(counts, each, matrix), addend)
                del each


def _matrix(plan: Plan, weight: torch.Tensor, group: int) -> torch.Tensor:
    """(kT, kH, kW, Cout) x C of a group: the taps of one output channel are planes of their own.
    The weight as it lies, where BLAS can take that."""
    shape = plan.shape
    cin, outputs = shape.cin // shape.groups, shape.cout // shape.groups
    o, c, *rest = weight.stride()
    t, h, w = rest if len(rest) == 3 else (0, *rest)
    start = int(weight.storage_offset()) + group * outputs * o
    if shape.taps == 1 and weight.dtype is plan.dtype and o >= cin and (c == 1 or cin == 1):
        return weight.as_strided((outputs, cin), (o, 1), start)
    sizes, strides = (*shape.kernel, outputs, cin), (t, h, w, o, c)
    copy = torch.as_strided_copy(weight, sizes, strides, start)
    return copy.to(plan.dtype).view(plan.rows, cin)


class _Products:
    """What each tap gives, and its shifted sum; the same memory for every box."""

    def __init__(self, plan: Plan, x: torch.Tensor, by_channel: bool) -> None:
        self.plan, self.x, self.strides = plan, x, windows.strides_of(x, plan.shape)
        self.by_channel = by_channel  # whether channels are adjacent in the result
        self.made: torch.Tensor | None = None
        if not plan.is_direct:
            elems = plan.made_elems(plan.steps)
            self.made = torch.empty(elems, dtype=plan.wide, device=x.device)

    def operand(self, n: int, group: int, box: Box) -> torch.Tensor:
        """The padded input of a box as (T, C, H x W): of the input itself where possible."""
        shape = self.plan.shape
        cin = shape.cin // shape.groups
        start = int(self.x.storage_offset()) + n * self.strides[0] + group * cin * self.strides[1]
        t, h, w = shape.window_sizes(windows.counts(box))
        if windows.is_inside(shape, box) and self.x.dtype is self.plan.dtype:
            view = _planes((cin, t, h, w), self.strides[1:])
            if view is not None:
                starts = (shape.span(axis, part)[0] for axis, part in enumerate(box))
                first = sum(a * s for a, s in zip(starts, self.strides[2:], strict=True))
                return self.x.as_strided(*view, start + first)
        copy = torch.empty((1, t, cin, h, w), dtype=self.plan.dtype, device=self.x.device)
        source = self.x.as_strided((1, cin, *shape.size), (0, *self.strides[1:]), start)
        windows.fill(copy.transpose(1, 2), source, shape, box)
        return copy.view(t, cin, h * w)

    def write(
        self, place: torch.Tensor, each: torch.Tensor, matrix: torch.Tensor,
        addend: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """place = the sums, which are rounded nowhere else. place: (T, Cout, H x W)."""
        factor = matrix.expand(len(each), *matrix.shape)
        if addend is None:
            torch.bmm(factor, each, out=place)
        else:
            torch.baddbmm(addend.view(1, -1, 1), factor, each, out=place)

    def sums(self, counts: Sizes, each: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """(Cout, T, H, W) of a box, unrounded; each (T, C, H x W) is what it reads."""
        assert self.made is not None
        shape, (rows, cin) = self.plan.shape, matrix.shape
        frames, _, positions = each.shape
        outputs, (kt, kh, kw), (t, h, w) = rows // shape.taps, shape.kernel, counts
        factor = matrix.as_strided(
            (frames, rows, cin), (0, *matrix.stride()), matrix.storage_offset()
        )
        if shape.taps == 1 and self.by_channel:
            made = self.made.as_strided((frames, positions, rows), (positions * rows, rows, 1))
            products.multiply(each.mT, factor.mT, None, made)
            return self.made.as_strided((rows, t, h, w), (1, positions * rows, w * rows, rows))
        line = windows.aligned(positions)
        plane = rows * line
        made = self.made.as_strided((frames, rows, positions), (plane, line, 1))
        products.multiply(factor, each, None, made)
        if shape.taps == 1:
            return self.made.as_strided((rows, t, h, w), (line, plane, w, 1))
        width = shape.window_sizes(counts)[2]
        strides = (
            line * outputs * kh * kw + plane * shape.dilation[0],
            line * outputs * kw + width * shape.dilation[1],
            line * outputs + shape.dilation[2],
            line, plane, width, 1,
        )  # fmt: skip
        return self.made.as_strided((kt, kh, kw, outputs, t, h, w), strides).sum(dim=(0, 1, 2))


def _planes(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
    """(C, T, H, W) as (T, C, H x W), each of them a matrix for BLAS: sizes and strides, or None."""
    (channels, frames, height, width), positions = sizes, sizes[2] * sizes[3]
    channel, frame, row, step = strides
    if width == 1:
        step = row
    elif height > 1 and row != width * step:
        return None
    # What has one element has any stride.
    if positions == 1:
        step = channels if channel == 1 else 1
    if channels == 1:
        channel = positions if step == 1 else 1
    is_plain = step == 1 and channel >= positions
    if not is_plain and not (channel == 1 and step >= channels):
        return None
    if max(channel, step, positions) > _MAX_LEADING:
        return None
    return (frames, channels, positions), (frame, channel, step)
