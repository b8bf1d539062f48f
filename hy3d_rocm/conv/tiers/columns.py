"""Columns of the input in channels-last order, one box at a time, and long products of them.

In channels-last order the kW taps of a row lie next to each other, so a matrix whose rows start one
position apart, and overlap, holds all of them without a copy. BLAS wants rows that don't overlap:
every m-th position (m at least kW / stride) makes such a matrix, and the m of them are one batched
product. Only the kH taps are copied, and kT where products can't be added up: 3 or 9 times the
input instead of 27. Products of f32 are slow on overlapping rows: there the kW taps are copied too.

What a run does is a list of sizes, strides and offsets (Piece), worked out once for a call: on
small layers the host's time for starting operators is what counts, and views are operators to it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.problem import Box, Problem, Triple
from hy3d_rocm.conv.tiers import products, windows

# Bytes at most, together below 256 MB with the BLAS library's own workspace (32 MiB on Hopper).
_WEIGHT_BYTES = 48 << 20
_COPY_BYTES = 64 << 20
_PIECE_BYTES = 96 << 20
# Channels of half types are held in multiples of 16 bytes, since cuBLAS has slow kernels only for
# other rows, if there are more than this many (below it the zeros that fill them up cost more).
_FEW_CHANNELS = 2
# More than kW / stride phases where those divide the width: the result is written at once then.
_MORE_PHASES = 2

# Types in which so many bytes are copied at a time.
_WIDER = {16: torch.complex128, 8: torch.int64}

Ints = tuple[int, ...]
View = tuple[Ints, Ints, int]  # of Tensor.as_strided: sizes, strides, offset


@dataclass(frozen=True)
class Plan:
    """How one group of a convolution is cut.

    channels: of the input, with zeros to make whole 16 bytes. elems: so many of them are copied at
    a time (a copy's cost is by element). rows: output channels at a time. turns: products that are
    added up (kT or 1). free_width: kW by overlapping rows. phases: m above. line: positions a row
    of outputs takes. copied: elements copied for each position. outer: the box whose input is put
    into channels-last order at once; inner: that of a product. bytes: all that a run takes.
    """

    shape: Problem
    channels: int
    elems: int
    rows: int
    turns: int
    free_width: bool
    phases: int = 1
    line: int = 0
    copied: int = 0
    outer: Triple = (0, 0, 0)
    inner: Triple = (0, 0, 0)
    bytes: int = 0

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

    def planes(self, steps: Triple) -> int:
        """Frames of columns that a box needs."""
        return self.shape.window_sizes((steps[0], 1, 1))[0] if self.turns > 1 else steps[0]

    def sums(self, steps: Triple) -> int:
        """Positions of each phase that a box is computed for."""
        return windows.aligned(-(-steps[0] * steps[1] * self.line // self.phases))

    def column_elems(self, inner: Triple) -> int:
        """The last rows of the overlapping matrix reach past the last position, and those that
        round their number up lie past it: elements for them, whose results are not stored."""
        slack = self.phases * windows.ALIGNED * self.step + self.depth
        return self.planes(inner) * inner[1] * self.width * self.copied + slack

    def sum_elems(self, inner: Triple) -> int:
        return self.phases * self.sums(inner) * self.rows

    def copy_sizes(self, steps: Triple) -> Triple:
        """T, H, W of the copy of a box's input. Its lines are as long as those of the columns, so
        that a gather has one dimension less; what is beyond the window is not written."""
        t, h, w = self.shape.window_sizes(steps)
        return t, h, max(w, self.width)

    def copy_strides(self, box: Box) -> Triple:
        """T, H, W of the copy of that box, channels being adjacent."""
        _, h, w = self.copy_sizes(windows.counts(box))
        return h * w * self.channels, w * self.channels, self.channels

    def copy_elems(self, outer: Triple) -> int:
        return math.prod(self.copy_sizes(outer)) * self.channels


def plan(spec: ConvSpec) -> Plan | None:
    """The cut of a convolution, or None where not even the smallest piece is small enough."""
    work = products.work_dtype(spec.device, spec.dtype)
    total = products.sum_dtype(spec.device, spec.dtype)
    return _plan(spec.problem.folded, work, total)


@functools.lru_cache(maxsize=1024)
def _plan(shape: Problem, work: torch.dtype, total: torch.dtype) -> Plan | None:
    cin, is_half = shape.channels, products.is_half(work)
    unit = 16 // work.itemsize if is_half and cin > _FEW_CHANNELS else 1
    channels = -(-cin // unit) * unit
    rows = min(shape.outputs, _WEIGHT_BYTES // (channels * math.prod(shape.kernel) * work.itemsize))
    if rows == 0 or min(shape.out) == 0:
        return None
    units = (unit // work.itemsize for unit in _WIDER)
    elems = next((n for n in units if n > 1 and channels % n == 0), 1)
    whole = Plan(shape, channels, elems, rows, 1, is_half and shape.dilation[2] == 1)
    adds_up = shape.kernel[0] > 1 and shape.stride[0] == 1 and not products.is_half(total)
    found = _cut(whole, work, total)
    if adds_up and (found is None or found.inner != shape.out):  # more than one product anyway
        return _cut(dataclasses.replace(whole, turns=shape.kernel[0]), work, total) or found
    return found


def _cut(draft: Plan, work: torch.dtype, total: torch.dtype) -> Plan | None:
    """The plan with its boxes: of whole rows of outputs, or of parts where those are too long."""
    shape = draft.shape
    for parts in (1, 4, 16, 64, 256, 1024):
        width = -(-shape.out[2] // parts)
        one = _with_line(draft, width)

        def copy(steps: Triple, one: Plan = one) -> int:
            return one.copy_elems(steps) * work.itemsize

        def piece(steps: Triple, one: Plan = one) -> int:
            return one.column_elems(steps) * work.itemsize + one.sum_elems(steps) * total.itemsize

        outer = windows.least_halo(shape, width, copy, _COPY_BYTES, shape.out)
        inner = outer and windows.least_halo(
            shape, width, piece, _PIECE_BYTES, outer, frames=one.turns > 1, rows=False
        )
        if outer is not None and inner is not None:
            weights = one.rows * one.channels * math.prod(shape.kernel) * work.itemsize
            size = weights + copy(outer) + piece(inner)
            return dataclasses.replace(one, outer=outer, inner=inner, bytes=size)
    return None


def _with_line(draft: Plan, width: int) -> Plan:
    """With rows of `width` outputs."""
    shape = draft.shape
    copied = draft.channels * shape.kernel[1] * (1 if draft.turns > 1 else shape.kernel[0])
    if not draft.free_width:
        return dataclasses.replace(draft, line=width, copied=copied * shape.kernel[2])
    least = -(-shape.kernel[2] // shape.stride[2])
    most = range(least, least + _MORE_PHASES + 1)
    phases = next((n for n in most if width % n == 0), least)
    window = shape.window_sizes((1, 1, width))[2]
    line = -(-math.ceil(window / shape.stride[2]) // phases) * phases
    return dataclasses.replace(draft, phases=phases, line=line, copied=copied)


class Piece(NamedTuple):
    """A product. box: that whose first product it is, else None. source: of the copy, into: of the
    columns, both in units of plan.elems elements. columns: one a turn, factors of the product;
    last: whether those are its rows. total: the sums. parts: the place, counted from the sample's
    first element of these rows, and the sums, both as (rows, T, H, W...)."""

    box: Box | None
    source: View
    into: View
    columns: tuple[View, ...]
    last: bool
    total: View
    parts: tuple[tuple[View, View], ...]


def _pieces(plan: Plan, x: Ints, out: Ints) -> Iterator[Piece]:
    """x, out: strides of (N, C, T, H, W)."""
    shape = plan.shape
    for box in windows.boxes(shape.box, plan.outer):
        strides = plan.copy_strides(box)
        for index, inner in enumerate(windows.boxes(box, plan.inner)):
            place = sum(inner[a][0] * out[2 + a] for a in range(3))
            start = sum((inner[a][0] - box[a][0]) * shape.stride[a] * strides[a] for a in range(3))
            counts = windows.counts(inner)
            yield _piece(plan, counts, None if index else box, strides, start, out, place)


def _piece(
    plan: Plan, counts: Triple, box: Box | None, strides: Triple, start: int, out: Ints, place: int
) -> Piece:
    """Columns are (plane, row, position, taps, channel)."""
    shape, (_, h, w) = plan.shape, counts
    kt = 1 if plan.turns > 1 else shape.kernel[0]
    kw, move = (1, 1) if plan.free_width else (shape.kernel[2], shape.stride[2])
    read = plan.width if plan.free_width else w
    sizes = (plan.planes(counts), h, read, kt, shape.kernel[1], kw, plan.channels // plan.elems)
    taps = (s * d for s, d in zip(strides, shape.dilation, strict=True))
    steps = (strides[0] * shape.stride[0], strides[1] * shape.stride[1], strides[2] * move, *taps)
    taken = (*(step // plan.elems for step in steps), 1)
    line, m, count = plan.width * plan.copied, plan.phases, plan.sums(counts)
    steps = (h * line, line, plan.copied, plan.copied // kt, kw * plan.channels, plan.channels)
    given = (*(step // plan.elems for step in steps), 1)
    last = out[1] == 1 and plan.rows > 1
    matrix = (m, count, plan.depth), (plan.step, m * plan.step, 1)
    total = (m, count, plan.rows), (count * plan.rows, plan.rows, 1), 0
    if not last:
        matrix = (m, plan.depth, count), (plan.step, 1, m * plan.step)
        total = (m, plan.rows, count), (count * plan.rows, count, 1), 0
    # From the first tap of a turn to that of the next: kT frames.
    turns = range(0, plan.turns * shape.dilation[0] * h * line, shape.dilation[0] * h * line)
    return Piece(
        box, (sizes, taken, start // plan.elems), (sizes, given, 0),
        tuple((*matrix, turn) for turn in turns), last, total,
        tuple(_parts(plan, counts, last, out, place)),
    )  # fmt: skip


def _parts(
    plan: Plan, counts: Triple, last: bool, out: Ints, place: int
) -> Iterator[tuple[View, View]]:
    """Whole groups of phases, and what is left of a row of the output."""
    (t, h, w), m, rows = counts, plan.phases, plan.rows
    count, groups = plan.sums(counts), plan.line // m
    _, channel, *axes = out
    row, step = (1, rows) if last else (count, 1)
    lines = (row, h * groups * step, groups * step)
    whole, rest = divmod(w, m)
    outer = (channel, axes[0], axes[1])
    if whole:
        yield (
            ((rows, t, h, whole, m), (*outer, m * axes[2], axes[2]), place),
            ((rows, t, h, whole, m), (*lines, step, count * rows), 0),
        )
    if rest:
        yield (
            ((rows, t, h, rest, 1), (*outer, axes[2], 1), place + whole * m * axes[2]),
            ((rows, t, h, rest, 1), (*lines, count * rows, 1), whole * step),
        )


def run(
    plan: Plan, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """out = x * weight + bias. All are as the caller of the tier has them: of 4 or 5 dimensions."""
    shape = plan.shape
    given, made = windows.strides_of(x, shape), windows.strides_of(out, shape)
    known: dict[int, tuple[Piece, ...]] = spec.notes.setdefault(("columns", x.stride()), {})
    one = _Run(plan, spec, x, given, out)
    outputs = shape.outputs
    for group in range(shape.groups):
        for first, stop in windows.cut(outputs, plan.rows):
            row, rows = group * outputs + first, stop - first
            if rows not in known:
                known[rows] = tuple(_pieces(dataclasses.replace(plan, rows=rows), given, made))
            one.take(weight, bias, row, rows)
            for n in range(shape.batch):
                start = n * given[0] + group * shape.channels * given[1]
                for piece in known[rows]:
                    one.multiply(piece, start, n * made[0] + row * made[1])


class _Run:
    """One call. The copy of the input, the columns and the sums are used by all products in turn;
    matrix, part: weight and bias of the rows at hand; views: of what stays where it is."""

    def __init__(
        self, plan: Plan, spec: ConvSpec, x: torch.Tensor, given: Ints, out: torch.Tensor
    ) -> None:
        self.plan, self.x, self.given, self.out = plan, x, given, out
        self.work = products.work_dtype(spec.device, spec.dtype)
        sum_dtype = products.sum_dtype(spec.device, spec.dtype)
        self.sums = torch.empty(plan.sum_elems(plan.inner), dtype=sum_dtype, device=x.device)
        self.columns, self.columns_wide = self._buffer(plan.column_elems(plan.inner))
        self.copy: torch.Tensor | None = None
        self.copy_wide: torch.Tensor | None = None
        self.filled: tuple[object, ...] | None = None
        self.matrix: torch.Tensor | None = None
        self.part: torch.Tensor | None = None
        self.views: dict[tuple[int, View], torch.Tensor] = {}

    def _buffer(self, elems: int, zeros: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The same memory in elements and in units of plan.elems."""
        wide = _WIDER.get(self.plan.elems * self.work.itemsize, self.work)
        make = torch.zeros if zeros else torch.empty
        made = make(-(-elems // self.plan.elems), dtype=wide, device=self.x.device)
        return (made if wide is self.work else made.view(self.work)), made

    def _view(self, tensor: torch.Tensor, view: View) -> torch.Tensor:
        key = (id(tensor), view)
        found = self.views.get(key)
        if found is None:
            found = self.views[key] = tensor.as_strided(*view)
        return found

    def take(self, weight: torch.Tensor, bias: torch.Tensor | None, row: int, rows: int) -> None:
        """The weight (turns x rows x depth) in the order of the columns, contiguous, and the
        bias."""
        plan, shape = self.plan, self.plan.shape
        o, c, *rest = weight.stride()
        t, h, w = rest if len(rest) == 3 else (0, *rest)
        kt, kh, kw = shape.kernel
        turns, frames = (kt, 1) if plan.turns > 1 else (1, kt)
        sizes: Ints = (turns, rows, frames, kh, kw, shape.channels)
        strides: Ints = (t, o, t, h, w, c)
        if plan.free_width:
            sizes = (turns, rows, kw, frames, kh, shape.channels)
            strides = (t, o, w, t, h, c)
        self.matrix = None  # before the next one is made
        self.views.clear()
        start = int(weight.storage_offset()) + row * o
        if plan.channels == shape.channels and weight.dtype is self.work:
            self.matrix = torch.as_strided_copy(weight, sizes, strides, start)
        else:
            held, given = (*sizes[:-1], plan.channels), weight.as_strided(sizes, strides, start)
            self.matrix = torch.zeros(held, dtype=self.work, device=weight.device)
            self.matrix.narrow(-1, 0, shape.channels).copy_(given)
        if bias is not None:
            step = bias.stride(0)
            first = int(bias.storage_offset()) + row * step
            self.part = bias.as_strided((rows, 1, 1, 1, 1), (step, 0, 0, 0, 0), first)

    def multiply(self, piece: Piece, start: int, place: int) -> None:
        """start, place: of the sample's first element in x, and of that of these rows in out."""
        if piece.box is not None:
            self.fill(piece.box, start)
        assert self.copy_wide is not None
        assert self.matrix is not None
        into = self._view(self.columns_wide, piece.into)
        into.copy_(self.copy_wide.as_strided(*piece.source))
        total, m = self._view(self.sums, piece.total), piece.total[0][0]
        rows, depth = self.matrix.shape[1], self.plan.depth
        adds, inner = products.is_half(self.sums.dtype), None
        if adds and self.part is not None:
            inner = self.part.view((1, 1, rows) if piece.last else (1, rows, 1))
        factor = (
            ((m, depth, rows), (0, 1, depth)) if piece.last else ((m, rows, depth), (0, depth, 1))
        )
        for turn, view in enumerate(piece.columns):
            columns = self._view(self.columns, view)
            weights = self._view(self.matrix, (*factor, turn * rows * depth))
            a, b = (columns, weights) if piece.last else (weights, columns)
            if turn:
                products.accumulate(total, a, b)
            else:
                products.multiply(a, b, inner, total)
        for (sizes, strides, offset), values in piece.parts:
            target = self.out.as_strided(sizes, strides, place + offset)
            products.write(target, self._view(self.sums, values), None if adds else self.part)

    def fill(self, box: Box, start: int) -> None:
        """Puts the padded input of a box into the copy, by one copy of what is real."""
        plan, shape = self.plan, self.plan.shape
        window, strides = shape.window_sizes(windows.counts(box)), plan.copy_strides(box)
        spans = [shape.span(axis, part) for axis, part in enumerate(box)]
        pads = [(max(-a, 0), max(b - n, 0)) for (a, b), n in zip(spans, shape.size, strict=True)]
        is_padded = any(map(any, pads))
        if self.copy is None:
            zeros = is_padded or plan.channels != shape.channels
            self.copy, self.copy_wide = self._buffer(plan.copy_elems(plan.outer), zeros)
        elif is_padded and self.filled != (window, pads):
            self.copy.zero_()
        # Where the next box has its padding in the same places, it is there already.
        self.filled = window, pads
        sizes = (*(n - a - b for n, (a, b) in zip(window, pads, strict=True)), shape.channels)
        if min(sizes) > 0:
            at = sum(a * step for (a, _), step in zip(pads, strides, strict=True))
            into = self.copy.as_strided(sizes, (*strides, 1), at)
            given = self.given[2:]
            start += int(self.x.storage_offset())
            start += sum(max(a, 0) * step for (a, _), step in zip(spans, given, strict=True))
            _copy(into, self.x.as_strided(sizes, (*given, self.given[1]), start))


def _copy(into: torch.Tensor, source: torch.Tensor) -> None:
    """into.copy_(source), in elements of 16 or 8 bytes where both lie so."""
    for unit, dtype in _WIDER.items():
        if source.dtype is into.dtype and _lies_in(into, unit) and _lies_in(source, unit):
            into, source = into.view(dtype), source.view(dtype)
            break
    into.copy_(source)


def _lies_in(tensor: torch.Tensor, unit: int) -> bool:
    """Whether a tensor is one of elements of so many bytes, too."""
    *strides, last = tensor.stride()
    each = unit // tensor.element_size()
    if last != 1 or tensor.shape[-1] % each or tensor.data_ptr() % unit:
        return False
    return tensor.storage_offset() % each == 0 and not any(step % each for step in strides)
