"""A convolution as a list of launches; `make_steps` gives the same object for the same question.

Which kernels: `conv_points` for 1x1x1 on NCDHW; else `conv_rows` over rows, which are the input
itself or boxes of it that `to_rows` copies. Two forms go through a float32 workspace: sums in parts
(few positions, long sums) and, for very few outputs, the columns of the kernel as outputs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from hy3d_rocm.conv.problem import Problem, Triple
from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.jit import is_small
from hy3d_rocm.conv.triton.plan import Call, Launch, Layout, plain_strides, rows_strides


@dataclass(frozen=True)
class Target:
    """What launches depend on: "gfx1100" or "sm_90", compute units, whether TF32 serves for f32."""

    arch: str
    units: int
    tf32: bool = False


class Steps:
    """launches in order. Elements of the packed weight (0: it is read as it lies), of the rows and
    of the f32 sums, which share one workspace in this order.

    narrow: the weight is packed column by column. far: operands that reach beyond 2 GiB. calls: all
    launches ready to be called, by device and what of the addresses a compiled kernel depends on.
    config: instead of the guessed tile.
    """

    def __init__(
        self, p: Problem, layout: Layout, dtype: str, has_bias: bool, target: Target,
        config: Config | None = None, limit_bytes: int = plan.WORKSPACE_BYTES,
    ) -> None:  # fmt: skip
        self.p, self.layout, self.dtype, self.has_bias = p, layout, dtype, has_bias
        self.target, self.config = target, config
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        total = p.cout
        few = total * p.kernel[2] <= plan.NARROW
        self.narrow = p.is_flat and p.merged and p.kernel[2] > 1 and few
        #: Of the product of a tap: columns of the weight, elements
        self.outputs = p.outputs * p.kernel[2] if self.narrow else p.outputs
        self.length = p.row_channels if self.narrow else p.tap_length
        self.precision = configs.precision(target.arch, dtype, target.tf32)
        self.channels_last = layout.out[1] == 1 and total > 1
        strides = layout.weight or plain_strides(p)
        lies = plan.is_packed(p, self.narrow, strides) and layout.weight_aligned
        # An own copy is also below 2 GiB, whatever storage the weight is a part of.
        self.packing = () if lies else (plan.make_packing(p, self.narrow, strides),)
        self.packed_elems = 0 if lies else p.weight_bytes // p.itemsize
        self.rows_elems = self.sums_elems = 0
        self.chosen: dict[int, Config] = {}
        self.launches = tuple(self._launches(limit_bytes))
        rows = plan.whole_lines(self.packed_elems * p.itemsize)
        sums = rows + plan.whole_lines(self.rows_elems * p.itemsize)
        #: Bytes from the workspace's start to the rows and to the sums, and to its end
        self.offsets = rows, sums, sums + plan.whole_lines(self.sums_elems * 4)
        self.far = self._far()

    def _launches(self, limit_bytes: int) -> Iterator[Launch]:
        p = self.p
        # Three TF32 products split both operands; those of rows are split at less cost.
        if self.precision != "tf32x3" and plan.is_points(p, self.layout):
            yield from (*self.packing, self._points())
            return
        room = plan.rows_room(p, limit_bytes)
        if self.narrow:
            sums, row = 4 * p.outputs * p.kernel[2], p.row_channels * p.itemsize
            room = min(room * row // (row + sums), plan.SPLIT_BYTES // sums * row)
        made = plan.make_plan(p, plan.is_rows(p, self.layout), room, self._tiling())
        self.rows_elems = made.workspace_bytes // p.itemsize
        if made.direct:
            yield from (*self.packing, *self._direct(made))
        else:
            yield from self._boxes(made)

    def _far(self) -> frozenset[str]:
        p, layout = self.p, self.layout
        total = p.cout
        sides = {
            "x": ((p.batch, p.cin, *p.size), layout.x),
            "out": ((p.batch, total, *p.out), layout.out),
            "unpacked": ((total, p.channels, *p.kernel), layout.weight or plain_strides(p)),
            "bias": ((total,), (1,)),
        }
        sizes = {  # from the first to the last of each tensor that the call comes with
            name: (sum((n - 1) * s for n, s in zip(many, strides, strict=True)) + 1) * p.itemsize
            for name, (many, strides) in sides.items()
        }
        sizes |= dict.fromkeys(("rows", "sums"), self.offsets[-1])
        sizes["weight"] = self.offsets[-1] if self.packing else sizes["unpacked"]
        if not self.has_bias:
            sizes["bias"] = sizes["weight"]
        return frozenset(name for name, size in sizes.items() if not is_small(size))

    def _tiling(self) -> plan.Tiling:
        """What a box of the plan is cut into: the tile of all positions at once, while boxes have
        no size yet. It only weighs box sizes against each other; `_conv` chooses what is launched.
        """
        p = self.p
        c = self._choose(p.batch * p.out[0] * p.padded[1] * p.padded[2])
        return plan.Tiling(c.block_p, -(-self.outputs // c.block_n) * p.groups, self.target.units)

    def _direct(self, made: plan.Plan) -> Iterator[Launch]:
        p = self.p
        if not self.narrow:
            yield from self._conv("x", 0, p.batch, p.size, p.out, 0)
            return
        out, (_, high, wide) = self.layout.out, p.size
        fit = plan.SPLIT_BYTES // (4 * wide * p.outputs * p.kernel[2])  # lines whose sums fit
        lines = min(p.out[1], max(1, fit))
        frames = max(1, fit // high)
        parts = itertools.product(
            range(p.batch), range(0, p.out[0], frames), range(0, p.out[1], lines)
        )
        for n, t0, h0 in parts:
            count, tall = min(frames, p.out[0] - t0), min(lines, p.out[1] - h0)
            size = (count + p.dilation[0] * (p.kernel[0] - 1), high, wide)
            start = (((n * p.size[0] + t0) * high) + h0) * wide * p.row_channels
            at = n * out[0] + t0 * out[2] + h0 * out[3]
            yield from self._conv("x", start, 1, size, (count, tall, p.out[2]), at)

    def _boxes(self, made: plan.Plan) -> Iterator[Launch]:
        p, out = self.p, self.layout.out
        for number, box in enumerate(made.boxes()):
            frames, lines = box.lines(p)
            yield self._fill(box, frames, lines, () if number else self.packing)
            at = box.n * out[0] + box.t0 * out[2] + box.h0 * out[3]
            out_size = (box.t1 - box.t0, box.h1 - box.h0, p.out[2])
            yield from self._conv("rows", 0, 1, (frames, lines, p.padded[2]), out_size, at)

    def _fill(self, box: plan.Box, frames: int, lines: int, pack: Sequence[Launch]) -> Launch:
        """Copies the box's padded input into rows, and packs the weight beside."""
        p, x = self.p, self.layout.x
        wide = p.padded[2]
        # Positions along w and channels of one program.
        block_c = next((n for n in (16, 32, 64) if n >= p.row_channels), 128)
        block_w = (2048 if x[1] == 1 else 4096) // block_c
        whole = p.row_channels == p.cin
        vector = 8 if x[1] == 1 and whole and all(s % 8 == 0 for s in (x[0], *x[2:])) else 1
        programs = frames * lines * -(-wide // block_w) * -(-p.row_channels // block_c)
        origin = (
            box.t0 * p.stride[0] - p.pad_before[0], box.h0 * p.stride[1] - p.pad_before[1],
            -p.pad_before[2],
        )  # fmt: skip
        operands = (("x", box.n * x[0]), ("rows", 0))
        numbers = (
            p.cin, p.row_channels // 8, *p.size, lines, wide, *origin,
            x[1], *(s // vector for s in x[2:]),
        )  # fmt: skip
        constants = (p.is_padded, x[4] == 1, vector, block_w, block_c)
        if not pack:
            return Launch("to_rows", (programs, 1, 1), operands, numbers, constants, 4, 1)
        return Launch(
            "to_rows_and_pack", (programs + pack[0].grid[0], 1, 1),
            (*operands, *pack[0].operands), (programs, *numbers, *pack[0].numbers),
            (*constants, *pack[0].constants), 4, 1,
        )  # fmt: skip

    def _conv(
        self, source: str, start: int, batch: int, size: Triple, out_size: Triple, at: int
    ) -> Iterator[Launch]:
        """Launches over rows of `size` (t, h, w) from `start` on, for out[at:] of out_size."""
        p, (to, ho, wo), total = self.p, out_size, self.p.cout
        if self.narrow:
            columns, wide = total * p.kernel[2], (to, ho, size[2])
            rows = self._positions(batch, size, wide)
            self.sums_elems = max(self.sums_elems, rows * columns)
            strides = (*rows_strides(size, columns), 0)
            config = self._choose(rows)
            yield self._rows(config, source, start, batch, size, wide, "sums", 0, strides, 1)
            yield self._columns(size, out_size, batch, at)
            return
        stored = batch * to * ho * wo
        positions = self._positions(batch, size, out_size)
        config = self._choose(positions)
        tiles = -(-positions // config.block_p)
        tiles *= -(-p.outputs // config.block_n) * p.groups
        steps = p.taps * -(-p.tap_length // config.block_k)
        parts = plan.splits(tiles, steps, total, stored, self.target.units)
        per = -(-steps // parts)
        parts = -(-steps // per)
        if parts == 1:
            strides = (*self.layout.out, 0)
            yield self._rows(config, source, start, batch, size, out_size, "out", at, strides, 1)
            return
        self.sums_elems = max(self.sums_elems, parts * stored * total)
        strides = (*rows_strides(out_size, total), stored * total)
        yield self._rows(config, source, start, batch, size, out_size, "sums", 0, strides, parts)
        block_p, block_n = 32, 64
        yield Launch(
            "add_splits", (-(-stored // block_p), -(-total // block_n), 1),
            (("sums", 0), ("bias", 0), ("out", at)),
            (stored, total, wo, ho, to, *self.layout.out, stored * total, parts),
            (self.has_bias, block_p, block_n), 4, 1,
        )  # fmt: skip

    def _positions(self, batch: int, size: Triple, out_size: Triple) -> int:
        """Positions that conv_rows goes over."""
        (ti, hi, wi), (to, ho, wo) = size, out_size
        if self.p.is_flat:
            return (((batch - 1) * ti + to - 1) * hi + ho - 1) * wi + wo
        return batch * to * ho * wo

    def _choose(self, positions: int) -> Config:
        """The tile for boxes of `positions`: the same for all boxes of a size."""
        p, units = self.p, self.target.units

        def parts(config: Config, tiles: int) -> int:
            steps = p.taps * -(-p.tap_length // config.block_k)
            return plan.splits(tiles * p.groups, steps, p.cout, positions, units)

        if positions not in self.chosen:
            every = configs.offered(self.target.arch, self.dtype)
            self.chosen[positions] = self.config or configs.ranked(
                every, positions, self.outputs, self.length, units, p.taps,
                None if self.narrow else parts,
            )[0]  # fmt: skip
        return self.chosen[positions]

    def _rows(
        self, c: Config, source: str, start: int, batch: int, size: Triple, out_size: Triple,
        target: str, at: int, strides: tuple[int, ...], parts: int,
    ) -> Launch:  # fmt: skip
        """conv_rows with the tile c, which is what `parts` was counted with."""
        p, (ti, hi, wi), (to, ho, wo) = self.p, size, out_size
        narrow, split, outputs, length = self.narrow, target == "sums", self.outputs, self.length
        positions = self._positions(batch, size, out_size)
        chunks = -(-length // c.block_k)
        per = -(-p.taps * chunks // parts)
        vector = 8 if outputs % 8 == 0 and not narrow else 1
        last = split or self.channels_last
        if last:
            strides = tuple(s if k == 1 else s // vector for k, s in enumerate(strides))
        return Launch(
            "conv_rows",
            (-(-positions // c.block_p) * -(-outputs // c.block_n), p.groups, parts),
            ((source, start), ("weight", 0), ("bias", 0), (target, at)),
            (
                positions, outputs // vector, p.row_channels // 8, length // 8, wo, ho, to,
                wi, hi, ti, p.stride[2], p.stride[1], p.stride[0],
                p.dilation[0] * hi * wi, p.dilation[1] * wi, p.dilation[2], *strides, per, p.taps,
            ),
            (
                chunks, p.kernel[1], 1 if p.merged else p.kernel[2],
                length % c.block_k == 0, p.is_flat,
                self.has_bias and not split, last, vector, split and not narrow, p.groups > 1,
                self.precision, c.block_p, c.block_n, c.block_k, c.group,
            ),
            c.num_warps, c.num_stages,
        )  # fmt: skip

    def _columns(self, size: Triple, out_size: Triple, batch: int, at: int) -> Launch:
        """out from the columns that a narrow convolution left in the workspace."""
        p, (ti, hi, wi), (to, ho, wo) = self.p, size, out_size
        stored, block_p = batch * to * ho * wo, 256
        block_n = 1 << (p.outputs - 1).bit_length()
        return Launch(
            "add_columns", (-(-stored // block_p), 1, 1), (("sums", 0), ("bias", 0), ("out", at)),
            (stored, p.outputs, wo, ho, to, wi, hi, ti, *self.layout.out, p.kernel[2]),
            (self.has_bias, block_p, block_n), 4, 1,
        )  # fmt: skip

    def _points(self) -> Launch:
        p, x, out = self.p, self.layout.x, self.layout.out
        points = p.size[0] * p.size[1] * p.size[2]
        every = configs.offered(self.target.arch, self.dtype)
        c = self.config
        if c is None or c.is_in_two:
            c = configs.ranked_points(every, p.outputs, p.channels)[0]
        return Launch(
            "conv_points", (-(-points // c.block_p) * -(-p.outputs // c.block_n), p.batch, 1),
            (("x", 0), ("weight", 0), ("bias", 0), ("out", 0)),
            (
                points // 8, p.outputs, p.channels // 8,
                x[0] // 8, x[1] // 8, out[0] // 8, out[1] // 8,
            ),
            (
                p.channels % c.block_k == 0, self.has_bias, 8, self.precision,
                c.block_p, c.block_n, c.block_k, c.group,
            ),
            c.num_warps, c.num_stages,
        )  # fmt: skip


make_steps = functools.lru_cache(maxsize=1024)(Steps)
