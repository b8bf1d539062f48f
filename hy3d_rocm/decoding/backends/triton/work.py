"""The launches of one call of the Triton backend. Pure integers: no torch, no triton.

A `Job` says what is asked; its `View` how the kernels see it: a video of rows (up-sampled where it
has to be, padded), a kernel over them, phases of the output.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from hy3d_rocm.conv.problem import Problem, Triple
from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config, Kind, Measured
from hy3d_rocm.conv.triton.plan import Box, Call, Launch, Tiling

Range = tuple[int, int]
Strides = tuple[int, int, int, int]  # c, t, h, w
ONES: Triple = (1, 1, 1)
ITEMSIZE = {"f16": 2, "bf16": 2, "f32": 4}
# Bytes of the rows of a box. Larger ones mean fewer launches, and less that two boxes both load;
# the rows need not stay in a cache, since a tile's taps follow each other closely. On an NVIDIA
# H200 (50 MB of L2) HunyuanVideo and Wan took 0.481 and 0.394 s with 40 MB, 0.457 and 0.371 with
# 160, 0.455 and 0.344 with 640 (tests/bench/bench_decode_gpu.py --only boxes). The least budget
# grows by what is added here.
ROWS_BYTES = 160 << 20
_ROW_LIMIT = 2**31 - 2**16
# Fewer channels than this a phase would waste the matrix units: such are shuffled by a copy.
FEWEST_SHUFFLED = 16


class Piece(NamedTuple):
    """A tensor of the source."""

    frames: int
    strides: Strides  # 0 along an axis of one
    aligned: bool  # it starts at a multiple of 16 bytes


class Job(NamedTuple):
    """What is asked. outputs: channels of the result. shuffle: factor of channels to (T, H, W).

    norm: "", "rms", "l2" or "layer"; affine: whether factor and summand follow it, or stand for it.
    size: height and width of the source; first, total, frames as in TorchBackend.convolve.
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

    @property
    def row_channels(self) -> int:
        """Channels of a row: a multiple of 8, so that 16-byte loads of half types fit."""
        return -(-self.channels // 8) * 8

    @property
    def end(self) -> int:
        """One past the last frame that is there."""
        return self.first + sum(piece.frames for piece in self.pieces)

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (
            ((n * self.up[axis] + self.before[axis] + self.after[axis] - self.kernel[axis])
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
        in memory as it can read them."""
        changed = self.norm or self.affine or self.silu or any(self.before) or any(self.after)
        if changed or self.channels % 8 or not self.kernel == self.up == self.stride == ONES:
            return False
        wanted = last_strides(self.channels, self.size)
        return all(
            piece.aligned and all(
                n == 1 or have == want for n, have, want in zip(
                    (self.channels, piece.frames, *self.size), piece.strides, wanted, strict=True
                )
            ) for piece in self.pieces
        )  # fmt: skip


def last_strides(channels: int, size: tuple[int, int]) -> Strides:
    """Of a dense channels-last tensor of frames of (H, W) `size`."""
    h, w = size
    return (1, h * w * channels, w * channels, channels)


class View:
    """The job as the kernels see it.

    kernel: over rows; taps: products of one output (the kernel's columns are one tap). up,
    keep_first: what is still done by index, of which first_row and up_frames count frames. pad: of
    height and width, before, counted after `up`; negative: cropped. rows: frames, lines and columns
    of all rows. positions: of a phase. phases: the factor; steps: rows from a phase to the next
    along each axis, in frames, lines, columns. shift: output frame of position 0 of phase 0.
    problem: a convolution over all rows, to plan boxes by.
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
        self.kernel, self.up, self.taps = (kt, kh, kw), (ut, uh, uw), kt * kh
        self.positions = frames, high, wide
        end = job.end if job.total is None else job.total
        self.up_frames = 1 + (end - 1) * ut if self.keep_first else end * ut
        reach = tuple(
            k + (f - 1) * s for k, f, s in zip(self.kernel, self.phases, self.steps, strict=True)
        )
        rows = [
            (count - 1) * step + size
            for count, step, size in zip(self.positions, job.stride, reach, strict=True)
        ]
        if not in_space:  # with strides some of what is padded is read by nobody, but lies there
            rows[2] = job.size[1] * uw + job.before[2] + job.after[2]
        self.rows: Triple = (rows[0], rows[1], rows[2])
        self.problem = Problem(
            batch=1, channels=job.channels, outputs=job.outputs * math.prod(self.phases[1:]),
            groups=1, size=self.rows, kernel=(reach[0], reach[1], reach[2]), stride=job.stride,
            dilation=ONES, pad_before=(0, 0, 0), pad_after=(0, 0, 0),
            itemsize=ITEMSIZE[job.dtype],
        )  # fmt: skip


view_of = functools.lru_cache(maxsize=4096)(View)


@functools.lru_cache(maxsize=4096)
def refusal(job: Job) -> str | None:
    """Why the kernels can't compute this, in a few words, or None."""
    p = view_of(job).problem
    direct = max((piece.frames for piece in job.pieces), default=0) * job.size[0] * job.size[1]
    if max(direct, plan.smallest_box_rows(p)) >= _ROW_LIMIT:
        return "more rows than 32-bit numbers count"
    if p.taps * p.tap_length >= _ROW_LIMIT:
        return "one output's weights are more than 32-bit numbers count"
    if job.norm and job.row_channels > 1 << 12:
        return f"a norm over {job.channels} channels of a position does not fit a program"
    return None


class Machine(NamedTuple):
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
def _tile_of(machine: Machine, dtype: str, *sizes: int) -> Config:
    """The tile for positions (the phases' together), outputs, a tap's length, and taps."""
    if machine.tile is not None:
        return machine.tile
    positions, outputs, length, taps = sizes
    # All hold a residual and moments beside their sums without spilling (check_fused_gfx.py).
    every = configs.offered(machine.arch, dtype)
    if machine.measured is not None:
        every = machine.measured.tiles.get((dtype, outputs, length, taps), every)
    return configs.ranked(every, positions, outputs, length, machine.units, taps)[0]


class _Product(NamedTuple):
    """A launch of conv_fused: over rows of `size` from element `start` of `source` on, making
    `box`."""

    source: str
    start: int
    size: Triple
    box: Box
    positions: int
    tile: Config


class Work:
    """All launches of a job, for a result of strides `out`; work_of() gives the same object for the
    same question: its launches hold what was compiled for them.

    rows_elems, parts_elems: of the rows' workspace and of the moments' (float32). calls: all
    launches ready to be called, by what compiled kernels depend on of addresses and device.
    """

    def __init__(self, job: Job, machine: Machine, out: Strides) -> None:
        self.job, self.machine, self.out = job, machine, out
        self.view = view = view_of(job)
        self.length = job.row_channels * view.kernel[2]
        self.phases = math.prod(view.phases)
        self.flat = job.stride == ONES
        self.rows_elems = self.parts_elems = self.tiles = 0
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
            made.append(self._conv(product, tile0))
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
        return self.job.dtype, self.job.outputs, self.length, self.view.taps

    def _tiles(self, product: _Product) -> int:
        return -(-product.positions // product.tile.block_p) * self.phases

    def _tile(self, positions: int) -> Config:
        sizes = positions * self.phases, self.job.outputs, self.length, self.view.taps
        return _tile_of(self.machine, self.job.dtype, *sizes)

    def _product(self, source: str, start: int, size: Triple, box: Box) -> _Product:
        _, hi, wi = size
        to, ho, wo = box.t1 - box.t0, box.h1 - box.h0, self.view.positions[2]
        positions = ((to - 1) * hi + ho - 1) * wi + wo if self.flat else to * ho * wo
        return _Product(source, start, size, box, positions, self._tile(positions))

    def _direct(self) -> Iterator[_Product]:
        """The pieces as they are, as far as they are read."""
        job, (high, wide), begin = self.job, self.job.size, self.job.first
        for end in (job.frames[0], job.frames[1] - 1):
            self._piece_of(end)  # it has to be there
        for k, piece in enumerate(job.pieces):
            low, top = max(begin, job.frames[0]), min(begin + piece.frames, job.frames[1])
            if low < top:
                start = (low - begin) * high * wide * job.row_channels
                box = Box(0, low - job.frames[0], top - job.frames[0], 0, high)
                yield self._product(f"x{k}", start, (top - low, high, wide), box)
            begin += piece.frames

    def _boxes(self) -> Iterator[_Product]:
        """Box after box in one workspace of rows."""
        job, view = self.job, self.view
        whole = self._tile(math.prod(view.rows))
        blocks = -(-job.outputs // whole.block_n) * self.phases
        tiling = Tiling(whole.block_p, blocks, self.machine.units)
        made = _boxes_of(view.problem, False, self.machine.rows_bytes, tiling)
        self.rows_elems = made.workspace_bytes // ITEMSIZE[job.dtype]
        for box in made.boxes():
            yield self._product("rows", 0, (*box.lines(view.problem), view.rows[2]), box)

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
            s = job.pieces[k].strides
            whole = s[0] == 1 and job.channels % 8 == 0 and not any(n % 8 for n in s[1:])
            vector = 8 if whole else 1
            block_w, block_c = _load_block(job, s)
            count = (end - begin) * lines * -(-wide // block_w) * -(-job.row_channels // block_c)
            first = job.first + sum(before.frames for before in job.pieces[:k])
            factors = ("factor", "summand") if job.affine else ("rows", "rows")
            to = begin * lines * wide * job.row_channels
            yield Launch(
                "load_rows", (count, 1, 1),
                ((f"x{k}", 0), ("rows", to), (factors[0], 0), (factors[1], 0)),
                (job.channels, job.row_channels // 8, *job.size, lines, wide,
                 box.h0 * job.stride[1] - view.pad[0], -view.pad[1], u0 + begin, view.up_frames,
                 first, job.pieces[k].frames, s[0], *(n // vector for n in s[1:]),
                 job.eps),  # type: ignore[arg-type]
                (*job.replicate, *view.up, view.keep_first, job.norm, job.affine, job.silu,
                 s[3] == 1, vector, block_w, block_c), 4, 1,
            )  # fmt: skip
            begin = end

    def _conv(self, product: _Product, tile0: int) -> Launch:
        """conv_fused; the launch's tiles begin at tile0."""
        job, view, out, (_, hi, wi) = self.job, self.view, self.out, product.size
        box, c, positions = product.box, product.tile, product.positions
        ho, wo = box.h1 - box.h0, view.positions[2]
        kh = view.kernel[1]
        row = (view.steps[0] * hi * wi, view.steps[1] * wi, view.steps[2])
        last = out[0] == 1 and job.outputs > 1
        vector = 8 if last and job.outputs % 8 == 0 and not any(n % 8 for n in out[1:]) else 1
        strides = tuple(n // vector for n in out[1:])
        at = box.h0 * view.phases[1] * out[2]
        shift = view.shift + box.t0 * view.phases[0]
        precision = configs.precision(self.machine.arch, job.dtype, self.machine.tf32)
        numbered = (tile0, self.tiles) if job.moments else (0, 0)
        return Launch(
            "conv_fused",
            (-(-positions // c.block_p) * -(-job.outputs // c.block_n), self.phases, 1),
            ((product.source, product.start), ("weight", 0),
             ("bias" if job.bias else "weight", 0), ("out", at),
             ("parts" if job.moments else "out", 0)),
            (positions, job.outputs // vector, job.row_channels // 8, self.length // 8, wo, ho,
             job.out_frames, shift, wi, hi, *job.stride[::-1], hi * wi, wi, *row,
             view.taps, out[0], *strides, *numbered),
            (-(-self.length // c.block_k), kh, self.length % c.block_k == 0, self.flat,
             job.bias, job.add, job.moments, last, vector, *view.phases,
             precision, c.block_p, c.block_n, c.block_k, c.group),
            c.num_warps, c.num_stages,
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


class AttentionJob(NamedTuple):
    """softmax(q k^T) v of some frames' queries. size: of a head; tokens: of a frame's queries.
    Frame f sees keys (first + f) * begin to stop + (first + f) * stop_by. q_head, k_head: from a
    head to the next; out: strides of the result by head, token and element."""

    dtype: str
    size: int
    heads: int
    frames: int
    tokens: int
    first: int
    begin: int
    stop: int
    stop_by: int
    q_head: int
    k_head: int
    out: Triple


class AttentionWork:
    """Its launch; attention_of() gives the same object for the same question. calls: as Work's."""

    def __init__(self, job: AttentionJob, arch: str) -> None:
        tile = configs.attention(arch, job.dtype)
        assert tile is not None, f"no tile for attention on {arch}"
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        # In two blocks, of which the second is loaded when the first is multiplied.
        most, further = 256, 128 if job.size <= 384 or job.size % 384 == 0 else 256
        parts, (o_head, o_token, o_element) = -(-job.size // (most + further)), job.out
        vector = 8 if o_element == 1 and not any(n % 8 for n in job.out[:2]) else 1
        even = job.size % tile.block_k == 0 and job.size % (most + further) == 0
        scale = job.size**-0.5 * math.log2(math.e)
        self.launches = (Launch(
            "attend", (job.frames * -(-job.tokens // tile.block_p), job.heads, parts),
            (("x0", 0), ("x1", 0), ("x2", 0), ("out", 0)),
            (job.size // 8, job.tokens, job.first, job.begin, job.stop, job.stop_by,
             scale,
             job.q_head // 8, job.k_head // 8,
             o_head // vector, o_token // vector, o_element),
            (even, vector, "ieee", tile.block_p, tile.block_n, tile.block_k, most, further),
            tile.num_warps, tile.num_stages,
        ),)  # fmt: skip


attention_of = functools.lru_cache(maxsize=256)(AttentionWork)
