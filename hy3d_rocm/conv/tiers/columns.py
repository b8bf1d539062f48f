"""The wide way of `gemm`: columns of the input in channels-last order, then one long product.

In channels-last order the kW taps of a row lie next to each other, so a matrix whose rows start
one position apart, and overlap, holds all of them without a copy. BLAS wants rows that don't
overlap: every m-th position (m = ceil(kW / stride)) makes such a matrix, and the m of them are one
batched product. Only the kH taps (and kT, where that is cheaper than adding products up) are
copied: 3 or 9 times the input instead of 27, for one box of the output at a time.
"""

from __future__ import annotations

import torch

from hy3d_rocm.conv.tiers import columns_plan, products, windows
from hy3d_rocm.conv.tiers.columns_plan import Plan
from hy3d_rocm.conv.tiers.windows import Box

# 16 bytes at a time are copied where everything is a multiple of them, else 8, else one by one.
_WIDER = ((16, torch.complex128), (8, torch.int64))


class Columns:
    """One run of a plan. x and out are (N, C, T, H, W), weight (Cout, C / groups, kT, kH, kW).

    It owns the buffers, which all boxes use in turn.
    """

    def __init__(self, plan: Plan, x: torch.Tensor, out: torch.Tensor) -> None:
        self.plan, self.x, self.out = plan, x, out
        self.work = products.work_dtype(x.device, x.dtype)
        self.columns = torch.empty(self._column_elems(), dtype=self.work, device=x.device)
        self.copy: torch.Tensor | None = None

    def _column_elems(self) -> int:
        """The last rows of the overlapping matrix reach past the last position, and those that
        round their number up lie past it: slack for them, never written, never stored."""
        plan = self.plan
        slack = plan.phases * columns_plan.ALIGNED * plan.step + plan.depth
        return self._positions(plan.inner) * plan.copied + slack

    def _positions(self, steps: tuple[int, int, int]) -> int:
        t, h, _ = steps
        planes = self.plan.shape.window_sizes((t, h, 1))[0] if self.plan.turns > 1 else t
        return planes * h * self.plan.width

    def run(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        plan, shape = self.plan, self.plan.shape
        outputs = shape.cout // shape.groups
        for group in range(shape.groups):
            for first, last in windows.cut(outputs, plan.rows):
                rows = slice(group * outputs + first, group * outputs + last)
                matrix = self._matrix(weight[rows])
                addend = None if bias is None else bias[rows]
                channels = slice(group * plan.cin, (group + 1) * plan.cin)
                for n in range(shape.batch):
                    x, out = self.x[n : n + 1, channels], self.out[n, rows]
                    for outer in windows.boxes(shape.box, plan.outer):
                        self._run_outer(x, out, outer, matrix, addend)

    def _matrix(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as (turns, rows, depth), in the order of the columns."""
        order = [0, 4, 2, 3, 1] if self.plan.free_width else [0, 2, 3, 4, 1]
        if self.plan.turns > 1:  # kT comes first then, as a batch
            order.remove(2)
            order.insert(0, 2)
        view = weight.permute(order)
        matrix = torch.empty(view.shape, dtype=self.work, device=weight.device).copy_(view)
        return matrix.view(self.plan.turns, weight.shape[0], self.plan.depth)

    def _run_outer(
        self, x: torch.Tensor, out: torch.Tensor, outer: Box, matrix: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:  # fmt: skip
        source = self._source(x, outer)
        for inner in windows.boxes(outer, self.plan.inner):
            self._gather(source, outer, inner)
            result = self._product(matrix, inner, bias)
            place = windows.target(out.unsqueeze(0), inner)[0]
            if bias is None or products.bias_is_in(x.device, x.dtype):
                _write(place, result, None)
            else:
                _write(place, result, bias.to(result.dtype))
            del result

    def _source(self, x: torch.Tensor, outer: Box) -> torch.Tensor:
        """(C, T, H, W): the padded input of a box, its channels adjacent."""
        plan, shape = self.plan, self.plan.shape
        one_tap = plan.copied == plan.cin
        if windows.is_inside(shape, outer) and (x.stride(1) == 1 or one_tap):
            return windows.window(x, shape, outer)[0]
        counts = tuple(b - a for a, b in outer)
        t, h, w = shape.window_sizes((counts[0], counts[1], counts[2]))
        if self.copy is None:
            most = shape.window_sizes(plan.outer)
            elems = most[0] * most[1] * most[2] * plan.cin
            self.copy = torch.empty(elems, dtype=self.work, device=x.device)
        copy = self.copy[: t * h * w * plan.cin].view(1, t, h, w, plan.cin).permute(0, 4, 1, 2, 3)
        windows.fill(copy, x, shape, outer)
        return copy[0]

    def _gather(self, source: torch.Tensor, outer: Box, inner: Box) -> None:
        """Copies the taps of a box to its columns: (plane, row, position, taps, channel)."""
        plan, shape = self.plan, self.plan.shape
        t, h, w = (b - a for a, b in inner)
        channel, *strides = source.stride()
        start = source.storage_offset() + sum(
            (inner[a][0] - outer[a][0]) * shape.stride[a] * strides[a] for a in range(3)
        )
        planes = shape.window_sizes((t, h, w))[0] if plan.turns > 1 else t
        read = shape.window_sizes((t, h, w))[2] if plan.free_width else w
        kt = 1 if plan.turns > 1 else shape.kernel[0]
        kw, move = (1, 1) if plan.free_width else (shape.kernel[2], shape.stride[2])
        spread = [s * d for s, d in zip(strides, shape.dilation, strict=True)]
        view = source.as_strided(
            (planes, h, read, kt, shape.kernel[1], kw, plan.cin),
            (strides[0] * shape.stride[0], strides[1] * shape.stride[1], strides[2] * move, *spread,
             channel),
            start,
        )  # fmt: skip
        into = self.columns[: planes * h * plan.width * plan.copied]
        into = into.view(planes, h, plan.width, kt, shape.kernel[1], kw, plan.cin)[:, :, :read]
        _copy_wide(into, view)

    def _product(self, matrix: torch.Tensor, inner: Box, bias: torch.Tensor | None) -> torch.Tensor:
        """The sums of a box, as a view (rows, T, H, positions / phases, phases)."""
        plan, shape = self.plan, self.plan.shape
        t, h, _ = (b - a for a, b in inner)
        m, rows, groups = plan.phases, matrix.shape[1], plan.line // plan.phases
        last = self.out.stride(1) == 1 and rows > 1
        count = plan.sums(t, h)
        total: torch.Tensor | None = None
        for turn in range(plan.turns):
            offset = turn * shape.dilation[0] * h * plan.width * plan.copied
            columns = self.columns.as_strided(
                (m, count, plan.depth), (plan.step, m * plan.step, 1), offset
            )
            a, b = matrix[turn].expand(m, -1, -1), columns.transpose(1, 2)
            if last:
                a, b = columns, a.transpose(1, 2)
            if total is None:
                addend = None if bias is None else bias.view((1, 1, -1) if last else (1, -1, 1))
                total = products.multiply(a, b, addend)
            else:
                products.accumulate(total, a, b)
        assert total is not None
        row, place = (1, rows) if last else (count, 1)
        strides = (row, place * h * groups, place * groups, place, count * rows)
        return total.as_strided((rows, t, h, groups, m), strides)


def _copy_wide(into: torch.Tensor, view: torch.Tensor) -> None:
    """into.copy_(view), in the largest elements that both allow (a copy's cost is by element)."""
    unit = into.element_size()
    steps: list[int] = [into.shape[-1], *into.stride()[:-1], *view.stride()[:-1]]
    if into.dtype is view.dtype and into.stride(-1) == view.stride(-1) == 1:
        for wide, dtype in _WIDER:
            aligned = all(t.data_ptr() % wide == 0 for t in (into, view))
            if wide > unit and aligned and all(s * unit % wide == 0 for s in steps):
                into, view = into.view(dtype), view.view(dtype)
                break
    into.copy_(view)


def _write(place: torch.Tensor, result: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Writes (rows, T, H, W) from (rows, T, H, positions / phases, phases), rounding once."""
    width, phases = place.shape[-1], result.shape[-1]
    whole = width // phases
    parts = []
    if whole:
        block = place[..., : whole * phases]
        block = block.view(*block.shape[:-1], whole, phases)
        parts.append((block, result[..., :whole, :]))
    if width > whole * phases:
        parts.append((place[..., whole * phases :], result[..., whole, : width - whole * phases]))
    for into, values in parts:
        if bias is None:
            into.copy_(values)
        else:
            torch.add(values, bias.view(-1, *(1,) * (values.dim() - 1)), out=into)
