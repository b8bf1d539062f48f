"""What a run of a plan does, worked out once for the strides of a call: sizes, strides, offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hy3d_rocm.conv.tiers import windows
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
class Part:
    """A part of a product's sums and the place for it, whose sizes are (rows, T, H, W...)."""

    place: View
    total: View


@dataclass(frozen=True)
class Shape:
    """What pieces of the same size share; into and source_strides are of elements of a unit."""

    into: View
    source_strides: Ints
    columns: tuple[View, ...]  # one a turn
    total_size: Ints
    parts: tuple[Part, ...]


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
        if plan.flat or not windows.is_inside(plan.shape, box) or plan.channels != plan.cin:
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
            counts = _counts(inner)
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
        window = shape.window_sizes(_counts(box))
        _, h, w = plan.copy_sizes(_counts(box))
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
        turns = tuple(
            self._columns(counts, offset * line) for offset in self._turns(plan.lines(counts))
        )
        count = plan.sums(counts)
        total = (count, plan.rows) if self.last else (plan.rows, count)
        return Shape(into, source, turns, (plan.phases, *total), tuple(self._parts(counts, count)))

    def _turns(self, lines: int) -> Iterator[int]:
        """Lines from the first tap of the first turn to that of each."""
        plan, (frame, row, _) = self.plan, self.plan.shape.dilation
        for kt in range(plan.shape.kernel[0] if plan.turns > 1 else 1):
            for kh in range(plan.shape.kernel[1] if plan.flat else 1):
                yield kt * frame * lines + kh * row

    def _columns(self, counts: Sizes, offset: int) -> View:
        plan = self.plan
        m, count = plan.phases, plan.sums(counts)
        if self.last:
            return (m, count, plan.depth), (plan.step, m * plan.step, 1), offset
        return (m, plan.depth, count), (plan.step, 1, m * plan.step), offset

    def _parts(self, counts: Sizes, count: int) -> Iterator[Part]:
        """Whole groups of phases, and what is left of a row of the output."""
        (t, h, w), plan = counts, self.plan
        m, rows, groups = plan.phases, plan.rows, plan.line // plan.phases
        _, channel, *axes = self.out
        row, place = (1, rows) if self.last else (count, 1)
        lines = (row, plan.lines(counts) * groups * place, groups * place)
        whole, rest = divmod(w, m)
        outer = (channel, axes[0], axes[1])
        if whole:
            yield Part(
                ((rows, t, h, whole, m), (*outer, m * axes[2], axes[2]), 0),
                ((rows, t, h, whole, m), (*lines, place, count * rows), 0),
            )
        if rest:
            yield Part(
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


def _counts(box: Box) -> Sizes:
    (t0, t1), (h0, h1), (w0, w1) = box
    return t1 - t0, h1 - h0, w1 - w0
