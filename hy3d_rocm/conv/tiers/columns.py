"""The wide way of `gemm`: columns of the input in channels-last order, then one long product.

How columns are laid out is said in columns_plan.py. What a run does is a list of sizes, strides and
offsets (Steps), worked out once for a call: on small layers the host's time for starting operators
is what counts, and views are operators to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.columns_plan import Plan
from hy3d_rocm.conv.tiers.windows import Box, Range, Sizes

Ints = tuple[int, ...]
View = tuple[Ints, Ints, int]  # of Tensor.as_strided: sizes, strides, offset


@dataclass(frozen=True)
class Fill:
    """How the padded input of a box gets into its copy, (T, H, W, C): one copy of what is real.

    Offsets count from the copy's and the sample's first element. is_zeros: everything else is zero
    (else the padding is made by windows.fill). sizes: of the window. is_whole: nothing is padding;
    empty: everything is. wide: into and source in elements of a unit, where x allows it, too.
    """

    box: Box
    sizes: Sizes
    into: View
    source: View
    wide: tuple[View, View] | None
    is_zeros: bool
    is_whole: bool
    empty: bool


@dataclass(frozen=True)
class Piece:
    """A product: `counts` are the key of its Shape; source (in units) and place are offsets."""

    counts: Sizes
    source: int
    place: int


@dataclass(frozen=True)
class Shape:
    """What pieces of the same size share; into and source_strides are of elements of a unit.

    parts: of a product's sums the place and the sums, both as (rows, T, H, W...).
    """

    into: View
    source_strides: Ints
    columns: tuple[View, ...]  # one a turn
    total_size: Ints
    parts: tuple[tuple[View, View], ...]


@dataclass(frozen=True)
class Outer:
    """A box whose input lies in channels-last order: in the copy (fill), or in x itself."""

    fill: Fill | None
    pieces: tuple[Piece, ...]
    shapes: dict[Sizes, Shape]


@dataclass(frozen=True)
class Steps:
    """x, out: strides of (N, C, T, H, W). last: whether channels are adjacent in out. unit: bytes
    that gathers copy at a time."""

    plan: Plan
    x: Ints
    out: Ints
    last: bool
    outers: tuple[Outer, ...]
    unit: int

    @property
    def counts(self) -> set[tuple[Sizes, bool]]:
        """Sizes of pieces, and whether they are gathered from x itself: what shares its views."""
        return {(p.counts, outer.fill is None) for outer in self.outers for p in outer.pieces}


def make_steps(plan: Plan, x: Ints, out: Ints, itemsize: int, aligned: int) -> Steps:
    """x and out: strides of (N, C, T, H, W). itemsize: of the columns. aligned: bytes of x that may
    be copied at a time, as far as its address and type allow."""
    maker = _Maker(plan, x, out)
    elems = next(
        (unit // itemsize for unit in (16, 8) if maker.allows(unit // itemsize, aligned >= unit)), 1
    )
    maker.is_aligned = aligned >= elems * itemsize and maker.fits(elems)
    outers = tuple(maker.outer(box, elems) for box in maker.boxes)
    return Steps(plan, x, out, maker.last, outers, elems * itemsize)


class _Maker:
    def __init__(self, plan: Plan, x: Ints, out: Ints) -> None:
        self.plan, self.x, self.out = plan, x, out
        self.last = out[1] == 1 and plan.rows > 1
        self.boxes = tuple(windows.boxes(plan.shape.box, plan.outer))
        self.is_aligned = False  # whether x may be read in elements of a unit

    def _is_direct(self, box: Box) -> bool:
        """Whether the columns of a box are gathered from x itself."""
        plan = self.plan
        if not windows.is_inside(plan.shape, box) or plan.channels != plan.cin:
            return False
        return plan.copied == plan.channels or self.x[1] == 1 or plan.cin == 1

    def allows(self, elems: int, is_aligned: bool) -> bool:
        """Whether gathers may copy so many elements at a time."""
        if elems < 1 or self.plan.channels % elems:
            return False
        if not any(map(self._is_direct, self.boxes)):
            return True
        return is_aligned and self.fits(elems)

    def fits(self, elems: int) -> bool:
        """Whether x is a tensor of so many channels at a time."""
        strides = (self.x[0], *self.x[2:])
        return self.plan.cin % elems == 0 and self.x[1] == 1 and not any(s % elems for s in strides)

    def outer(self, box: Box, elems: int) -> Outer:
        plan, shape = self.plan, self.plan.shape
        spans = [shape.span(axis, part) for axis, part in enumerate(box)]
        if self._is_direct(box):
            fill, channel, strides = None, self.x[1], self.x[2:]
            origin = sum(a * s for (a, _), s in zip(spans, strides, strict=True))
        else:
            fill, channel, origin = self._fill(box, spans, elems), 1, 0
            strides = fill.into[1][:3]
        pieces: list[Piece] = []
        shapes: dict[Sizes, Shape] = {}
        for inner in windows.boxes(box, plan.inner):
            counts = windows.counts(inner)
            source = origin + sum(
                (inner[a][0] - box[a][0]) * shape.stride[a] * strides[a] for a in range(3)
            )
            place = sum(inner[a][0] * self.out[2 + a] for a in range(3))
            pieces.append(Piece(counts, source // elems, place))
            if counts not in shapes:
                shapes[counts] = self._shape(counts, channel, strides, elems, fill is not None)
        return Outer(fill, tuple(pieces), shapes)

    def _fill(self, box: Box, spans: list[Range], elems: int) -> Fill:
        plan, shape = self.plan, self.plan.shape
        window = shape.window_sizes(windows.counts(box))
        _, h, w = plan.copy_sizes(windows.counts(box))
        strides = (h * w * plan.channels, w * plan.channels, plan.channels, 1)
        real = [(max(a, 0), min(b, n)) for (a, b), n in zip(spans, shape.size, strict=True)]
        sizes = (*(b - a for a, b in real), plan.cin)
        starts = zip(real, spans, strides, strict=False)
        offset = sum((a - first) * step for (a, _), (first, _), step in starts)
        taken = (*self.x[2:], self.x[1])
        source = sum(a * step for (a, _), step in zip(real, taken, strict=False))
        padded = [mode for (a, b), n, mode in zip(spans, shape.size, shape.modes, strict=True)
                  if a < 0 or b > n]  # fmt: skip
        views = (sizes, strides, offset), (sizes, taken, source)
        wide = self.is_aligned and elems > 1
        return Fill(
            box, window, *views, (_wide(views[0], elems), _wide(views[1], elems)) if wide else None,
            all(mode == "zeros" for mode in padded), sizes[:3] == window, min(sizes) <= 0,
        )  # fmt: skip

    def _shape(
        self, counts: Sizes, channel: int, strides: Ints, elems: int, is_copy: bool
    ) -> Shape:
        """Columns are (plane, row, position, taps, channel)."""
        plan, shape = self.plan, self.plan.shape
        _, h, w = counts
        planes = plan.planes(counts)
        read = shape.window_sizes(counts)[2] if plan.free_width else w
        if plan.free_width and strides[1] >= plan.width * strides[2] and is_copy:
            read = plan.width
        kt = 1 if plan.turns > 1 else shape.kernel[0]
        kw, move = (1, 1) if plan.free_width else (shape.kernel[2], shape.stride[2])
        taps = [s * d for s, d in zip(strides, shape.dilation, strict=True)]
        sizes = (planes, h, read, kt, shape.kernel[1], kw, plan.channels)
        taken = (
            strides[0] * shape.stride[0],
            strides[1] * shape.stride[1],
            strides[2] * move,
            *taps,
        )
        line = plan.width * plan.copied
        given = (h * line, line, plan.copied, plan.copied // kt,
                 kw * plan.channels, plan.channels)  # fmt: skip
        wide = (*sizes[:-1], plan.channels // elems)
        into = (wide, (*(s // elems for s in given), 1), 0)
        source = (*(s // elems for s in taken), channel)
        # From the first tap of a turn to that of the next: kT frames.
        turns = tuple(
            self._columns(counts, kt * shape.dilation[0] * h * line) for kt in range(plan.turns)
        )
        count = plan.sums(counts)
        total = (count, plan.rows) if self.last else (plan.rows, count)
        return Shape(into, source, turns, (plan.phases, *total), tuple(self._parts(counts, count)))

    def _columns(self, counts: Sizes, offset: int) -> View:
        plan = self.plan
        m, count = plan.phases, plan.sums(counts)
        if self.last:
            return (m, count, plan.depth), (plan.step, m * plan.step, 1), offset
        return (m, plan.depth, count), (plan.step, 1, m * plan.step), offset

    def _parts(self, counts: Sizes, count: int) -> Iterator[tuple[View, View]]:
        """Whole groups of phases, and what is left of a row of the output."""
        (t, h, w), plan = counts, self.plan
        m, rows, groups = plan.phases, plan.rows, plan.line // plan.phases
        _, channel, *axes = self.out
        row, place = (1, rows) if self.last else (count, 1)
        lines = (row, h * groups * place, groups * place)
        whole, rest = divmod(w, m)
        outer = (channel, axes[0], axes[1])
        if whole:
            yield (
                ((rows, t, h, whole, m), (*outer, m * axes[2], axes[2]), 0),
                ((rows, t, h, whole, m), (*lines, place, count * rows), 0),
            )
        if rest:
            yield (
                ((rows, t, h, rest, 1), (*outer, axes[2], 1), whole * m * axes[2]),
                ((rows, t, h, rest, 1), (*lines, count * rows, 1), whole * place),
            )


def _wide(view: View, elems: int) -> View:
    """A view whose last dimension is contiguous, in so many elements at a time."""
    sizes, strides, offset = view
    return (
        (*sizes[:-1], sizes[-1] // elems),
        (*(s // elems for s in strides[:-1]), 1),
        offset // elems,
    )


# Elements in which so many bytes are copied at a time (a copy's cost is by element).
_WIDER = {16: torch.complex128, 8: torch.int64}


def run(
    plan: Plan, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """out = x * weight + bias. All are as the caller of the tier has them: of 4 or 5 dimensions."""
    work = products.work_dtype(spec.device, spec.dtype)
    aligned = _aligned(x) if x.dtype is work else 0
    noted = ("columns", x.stride(), aligned)
    chunks: list[tuple[int, Steps]] | None = spec.notes.get(noted)
    if chunks is None:
        chunks = spec.notes[noted] = list(_chunks(plan, x, out, work.itemsize, aligned))
    shape = plan.shape
    outputs = shape.cout // shape.groups
    buffers = _Buffers(chunks[0][1], x, work)
    addend = None if bias is None else bias.as_strided((outputs * shape.groups, 1, 1, 1, 1),
                                                       (bias.stride(0), 0, 0, 0, 0))  # fmt: skip
    for group in range(shape.groups):
        for first, steps in chunks:
            row, rows = group * outputs + first, steps.plan.rows
            matrix = _matrix(steps.plan, weight, row, work)
            part = addend
            if addend is not None and rows < shape.cout:
                part = addend[row : row + rows]
            one = _Run(steps, buffers, matrix, part, x, out)
            for n in range(shape.batch):
                one.sample(
                    int(x.storage_offset()) + n * steps.x[0] + group * plan.cin * steps.x[1],
                    n * steps.out[0] + row * steps.out[1],
                )
            del one, matrix  # before the next ones are made


def _chunks(
    plan: Plan, x: torch.Tensor, out: torch.Tensor, itemsize: int, aligned: int
) -> Iterator[tuple[int, Steps]]:
    """(first output channel of a group, steps) of what is done with one matrix."""
    shape = plan.shape
    given, made = _strides(x, shape.batch), _strides(out, shape.batch)
    known: dict[int, Steps] = {}
    for first, last in windows.cut(shape.cout // shape.groups, plan.rows):
        if last - first not in known:
            one = dataclasses.replace(plan, rows=last - first)
            known[last - first] = make_steps(one, given, made, itemsize, aligned)
        yield first, known[last - first]


def _strides(tensor: torch.Tensor, batch: int) -> Ints:
    """Of (N, C, T, H, W), where the samples of a batch of frames may be T (columns_plan.folded)."""
    n, c, *rest = tensor.stride()
    t, h, w = rest if len(rest) == 3 else (0, *rest)
    if tensor.shape[0] != batch:
        return 0, c, n, h, w
    sizes = tensor.shape if len(rest) == 3 else (*tensor.shape[:2], 1, *tensor.shape[2:])
    # What has one element has any stride: none is the most divisible one.
    return tuple(s if size > 1 else 0 for s, size in zip((n, c, t, h, w), sizes, strict=True))


def _aligned(x: torch.Tensor) -> int:
    """16, 8 or 0: the elements that x may be seen as."""
    start = x.data_ptr() | int(x.storage_offset()) * x.element_size()
    return next((unit for unit in (16, 8) if start % unit == 0), 0)


def _matrix(plan: Plan, weight: torch.Tensor, row: int, work: torch.dtype) -> torch.Tensor:
    """The weight (turns x rows x depth) of the rows, in the order of the columns, contiguous."""
    shape = plan.shape
    o, c, *rest = weight.stride()
    t, h, w = rest if len(rest) == 3 else (0, *rest)
    kt, kh, kw = shape.kernel
    turns, frames = (kt, 1) if plan.turns > 1 else (1, kt)
    sizes: Ints = (turns, plan.rows, frames, kh, kw, plan.cin)
    strides: Ints = (t, o, t, h, w, c)
    if plan.free_width:
        sizes = (turns, plan.rows, kw, frames, kh, plan.cin)
        strides = (t, o, w, t, h, c)
    start = weight.storage_offset() + row * o
    if plan.channels != plan.cin:
        held = (*sizes[:-1], plan.channels)
        matrix = torch.zeros(held, dtype=work, device=weight.device)
        matrix.narrow(-1, 0, plan.cin).copy_(weight.as_strided(sizes, strides, start))
    elif weight.dtype is work:
        matrix = torch.as_strided_copy(weight, sizes, strides, start)
    else:
        matrix = torch.empty(sizes, dtype=work, device=weight.device)
        matrix.copy_(weight.as_strided(sizes, strides, start))
    return matrix


class _Buffers:
    """The copy of the input and the columns, which all boxes use in turn."""

    def __init__(self, steps: Steps, x: torch.Tensor, work: torch.dtype) -> None:
        self.plan, self.work, self.device = steps.plan, work, x.device
        self.unit = steps.unit
        self.wide = _WIDER.get(self.unit, work)
        self.columns_wide, self.columns = self._empty(self.plan.column_elems(self.plan.inner))
        self.copy: torch.Tensor | None = None
        self.copy_wide: torch.Tensor | None = None
        self.filled: tuple[object, ...] | None = None
        self._x_wide: torch.Tensor | None = None

    def _empty(self, elems: int, zeros: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The same memory in elements of a unit and in elements."""
        make = torch.zeros if zeros else torch.empty
        count = -(-elems * self.work.itemsize // self.wide.itemsize)
        wide = make(count, dtype=self.wide, device=self.device)
        return wide, wide if self.wide is self.work else wide.view(self.work)

    def x_wide(self, x: torch.Tensor) -> torch.Tensor:
        """x in elements of a unit, for as_strided."""
        if self.wide is self.work:
            return x
        if self._x_wide is None:
            flat = x.as_strided((self.unit // x.element_size(),), (1,))
            self._x_wide = flat.view(self.wide)
        return self._x_wide

    def fill(self, fill: Fill, x: torch.Tensor, steps: Steps, start: int) -> torch.Tensor:
        """The copy in elements of a unit, with the padded input of a box."""
        clean = fill.is_zeros and not fill.is_whole
        if self.copy is None or self.copy_wide is None:
            zeros = clean or self.plan.channels != self.plan.cin
            self.copy_wide, self.copy = self._empty(self.plan.copy_elems(self.plan.outer), zeros)
        elif clean and self.filled != (fill.sizes, fill.into):
            self.copy.zero_()
        # Where the next box has its padding in the same places, it is there already.
        self.filled = (fill.sizes, fill.into) if fill.is_zeros else None
        if not fill.is_zeros:
            strides = (0, 1, *fill.into[1][:3])
            into = self.copy.as_strided((1, self.plan.cin, *fill.sizes), strides, 0)
            sizes = (1, self.plan.cin, *self.plan.shape.size)
            windows.fill(into, x.as_strided(sizes, steps.x, start), self.plan.shape, fill.box)
        elif fill.wide is not None and not fill.empty:
            into_view, (real, taken, offset) = fill.wide
            first = start * self.work.itemsize // self.unit
            source = self.x_wide(x).as_strided(real, taken, first + offset)
            self.copy_wide.as_strided(*into_view).copy_(source)
        elif not fill.empty:
            real, taken, offset = fill.source
            self.copy.as_strided(*fill.into).copy_(x.as_strided(real, taken, start + offset))
        return self.copy_wide


class _Views:
    """The tensors that pieces of one shape share: columns, sums, and how those are read."""

    def __init__(self, shape: Shape, steps: Steps, buffers: _Buffers, matrix: torch.Tensor) -> None:
        self.shape = shape
        plan = steps.plan
        self.into = buffers.columns_wide.as_strided(*shape.into)
        held = plan.rows * plan.depth
        self.factors: list[tuple[torch.Tensor, torch.Tensor]] = []
        for turn, view in enumerate(shape.columns):
            columns, m = buffers.columns.as_strided(*view), plan.phases
            if steps.last:
                sizes, strides = (m, plan.depth, plan.rows), (0, 1, plan.depth)
            else:
                sizes, strides = (m, plan.rows, plan.depth), (0, plan.depth, 1)
            weights = matrix.as_strided(sizes, strides, turn * held)
            self.factors.append((columns, weights) if steps.last else (weights, columns))
        self.total: torch.Tensor | None = None
        self.parts: list[torch.Tensor] = []


class _Run:
    """All boxes of a sample, for the output channels of one matrix."""

    def __init__(
        self, steps: Steps, buffers: _Buffers, matrix: torch.Tensor, bias: torch.Tensor | None,
        x: torch.Tensor, out: torch.Tensor,
    ) -> None:  # fmt: skip
        self.steps, self.buffers, self.matrix = steps, buffers, matrix
        self.x, self.out = x, out
        self.adds_bias = bias is not None and products.bias_is_in(x.device, x.dtype)
        self.bias = None if self.adds_bias else bias
        self.inner_bias: torch.Tensor | None = None
        if self.adds_bias and bias is not None:
            self.inner_bias = bias.view((1, 1, -1) if steps.last else (1, -1, 1))
        self.views: dict[tuple[Sizes, bool], _Views] = {}
        # Sums of one size are written to the same memory; of several, to memory of the largest.
        self.sums: torch.Tensor | None = None
        if len(steps.counts) > 1:
            dtype = products.sum_dtype(x.device, x.dtype)
            self.sums = torch.empty(
                steps.plan.sum_elems(steps.plan.inner), dtype=dtype, device=x.device
            )

    def sample(self, start: int, place: int) -> None:
        """start, place: offsets of the sample's first element in x and out."""
        for outer in self.steps.outers:
            if outer.fill is None:
                source, origin = self.buffers.x_wide(self.x), start
                origin //= self.buffers.unit // self.buffers.work.itemsize
            else:
                source, origin = self.buffers.fill(outer.fill, self.x, self.steps, start), 0
            for piece in outer.pieces:
                self._piece(outer, piece, source, origin, place)

    def _piece(
        self, outer: Outer, piece: Piece, source: torch.Tensor, origin: int, place: int
    ) -> None:
        shape = outer.shapes[piece.counts]
        key = (piece.counts, outer.fill is None)
        views = self.views.get(key)
        if views is None:
            views = self.views[key] = _Views(shape, self.steps, self.buffers, self.matrix)
        taken = source.as_strided(shape.into[0], shape.source_strides, origin + piece.source)
        views.into.copy_(taken)
        self._multiply(views)
        for ((sizes, strides, offset), _), values in zip(shape.parts, views.parts, strict=True):
            target = self.out.as_strided(sizes, strides, place + piece.place + offset)
            products.write(target, values, self.bias)

    def _multiply(self, views: _Views) -> None:
        """The sums of the columns, in views.total."""
        total = views.total
        if total is None and self.sums is not None:
            total = self.sums[: math.prod(views.shape.total_size)].view(views.shape.total_size)
        first, *others = views.factors
        total = products.multiply(*first, self.inner_bias, total)
        for a, b in others:
            products.accumulate(total, a, b)
        if views.total is None:
            views.total = total
            views.parts = [total.as_strided(*part) for _, part in views.shape.parts]
