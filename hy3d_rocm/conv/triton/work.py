"""The launches of one convolution, of the fused decode and of the tier. Pure integers: no torch, no
triton.

A `Job` says what is asked; its `View` how the kernels see it: a video of rows (up-sampled where it
has to be, padded), a kernel over them, phases of the output. Rows are the input itself, or boxes of
it that `load_rows` makes. Two forms go through a float32 workspace, for the tier alone: sums in
parts (few positions, long sums) and, for very few outputs, the columns of the kernel as outputs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from hy3d_rocm.conv.problem import Problem, Triple
from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config, Kind, Measured
from hy3d_rocm.conv.triton.plan import ROW_LIMIT, Box, Call, Launch, Strides, Tiling

Range = tuple[int, int]
ONES: Triple = (1, 1, 1)
ITEMSIZE = {"f16": 2, "bf16": 2, "f32": 4}
# Bytes of the rows of a box. Larger ones mean fewer launches, and less that two boxes both load;
# the rows need not stay in a cache, since a tile's taps follow each other closely. On an NVIDIA
# H200 (50 MB of L2) HunyuanVideo and Wan took 0.481 and 0.394 s with 40 MB, 0.457 and 0.371 with
# 160, 0.455 and 0.344 with 640 (tests/bench/bench_decode_gpu.py --only boxes). The least budget
# grows by what is added here.
ROWS_BYTES = 160 << 20
# Fewer channels than this a phase would waste the matrix units: such are shuffled by a copy.
FEWEST_SHUFFLED = 16


class Piece(NamedTuple):
    """A tensor of the source."""

    frames: int
    strides: Strides  # 0 along an axis of one
    aligned: bool  # it starts at a multiple of 16 bytes


class Job(NamedTuple):
    """What is asked. channels, outputs: of one group. shuffle: factor of channels to (T, H, W).

    norm: "", "rms", "l2" or "layer"; affine: whether factor and summand follow it, or stand for it.
    size: height and width of the source; first, total, frames as in TorchBackend.convolve. sums:
    whether float32 sums may go through a workspace, which only a plain convolution's may.
    """

    dtype: str
    channels: int
    outputs: int
    kernel: Triple
    size: tuple[int, int]
    pieces: tuple[Piece, ...]
    first: int
    total: int | None
    frames: Range
    before: Triple = (0, 0, 0)
    after: Triple = (0, 0, 0)
    replicate: tuple[bool, bool, bool] = (False, False, False)
    stride: Triple = ONES
    dilation: Triple = ONES
    groups: int = 1
    up: Triple = ONES
    keep_first: bool = False
    shuffle: Triple = ONES
    norm: str = ""
    eps: float = 0.0
    affine: bool = False
    silu: bool = False
    bias: bool = False
    add: bool = False
    moments: bool = False
    sums: bool = False

    @property
    def row_channels(self) -> int:
        """Channels of a row: a multiple of 8, so that 16-byte loads of half types fit."""
        return -(-self.channels * self.groups // 8) * 8

    @property
    def end(self) -> int:
        """One past the last frame that is there."""
        return self.first + sum(piece.frames for piece in self.pieces)

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (
            ((n * self.up[axis] + self.before[axis] + self.after[axis]
              - self.dilation[axis] * (self.kernel[axis] - 1) - 1)
             // self.stride[axis] + 1) * self.shuffle[axis]
            for axis, n in zip((1, 2), self.size, strict=True)
        )  # fmt: skip
        return height, width

    @property
    def out_frames(self) -> int:
        return (self.frames[1] - self.frames[0]) * self.shuffle[0]

    @property
    def folds(self) -> tuple[bool, bool]:
        """Whether up-sampling in time, and in space, is done by sums of weights.

        Of three taps over pairs of equal inputs two always meet the same one. At each side of rows
        and columns one is padded, or the first copy is cropped: the result begins and ends with
        whole pairs.
        """
        plain = self.stride == ONES and self.shuffle == ONES
        space = plain and self.up[1:] == (2, 2) and self.kernel[1:] == (3, 3)
        space = space and all(abs(n) == 1 for n in (*self.before[1:], *self.after[1:]))
        time = space and self.up[0] == 2 and self.keep_first and self.kernel[0] == 3
        return time and self.before[0] == 2 and self.after[0] == 0 and self.replicate[0], space

    @property
    def is_direct(self) -> bool:
        """Whether the source's rows are the kernel's, nothing is to be done to them, and they lie
        in memory as it can read them: a tensor, or several where frames are made one by one."""
        changed = self.norm or self.affine or self.silu or any(self.before) or any(self.after)
        channels = self.channels * self.groups
        if changed or channels % 8 or self.up != ONES:
            return False
        if self.kernel[0] * self.stride[0] > 1 and len(self.pieces) > 1:
            return False
        wanted = last_strides(channels, self.size)
        return all(
            piece.aligned and piece.frames * self.size[0] * self.size[1] < ROW_LIMIT and all(
                n == 1 or have == want for n, have, want in zip(
                    (channels, piece.frames, *self.size), piece.strides, wanted, strict=True
                )
            ) for piece in self.pieces
        )  # fmt: skip


def last_strides(channels: int, size: tuple[int, int]) -> Strides:
    """Of a dense channels-last tensor of frames of (H, W) `size`."""
    h, w = size
    return (1, h * w * channels, w * channels, channels)


class View:
    """The job as the kernels see it.

    kernel: over rows; taps: products of one output, of `length` elements (the kernel's columns are
    one tap, unless they are dilated or of groups). is_narrow: each column makes outputs of its own,
    `outputs` in all, to be added. up, keep_first: what is still done by index, of which first_row
    and up_frames count frames. pad: of height and width, before, counted after `up`; negative:
    cropped. rows: frames, lines and columns of all rows. positions: of a phase. phases: the factor;
    steps: rows from a phase to the next along each axis, in frames, lines, columns. shift: output
    frame of position 0 of phase 0. problem: a convolution over all rows, to plan boxes by.
    """

    def __init__(self, job: Job) -> None:
        in_time, in_space = job.folds
        (kt, kh, kw), (ut, uh, uw) = job.kernel, job.up
        frames, self.shift, self.keep_first = job.frames[1] - job.frames[0], 0, job.keep_first
        self.first_row = job.frames[0] * job.stride[0] - job.before[0]
        self.phases, self.steps, self.pad = job.shuffle, (0, 0, 0), job.before[1:]
        high, wide = (n // f for n, f in zip(job.out_size, job.shuffle[1:], strict=True))
        if in_space:
            self.phases, self.steps, (kh, kw), (uh, uw) = (1, 2, 2), (0, 1, 1), (2, 2), (1, 1)
            high, wide = job.out_size[0] // 2, job.out_size[1] // 2
            self.pad = ((job.before[1] + 1) // 2, (job.before[2] + 1) // 2)
        if in_time:
            # Pair i makes frames 2i - 1 and 2i from frames i - 1 and i.
            low, top = (job.frames[0] + 1) // 2, job.frames[1] // 2
            self.phases, kt, ut, self.keep_first = (2, 2, 2), 2, 1, False
            frames, self.shift, self.first_row = top - low + 1, 2 * low - 1 - job.frames[0], low - 1
        self.kernel, self.up = (kt, kh, kw), (ut, uh, uw)
        self.positions = frames, high, wide
        end = job.end if job.total is None else job.total
        self.up_frames = 1 + (end - 1) * ut if self.keep_first else end * ut
        reach = tuple(
            d * (k - 1) + 1 + (f - 1) * s
            for d, k, f, s in zip(job.dilation, self.kernel, self.phases, self.steps, strict=True)
        )
        rows = [
            (count - 1) * step + size
            for count, step, size in zip(self.positions, job.stride, reach, strict=True)
        ]
        if not in_space:  # with strides some of what is padded is read by nobody, but lies there
            rows[2] = job.size[1] * uw + job.before[2] + job.after[2]
        self.rows: Triple = (rows[0], rows[1], rows[2])
        whole, dilation = ((reach[0], reach[1], reach[2]), ONES) if in_space else (
            self.kernel, job.dilation
        )  # fmt: skip
        self.problem = p = Problem(
            batch=1, channels=job.channels, outputs=job.outputs * math.prod(self.phases[1:]),
            groups=job.groups, size=self.rows, kernel=whole, stride=job.stride, dilation=dilation,
            pad_before=(0, 0, 0), pad_after=(0, 0, 0), itemsize=ITEMSIZE[job.dtype],
        )  # fmt: skip
        self.outputs, self.columns = job.outputs, 1 if p.merged else kw
        self.length = job.row_channels * (kw if p.merged else 1)
        if job.groups > 1:
            self.length = job.channels
        self.taps = kt * kh * self.columns
        few = job.outputs * kw <= plan.NARROW and kw > 1
        self.is_narrow = job.sums and few and p.is_flat and p.merged
        if self.is_narrow:
            self.outputs, self.length = job.outputs * kw, job.row_channels


view_of = functools.lru_cache(maxsize=4096)(View)


@functools.lru_cache(maxsize=4096)
def refusal(job: Job) -> str | None:
    """Why the kernels can't compute this, in a few words, or None."""
    p = view_of(job).problem
    direct = max((piece.frames for piece in job.pieces), default=0) * job.size[0] * job.size[1]
    if max(direct, plan.smallest_box_rows(p)) >= ROW_LIMIT:
        return "more rows than 32-bit numbers count"
    if p.taps * p.tap_length >= ROW_LIMIT:
        return "one output's weights are more than 32-bit numbers count"
    if job.norm and job.row_channels > 1 << 12:
        return f"a norm over {job.channels} channels of a position does not fit a program"
    return None


class Target(NamedTuple):
    """What launches depend on: "gfx1100" or "sm_90", compute units, whether TF32 serves for f32.

    rows_bytes: of the rows of a box; tile: instead of the guessed one; measured: what the guess
    goes by, where there is something.
    """

    arch: str
    units: int
    tf32: bool = False
    rows_bytes: int = ROWS_BYTES
    tile: Config | None = None
    measured: Measured | None = None


_boxes_of = functools.lru_cache(maxsize=1024)(plan.make_plan)


@functools.lru_cache(maxsize=4096)
def _tile_of(
    target: Target, dtype: str, positions: int, outputs: int, length: int, taps: int,
    groups: int = 0,
) -> Config:  # fmt: skip
    """The tile for positions (the phases' together), outputs, a tap's length, and taps. groups: of
    sums that may be made in parts."""
    if target.tile is not None:
        return target.tile
    # All hold a residual and moments beside their sums without spilling (check_fused_gfx.py).
    every = configs.offered(target.arch, dtype)
    if target.measured is not None:
        every = target.measured.tiles.get((dtype, outputs, length, taps), every)

    def parts(config: Config, tiles: int) -> int:
        steps = taps * -(-length // config.block_k)
        return plan.splits(tiles * groups, steps, outputs * groups, positions, target.units)

    return configs.ranked(
        every, positions, outputs, length, target.units, taps, parts if groups else None
    )[0]


class _Product(NamedTuple):
    """A launch of conv_rows: over rows of `size` from element `start` of `source` on, making `box`;
    its sums in `parts`, of `steps` iterations of the loop each."""

    source: str
    start: int
    size: Triple
    box: Box
    positions: int
    tile: Config
    parts: int
    steps: int


class Work:
    """All launches of a job, for a result of strides `out`; work_of() gives the same object for the
    same question: its launches hold what was compiled for them.

    rows_elems, sums_elems, parts_elems: of the rows' workspace, of that of float32 sums, and of the
    moments'. calls: all launches ready to be called, by what compiled kernels depend on of
    addresses and device.
    """

    def __init__(self, job: Job, target: Target, out: Strides) -> None:
        self.job, self.target, self.out = job, target, out
        self.view = view = view_of(job)
        self.phases = math.prod(view.phases)
        self.rows_elems = self.sums_elems = self.parts_elems = self.tiles = 0
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        self.products = list(self._direct() if job.is_direct else self._boxes())
        if job.moments:
            self.tiles = sum(map(self._tiles, self.products))
            self.parts_elems = self.tiles * (2 * job.outputs + 1)

    @functools.cached_property
    def launches(self) -> tuple[Launch, ...]:
        """In order. ValueError where a frame of the source is missing."""
        made: list[Launch] = []
        tile0 = 0
        for product in self.products:
            if product.source == "rows":
                made += self._loads(product)
            made += self._conv(product, tile0)
            tile0 += self._tiles(product)
        if self.job.moments:
            # Few programs over many tiles wait for memory mostly: wide steps, twice through.
            block_t, warps = (1024, 8) if self.tiles > 512 else (256, 4)
            made.append(Launch(
                "combine_moments", (-(-self.job.outputs // 4), 1, 1),
                (("parts", 0), ("moments", 0)), (self.job.outputs, self.tiles), (block_t, 4),
                warps, 1,
            ))  # fmt: skip
        return tuple(made)

    @property
    def kind(self) -> Kind:
        """What a tile for it is measured for."""
        return self.job.dtype, self.job.outputs, self.view.length, self.view.taps

    def _tiles(self, product: _Product) -> int:
        return -(-product.positions // product.tile.block_p) * self.phases

    def _tile(self, positions: int) -> Config:
        job, view = self.job, self.view
        groups = job.groups if job.sums and not view.is_narrow else 0
        sizes = positions * self.phases, view.outputs, view.length, view.taps, groups
        return _tile_of(self.target, job.dtype, *sizes)

    def _product(self, source: str, start: int, size: Triple, box: Box) -> _Product:
        job, view, (_, hi, wi) = self.job, self.view, size
        to, ho, wo = box.t1 - box.t0, box.h1 - box.h0, view.positions[2]
        stored, total = to * ho * wo, job.outputs * job.groups
        wide = wi if view.is_narrow else wo
        is_flat = view.problem.is_flat
        positions = ((to - 1) * hi + ho - 1) * wi + wide if is_flat else stored
        tile = self._tile(positions)
        parts, steps = 1, view.taps * -(-view.length // tile.block_k)
        if view.is_narrow:
            self.sums_elems = max(self.sums_elems, positions * view.outputs)
        elif job.sums:
            tiles = -(-positions // tile.block_p) * -(-job.outputs // tile.block_n) * job.groups
            per = -(-steps // plan.splits(tiles, steps, total, stored, self.target.units))
            parts, steps = -(-steps // per), per
            if parts > 1:
                self.sums_elems = max(self.sums_elems, parts * stored * total)
        return _Product(source, start, size, box, positions, tile, parts, steps)

    def _direct(self) -> Iterator[_Product]:
        """The pieces as they are, as far as they are read."""
        job, view, (high, wide), begin = self.job, self.view, self.job.size, self.job.first
        for end in (view.first_row, view.first_row + view.rows[0] - 1):
            self._piece_of(end)  # it has to be there
        one_by_one = job.kernel[0] * job.stride[0] == 1
        frames, (_, lines, _) = job.frames[1] - job.frames[0], view.positions
        if view.is_narrow:  # as much as has room for its sums
            fit = plan.SPLIT_BYTES // (4 * wide * view.outputs)
            frames, lines = max(1, fit // high), min(lines, max(1, fit))
        for k, piece in enumerate(job.pieces):
            low, top = job.frames
            if one_by_one:
                low, top = max(begin, low), min(begin + piece.frames, top)
            for t0 in range(low, top, frames):
                t1 = min(t0 + frames, top)
                size = (view.problem.reach(0, t1 - t0), high, wide)
                for h0 in range(0, view.positions[1], lines):
                    line = (t0 * job.stride[0] - begin) * high + h0 * job.stride[1]
                    h1 = min(h0 + lines, view.positions[1])
                    box = Box(t0 - job.frames[0], t1 - job.frames[0], h0, h1)
                    yield self._product(f"x{k}", line * wide * job.row_channels, size, box)
            begin += piece.frames

    def _boxes(self) -> Iterator[_Product]:
        """Box after box in one workspace of rows."""
        job, view = self.job, self.view
        whole = self._tile(math.prod(view.rows))
        blocks = -(-view.outputs // whole.block_n) * self.phases * job.groups
        tiling = Tiling(whole.block_p, blocks, self.target.units)
        room = self.target.rows_bytes
        if view.is_narrow:
            sums, row = 4 * view.outputs, job.row_channels * ITEMSIZE[job.dtype]
            room = min(room * row // (row + sums), plan.SPLIT_BYTES // sums * row)
        (most, high, _), (th, hh) = view.positions, _boxes_of(view.problem, room, tiling)
        for t0, h0 in itertools.product(range(0, most, th), range(0, high, hh)):
            box = Box(t0, min(t0 + th, most), h0, min(h0 + hh, high))
            size = (*box.lines(view.problem), view.rows[2])  # of later ones never larger
            self.rows_elems = max(self.rows_elems, math.prod(size) * job.row_channels)
            yield self._product("rows", 0, size, box)

    def _piece_of(self, u: int) -> int:
        """The piece that holds frame u of the rows, -1 for zeros. ValueError where none does."""
        job, view = self.job, self.view
        if job.replicate[0]:
            u = min(max(u, 0), view.up_frames - 1)
        if not 0 <= u < view.up_frames:
            return -1
        kept = view.keep_first and u > 0
        frame = 1 + (u - 1) // view.up[0] if kept else u // view.up[0]
        begin = job.first
        for k, piece in enumerate(job.pieces):
            if begin <= frame < begin + piece.frames:
                return k
            begin += piece.frames
        raise ValueError(
            f"frame {frame} of the source is read for frames {job.frames} of the result, but only"
            f" {job.first} to {job.end - 1} are there"
        )

    def _loads(self, product: _Product) -> Iterator[Launch]:
        """What makes the rows of a box: a launch a piece; frames of zeros belong to any."""
        job, view, box, (frames, lines, wide) = self.job, self.view, product.box, product.size
        u0, begin = view.first_row + box.t0 * job.stride[0], 0
        pieces = [self._piece_of(u0 + j) for j in range(frames)]
        while begin < frames:
            k, end = -1, begin
            while end < frames and (k < 0 or pieces[end] in (-1, k)):
                k, end = max(k, pieces[end]), end + 1
            k = max(k, 0)
            first = job.first + sum(before.frames for before in job.pieces[:k])
            factors = ("factor", "summand") if job.affine else ("rows", "rows")
            to = begin * lines * wide * job.row_channels
            strides, size = job.pieces[k].strides, (end - begin, lines, wide)
            yield plan.make_load(
                ((f"x{k}", 0), ("rows", to), (factors[0], 0), (factors[1], 0)),
                job.channels * job.groups, job.size, strides, size,
                (u0 + begin, box.h0 * job.stride[1] - view.pad[0], -view.pad[1]), view.up_frames,
                first, _load_block(job, strides), (*job.replicate, *view.up, view.keep_first,
                job.norm, job.affine, job.silu), job.eps,
            )  # fmt: skip
            begin = end

    def _conv(self, product: _Product, tile0: int) -> Iterator[Launch]:
        """conv_rows, and what adds its sums up; the launch's tiles begin at tile0."""
        job, view, out, c = self.job, self.view, self.out, product.tile
        box, parts, (_, hi, wi) = product.box, product.parts, product.size
        to, ho, wo = box.t1 - box.t0, box.h1 - box.h0, view.positions[2]
        total, stored, narrow = job.outputs * job.groups, to * ho * wo, view.is_narrow
        at = box.h0 * view.phases[1] * out[2]
        target, strides, wide, split = ("out", at), out, wo, 0
        frames, shift = job.out_frames, view.shift + box.t0 * view.phases[0]
        if narrow or parts > 1:
            line, high, wide = (view.outputs, hi, wi) if narrow else (total, ho, wo)
            target, strides = ("sums", 0), last_strides(line, (high, wide))
            frames, shift, split = to, 0, 0 if narrow else stored * total
        nothing, with_bias = ("weight", 0), job.bias and target[0] == "out"  # which is not read
        bias, numbered = ("bias", 0) if job.bias else nothing, (tile0, self.tiles)
        last = strides[0] == 1 and view.outputs * job.groups > 1
        whole = last and job.outputs % 8 == 0 and not any(n % 8 for n in strides[1:])
        vector = 8 if whole and not narrow else 1
        row = (view.steps[0] * hi * wi, view.steps[1] * wi, view.steps[2])
        step = (job.dilation[0] * hi * wi, job.dilation[1] * wi, job.dilation[2])
        precision = configs.precision(self.target.arch, job.dtype, self.target.tf32)
        blocks = -(-product.positions // c.block_p) * -(-view.outputs // c.block_n)
        yield Launch(
            "conv_rows", (blocks, self.phases * job.groups, parts),
            ((product.source, product.start), ("weight", 0), bias if with_bias else nothing, target,
             ("parts" if job.moments else target[0], 0)),
            (product.positions, view.outputs // vector, job.row_channels // 8, view.length // 8,
             wide, ho, frames, shift, wi, hi, *job.stride[::-1], *step, *row, view.taps,
             product.steps, strides[0], *(n // vector for n in strides[1:]), split // vector,
             *(numbered if job.moments else (0, 0))),
            (-(-view.length // c.block_k), view.kernel[1], view.columns,
             view.length % c.block_k == 0, view.problem.is_flat, with_bias, job.add, job.moments,
             "" if job.sums else "evict_first", last, vector, parts > 1, job.groups > 1,
             *view.phases, precision,
             c.block_p, c.block_n, c.block_k, c.group),
            c.num_warps, c.num_stages,
        )  # fmt: skip
        if target[0] == "out":
            return
        count, by = (view.kernel[2], line + job.outputs) if narrow else (parts, split)
        block_p, block_n = (256, 1 << (total - 1).bit_length()) if narrow else (32, 64)
        yield Launch(
            "add_parts", (-(-stored // block_p), -(-total // block_n), 1),
            (("sums", 0), bias, ("out", at + box.t0 * out[1])),
            (stored, total, wo, ho, wide, high, line, *out, count, by),
            (job.bias, not narrow, block_p, block_n), 4, 1,
        )  # fmt: skip


def _load_block(job: Job, strides: Strides) -> tuple[int, int]:
    """Positions along w and channels of one program of load_rows."""
    channels = 16
    most = 1 << 14 if job.norm else 128
    while channels < job.row_channels and channels < most:
        channels *= 2
    # Whole columns of a norm over few channels leave CDNA too few scalar registers for their masks,
    # as do more than 128 positions.
    wide = channels >= 128 if job.norm else strides[0] != 1
    positions = min(max(1, (4096 if wide else 2048) // channels), 128)
    if channels > 32 and job.row_channels <= channels * 3 // 4:  # 96, 192 and 384 of Wan's
        channels = channels * 3 // 4
    return positions, channels


work_of = functools.lru_cache(maxsize=2048)(Work)
