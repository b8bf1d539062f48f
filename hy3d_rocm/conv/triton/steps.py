"""A convolution of the tier as a list of launches; `make_steps` gives the same object for the same
question.

Which kernels: `conv_points` for 1x1x1 on NCDHW; else those of a `Work` for each sample. The weight
is packed beside the first rows, or before all else.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import replace

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.plan import Call, Launch, Layout, plain_strides
from hy3d_rocm.conv.triton.work import Job, Piece, Target, Work, view_of


class Steps:
    """launches in order. Elements of the packed weight (0: it is read as it lies), of the rows and
    of the f32 sums, which share one workspace in this order.

    view: of a sample. tiles: that were chosen, each once. is_uneven: torch has to pack the weight.
    calls: all launches ready to be called, by device and what of the addresses a compiled kernel
    depends on.
    """

    def __init__(
        self, p: Problem, layout: Layout, dtype: str, has_bias: bool, target: Target,
        limit_bytes: int = plan.WORKSPACE_BYTES,
    ) -> None:  # fmt: skip
        p, layout = _folded(p, layout)
        self.p, self.layout, self.target = p, layout, target
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        frames, *size = p.size
        piece = Piece(frames, plan.strides_of((p.cin, *p.size), layout.x[1:]), layout.aligned)
        job = Job(
            dtype, p.channels, p.outputs, p.kernel, (size[0], size[1]), (piece,), 0, frames,
            (0, p.out[0]), p.pad_before, p.pad_after, stride=p.stride, dilation=p.dilation,
            groups=p.groups, bias=has_bias, sums=True,
        )  # fmt: skip
        self.view = view_of(job)
        strides, narrow = layout.weight or plain_strides(p), self.view.is_narrow
        lies = plan.is_packed(p, narrow, strides) and layout.weight_aligned
        # An own copy is also below 2 GiB, whatever storage the weight is a part of.
        self.packed_elems = 0 if lies else p.weight_bytes // p.itemsize
        packing = None if lies else plan.make_packing(p, narrow, strides)
        self.is_uneven = packing is None and not lies
        self.rows_elems = self.sums_elems = 0
        # Three TF32 products split both operands; those of rows are split at less cost.
        in_three = configs.precision(target.arch, dtype, target.tf32) == "tf32x3"
        if not in_three and plan.is_points(p, layout):
            self.tiles, item = self._points(dtype, has_bias)
            launches = [item]
        else:
            room = target._replace(rows_bytes=plan.rows_room(p, limit_bytes))
            made = Work(job, room, plan.strides_of((p.cout, *p.out), layout.out[1:]))
            self.rows_elems, self.sums_elems = made.rows_elems, made.sums_elems
            self.tiles = tuple(dict.fromkeys(product.tile for product in made.products))
            launches = [self._of(n, item) for n in range(p.batch) for item in made.launches]
        if packing is not None and launches[0].kernel == "load_rows":
            launches[0] = plan.with_weight(launches[0], packing)
        elif packing is not None:
            launches.insert(0, packing)
        self.launches = tuple(launches)
        rows = plan.whole_lines(self.packed_elems * p.itemsize)
        sums = rows + plan.whole_lines(self.rows_elems * p.itemsize)
        #: Bytes from the workspace's start to the rows and to the sums, and to its end
        self.offsets = rows, sums, sums + plan.whole_lines(self.sums_elems * 4)

    def _of(self, n: int, item: Launch) -> Launch:
        """The launch for sample n, of that for the first."""
        step = {"x0": n * self.layout.x[0], "out": n * self.layout.out[0]}
        operands = tuple((name, at + step.get(name, 0)) for name, at in item.operands)
        return replace(item, operands=operands)

    def _points(self, dtype: str, has_bias: bool) -> tuple[tuple[Config, ...], Launch]:
        p, x, out = self.p, self.layout.x, self.layout.out
        points = p.size[0] * p.size[1] * p.size[2]
        c = self.target.tile
        if c is None or c.is_in_two:
            every = configs.offered(self.target.arch, dtype)
            c = configs.ranked_points(every, p.outputs, p.channels)[0]
        return (c,), Launch(
            "conv_points", (-(-points // c.block_p) * -(-p.outputs // c.block_n), p.batch, 1),
            (("x0", 0), ("weight", 0), ("bias" if has_bias else "weight", 0), ("out", 0)),
            (
                points // 8, p.outputs, p.channels // 8,
                x[0] // 8, x[1] // 8, out[0] // 8, out[1] // 8,
            ),
            (
                p.channels % c.block_k == 0, has_bias, 8,
                configs.precision(self.target.arch, dtype, self.target.tf32),
                c.block_p, c.block_n, c.block_k, c.group,
            ),
            c.num_warps, c.num_stages,
        )  # fmt: skip


def _folded(p: Problem, layout: Layout) -> tuple[Problem, Layout]:
    """Samples as frames of one, where frames are made one by one and samples follow each other."""
    single = p.kernel[0] == p.stride[0] == 1 and p.padded[0] == p.size[0]
    if p.batch == 1 or not single or any(s[0] != p.size[0] * s[2] for s in (layout.x, layout.out)):
        return p, layout
    return replace(p, batch=1, size=(p.batch * p.size[0], *p.size[1:])), layout


make_steps = functools.lru_cache(maxsize=1024)(Steps)
