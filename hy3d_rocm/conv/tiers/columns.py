"""The wide way of `gemm`: columns of the input in channels-last order, then one long product.

How columns are laid out is said in columns_plan.py. What a run does is a list of sizes, strides and
offsets (columns_steps.py), worked out once for a call: on small layers the host's time for starting
operators is what counts, and views are operators to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.columns_plan import Plan
from hy3d_rocm.conv.tiers.columns_steps import Fill, Ints, Outer, Piece, Shape, Steps, make_steps
from hy3d_rocm.conv.tiers.windows import Sizes

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
    if plan.flat:
        sizes, strides = (kt, kh, plan.rows, kw, plan.cin), (t, h, o, w, c)
    elif plan.free_width:
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
        self.columns_wide: torch.Tensor | None = None
        self.columns: torch.Tensor | None = None
        if not self.plan.flat:
            self.columns_wide, self.columns = self._empty(self.plan.column_elems())
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
            self.copy_wide, self.copy = self._empty(self.plan.copy_elems(), zeros)
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
        self.into: torch.Tensor | None = None
        if buffers.columns_wide is not None:
            self.into = buffers.columns_wide.as_strided(*shape.into)
        held_in = buffers.copy if plan.flat else buffers.columns
        assert held_in is not None
        held = plan.rows * plan.depth
        self.factors: list[tuple[torch.Tensor, torch.Tensor]] = []
        for turn, view in enumerate(shape.columns):
            columns, m = held_in.as_strided(*view), plan.phases
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
            self.sums = torch.empty(steps.plan.sum_elems(), dtype=dtype, device=x.device)

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
        if views.into is not None:
            taken = source.as_strided(shape.into[0], shape.source_strides, origin + piece.source)
            views.into.copy_(taken)
        self._multiply(views)
        for part, values in zip(shape.parts, views.parts, strict=True):
            sizes, strides, offset = part.place
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
            views.parts = [total.as_strided(*part.total) for part in views.shape.parts]
