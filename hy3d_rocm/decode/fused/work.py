"""The launches of one call of the fused backend. Pure integers: no torch, no triton."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.plan import Box, Plan, Problem, Tiling, Triple
from hy3d_rocm.decode.fused import job as jobs
from hy3d_rocm.decode.fused.job import ITEMSIZE, ONES, Job, Strides, View
from hy3d_rocm.decode.fused.launching import Block, Launch

# Bytes of the rows of a box: a last-level cache holds them (32 to 96 MB), with what else passes.
ROWS_BYTES = 40 << 20
_ROW_LIMIT = 2**31 - 2**16


@dataclass(frozen=True)
class Machine:
    """What launches depend on: "gfx1100" or "sm_90", compute units, whether TF32 serves for f32.

    rows_bytes: of the rows in flight; tile: instead of the guessed one; overlap: while a box is
    convolved, rows of the next are made on a stream beside, in the other half of rows_bytes: 1 in
    its turn, 2 before tiles that have not begun.
    """

    arch: str
    units: int
    tf32: bool = False
    rows_bytes: int = ROWS_BYTES
    tile: Config | None = None
    overlap: int = 0


@dataclass(frozen=True)
class Work:
    """launches in order; elements of the rows' workspace and of the moments' (float32)."""

    launches: tuple[Launch, ...]
    rows_elems: int
    parts_elems: int


def offered(arch: str, dtype: str) -> tuple[Config, ...]:
    """The tiles that may be taken on an architecture: those of the convolution tier that hold a
    residual and moments beside their sums without spilling (tests/checks/check_fused_gfx.py)."""
    return configs.offered(arch, dtype)


def refusal(job: Job) -> str | None:
    """Why the kernels can't compute this, in a few words, or None."""
    view = jobs.view_of(job)
    p = jobs.problem_of(job, view)
    direct = max((piece.frames for piece in job.pieces), default=0) * job.size[0] * job.size[1]
    if max(direct, jobs.smallest_rows(p)) >= _ROW_LIMIT:
        return "more rows than 32-bit numbers count"
    if p.taps * p.tap_length >= _ROW_LIMIT:
        return "one output's weights are more than 32-bit numbers count"
    if job.norm and job.row_channels > 1 << 12:
        return f"a norm over {job.channels} channels of a position does not fit a program"
    return None


def make_work(job: Job, out: Strides, machine: Machine) -> Work:
    """All launches; out: strides of the result."""
    return _made(jobs.moved_to_start(job), out, machine)


def room_of(job: Job, out: Strides, machine: Machine) -> tuple[int, int]:
    """rows_elems and parts_elems of make_work, without the launches."""
    return _room(jobs.moved_to_start(job), out, machine)


@functools.lru_cache(maxsize=4096)
def _room(job: Job, out: Strides, machine: Machine) -> tuple[int, int]:
    return _Maker(job, out, machine).room()


@functools.lru_cache(maxsize=512)
def _made(job: Job, out: Strides, machine: Machine) -> Work:
    return _Maker(job, out, machine).work()


@functools.lru_cache(maxsize=1024)
def _plan(p: Problem, rows_bytes: int, tiling: Tiling) -> Plan:
    return plan.make_plan(p, False, rows_bytes, tiling)


@functools.lru_cache(maxsize=4096)
def tile_of(
    machine: Machine, dtype: str, positions: int, outputs: int, length: int, taps: int
) -> Config:
    """The tile for so many positions, the phases' together."""
    if machine.tile is not None:
        return machine.tile
    every = offered(machine.arch, dtype)
    return configs.guess(every, positions, outputs, length, machine.units, taps)


class _Maker:
    """Makes the launches of one call."""

    def __init__(self, job: Job, out: Strides, machine: Machine) -> None:
        self.job, self.out, self.machine = job, out, machine
        self.view: View = jobs.view_of(job)
        self.p = jobs.problem_of(job, self.view)
        self.length = job.row_channels * self.view.kernel[2]
        self.phases = self.view.phases[0] * self.view.phases[1] * self.view.phases[2]
        self.flat = job.stride == ONES
        self.descriptors = self.flat and configs.uses_descriptors(machine.arch)
        self.precision = configs.precision(machine.arch, job.dtype, machine.tf32)
        self.tiles = 0

    def work(self) -> Work:
        job = self.job
        if self._is_direct():
            launches, rows = list(self._direct()), 0
        else:
            boxes, elems, count = self._boxes()
            rows = elems * count
            launches = [
                item for k, box in enumerate(boxes) for item in self._box(box, k % count * elems)
            ]
        if not job.moments:
            return Work(tuple(launches), rows, 0)
        return Work(
            (*self._numbered(launches), self._combine()), rows, self.tiles * (2 * job.outputs + 1)
        )

    def room(self) -> tuple[int, int]:
        job, rows = self.job, 0
        if self._is_direct():
            positions = [self._positions((b.t1 - b.t0, *job.size), b) for *_, b in self._pieces()]
        else:
            boxes, elems, count = self._boxes()
            rows, wide = elems * count, self.view.rows[2]
            positions = [self._positions((*box.lines(self.p), wide), box) for box in boxes]
        if not job.moments:
            return rows, 0
        tiles = sum(-(-n // self._tile(n).block_p) * self.phases for n in positions)
        return rows, tiles * (2 * job.outputs + 1)

    def _is_direct(self) -> bool:
        job = self.job
        return job.is_plain and all(
            jobs.is_rows(piece, job.channels, job.size, ITEMSIZE[job.dtype]) for piece in job.pieces
        )

    def _boxes(self) -> tuple[list[Box], int, int]:
        """The boxes, elements of one's rows, and how many of them have rows at a time."""
        whole = self._tile(self.view.rows[0] * self.view.rows[1] * self.view.rows[2])
        blocks = -(-self.job.outputs // whole.block_n) * self.phases
        tiling = Tiling(whole.block_p, blocks, self.machine.units)
        room = self.machine.rows_bytes // (2 if self.machine.overlap else 1)
        made = _plan(self.p, room, tiling)
        boxes, elems = list(made.boxes()), made.workspace_bytes // ITEMSIZE[self.job.dtype]
        return boxes, elems, min(len(boxes), 2) if self.machine.overlap else 1

    def _tile(self, positions: int) -> Config:
        return tile_of(
            self.machine, self.job.dtype, positions * self.phases, self.job.outputs, self.length,
            self.view.taps,
        )  # fmt: skip

    def _direct(self) -> Iterator[Launch]:
        """The pieces as they are."""
        (high, wide), channels = self.job.size, self.job.row_channels
        for k, skipped, box in self._pieces():
            start = skipped * high * wide * channels
            yield self._conv(f"x{k}", start, (box.t1 - box.t0, high, wide), box)

    def _pieces(self) -> Iterator[tuple[int, int, Box]]:
        """Those that are read, frames of each that are not, and what is made of the rest."""
        job, begin = self.job, self.job.first
        for k, piece in enumerate(job.pieces):
            low, top = max(begin, job.frames[0]), min(begin + piece.frames, job.frames[1])
            if low < top:
                box = Box(0, low - job.frames[0], top - job.frames[0], 0, job.size[0])
                yield k, low - begin, box
            begin += piece.frames

    def _positions(self, size: Triple, box: Box) -> int:
        """Positions that one launch over rows of `size` counts."""
        _, hi, wi = size
        to, ho, wo = box.t1 - box.t0, box.h1 - box.h0, self.view.positions[2]
        return ((to - 1) * hi + ho - 1) * wi + wo if self.flat else to * ho * wo

    def _box(self, box: Box, at: int) -> Iterator[Launch]:
        """Rows of the box from element `at` of the workspace on, and their products."""
        frames, lines = box.lines(self.p)
        wide = self.view.rows[2]
        first = self.view.first_row + box.t0 * self.job.stride[0]
        for begin, end, piece in jobs.runs(self.job, self.view, first, frames):
            to = at + begin * lines * wide * self.job.row_channels
            yield self._load(piece, box, first + begin, to, end - begin, lines)
        yield self._conv("rows", at, (frames, lines, wide), box)

    def _load(self, k: int, box: Box, u0: int, to: int, frames: int, lines: int) -> Launch:
        """Rows of `frames` frames from `u0` on, from element `to` of the workspace."""
        job, view, wide = self.job, self.view, self.view.rows[2]
        piece = job.pieces[k]
        s = piece.strides
        vector = 8 if s[0] == 1 and job.channels % 8 == 0 and not any(n % 8 for n in s[1:]) else 1
        block_w, block_c = jobs.block_of(job, piece)
        programs = frames * lines * -(-wide // block_w) * -(-job.row_channels // block_c)
        first = job.first + sum(before.frames for before in job.pieces[:k])
        affine = "factor" if job.affine else "rows"
        return Launch(
            "load_rows", (programs, 1, 1),
            ((f"x{k}", 0), ("rows", to), (affine, 0),
             ("summand" if job.affine else "rows", 0)),
            (job.channels, job.row_channels // 8, *job.size, lines, wide,
             box.h0 * job.stride[1] - view.pad[0], -view.pad[1], u0, view.up_frames, first,
             piece.frames, s[0], *(n // vector for n in s[1:]), job.eps),
            (*job.replicate, *view.up, view.keep_first, job.norm, job.affine, job.silu,
             s[3] == 1, vector, block_w, block_c), 4, 1,
        )  # fmt: skip

    def _conv(self, source: str, start: int, size: Triple, box: Box) -> Launch:
        """conv_fused over rows of `size` from `start` on."""
        job, view, (_, hi, wi) = self.job, self.view, size
        ho, wo = box.h1 - box.h0, view.positions[2]
        positions = self._positions(size, box)
        c = self._tile(positions)
        kt, kh, _ = view.kernel
        step_t, step_h = hi * wi, wi
        row = (view.steps[0] * step_t, view.steps[1] * step_h, view.steps[2])
        last = self.out[0] == 1 and job.outputs > 1
        vector = 8 if last and job.outputs % 8 == 0 and not any(n % 8 for n in self.out[1:]) else 1
        strides = tuple(n // vector for n in self.out[1:])
        at = box.h0 * view.phases[1] * self.out[2]
        shift = view.shift + box.t0 * view.phases[0]
        blocks: tuple[Block, ...] = ()
        if self.descriptors:
            reach = sum((f - 1) * r for f, r in zip(view.phases, row, strict=True))
            count = positions + reach + (kt - 1) * step_t + (kh - 1) * step_h
            blocks = (
                ((count, self.length), (job.row_channels, 1), (c.block_p, c.block_k)),
                ((job.outputs * self.phases, view.taps * self.length),
                 (view.taps * self.length, 1), (c.block_n, c.block_k)),
            )  # fmt: skip
        return Launch(
            "conv_fused",
            (-(-positions // c.block_p) * -(-job.outputs // c.block_n), self.phases, 1),
            ((source, start), ("weight", 0), ("bias" if job.bias else "weight", 0), ("out", at),
             ("parts" if job.moments else "out", 0)),
            (positions, job.outputs // vector, job.row_channels // 8, self.length // 8, wo, ho,
             job.out_frames, shift, wi, hi, *job.stride[::-1], step_t, step_h, *row,
             view.taps, self.out[0], *strides, 0, 0),
            (-(-self.length // c.block_k), kh, self.length % c.block_k == 0, self.flat,
             self.descriptors, job.bias, job.add, job.moments, last, vector, *view.phases,
             self.precision, c.block_p, c.block_n, c.block_k, c.group),
            c.num_warps, c.num_stages, blocks,
        )  # fmt: skip

    def _numbered(self, launches: list[Launch]) -> Iterator[Launch]:
        """The launches with the numbers of their tiles among all of them."""
        counts = []
        for item in launches:
            positions, block_p = item.numbers[0], item.constants[-4]
            counts.append(
                -(-int(positions) // block_p) * self.phases if item.kernel == "conv_fused" else 0
            )
        self.tiles, begin = sum(counts), 0
        for item, count in zip(launches, counts, strict=True):
            if count:
                numbers = (*item.numbers[:-2], begin, self.tiles)
                yield replace(item, numbers=numbers)
                begin += count
            else:
                yield item

    def _combine(self) -> Launch:
        # Few programs over many tiles wait for memory most of the time: wide steps, twice through.
        block_t, block_n = (1024, 4) if self.tiles > 512 else (256, 4)
        return Launch(
            "combine_moments", (-(-self.job.outputs // block_n), 1, 1),
            (("parts", 0), ("moments", 0)), (self.job.outputs, self.tiles),
            (block_t, block_n), 8 if block_t == 1024 else 4, 1,
        )  # fmt: skip
