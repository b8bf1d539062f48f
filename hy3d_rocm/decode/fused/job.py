"""One call of the fused backend in integers: what is read, which phases, which rows. No torch.

A `Job` says what is asked; `View` how the kernels see it: a video of rows (up-sampled where it has
to be, padded), a kernel over them, phases of the output.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from hy3d_rocm.conv.triton import plan
from hy3d_rocm.conv.triton.plan import Problem, Triple

Range = tuple[int, int]
Strides = tuple[int, int, int, int]  # c, t, h, w
ONES: Triple = (1, 1, 1)
ITEMSIZE = {"f16": 2, "bf16": 2, "f32": 4}


@dataclass(frozen=True)
class Piece:
    """A tensor of the source: its frames; strides, 0 along an axis of one; whether it starts at a
    multiple of 16 bytes."""

    frames: int
    strides: Strides
    aligned: bool


@dataclass(frozen=True)
class Job:
    """What is asked. outputs: channels of the result. shuffle: factor of channels to (T, H, W).

    norm: "", "rms", "l2" or "layer"; affine: whether factor and summand follow it, or stand for it.
    size: height and width of the source; first, total, frames as in Backend.convolve.
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
            self._own_length(axis, n) * self.shuffle[axis]
            for axis, n in zip((1, 2), self.size, strict=True)
        )
        return height, width

    def _own_length(self, axis: int, n: int) -> int:
        padded = n * self.up[axis] + self.before[axis] + self.after[axis]
        return (padded - self.kernel[axis]) // self.stride[axis] + 1

    @property
    def out_frames(self) -> int:
        return (self.frames[1] - self.frames[0]) * self.shuffle[0]

    @property
    def folds(self) -> tuple[bool, bool]:
        """Whether up-sampling in time, and in space, is done by sums of weights.

        Of three taps over pairs of equal inputs two always meet the same one.
        """
        plain = self.stride == ONES and self.shuffle == ONES
        space = plain and self.up[1:] == (2, 2) and self.kernel[1:] == (3, 3)
        space = space and self.before[1:] == self.after[1:] == (1, 1)
        time = space and self.up[0] == 2 and self.keep_first and self.kernel[0] == 3
        return time and self.before[0] == 2 and self.after[0] == 0 and self.replicate[0], space

    @property
    def is_plain(self) -> bool:
        """Whether the source's rows are the kernel's: nothing to do to them."""
        changed = self.norm or self.affine or self.silu
        padded = any(self.before) or any(self.after)
        return self.kernel == self.up == self.stride == ONES and not changed and not padded


@dataclass(frozen=True)
class View:
    """The job as the kernels see it.

    kernel: over rows. up, keep_first: what is still done by index, of which first_row and up_frames
    count frames. pad: of height and width, before. rows: frames, lines and columns of all rows.
    positions: of a phase. phases: the factor; steps: rows from a phase to the next along each axis,
    in frames, lines, columns. shift: output frame of position 0 of phase 0.
    """

    kernel: Triple
    up: Triple
    keep_first: bool
    pad: tuple[int, int]
    first_row: int
    up_frames: int
    rows: Triple
    positions: Triple
    phases: Triple
    steps: Triple
    shift: int

    @property
    def taps(self) -> int:
        """Products of one output: the kernel's columns are one tap."""
        return self.kernel[0] * self.kernel[1]


@functools.lru_cache(maxsize=4096)
def view_of(job: Job) -> View:
    """How the kernels see it."""
    in_time, in_space = job.folds
    (kt, kh, kw), (ut, uh, uw), n = job.kernel, job.up, job.frames[1] - job.frames[0]
    end = job.end if job.total is None else job.total
    phases, steps, pad = job.shuffle, (0, 0, 0), (job.before[1], job.before[2])
    high, wide = job.out_size[0] // phases[1], job.out_size[1] // phases[2]
    frames, shift, keep_first = n, 0, job.keep_first
    first_row = job.frames[0] * job.stride[0] - job.before[0]
    if in_space:
        phases, steps, (kh, kw), (uh, uw) = (1, 2, 2), (0, 1, 1), (2, 2), (1, 1)
        high, wide = job.size
    if in_time:
        # Pair i makes frames 2i - 1 and 2i from frames i - 1 and i.
        low, top = (job.frames[0] + 1) // 2, job.frames[1] // 2
        phases, kt, ut, keep_first = (2, 2, 2), 2, 1, False
        frames, shift, first_row = top - low + 1, 2 * low - 1 - job.frames[0], low - 1
    up_frames = 1 + (end - 1) * ut if keep_first else end * ut
    reach = (kt, kh + (phases[1] - 1) * steps[1], kw + (phases[2] - 1) * steps[2])
    rows = tuple(
        (count - 1) * step + size
        for count, step, size in zip((frames, high, wide), job.stride, reach, strict=True)
    )
    if not in_space:  # with strides some of what is padded is read by nobody, but lies in the line
        rows = (rows[0], rows[1], job.size[1] * uw + job.before[2] + job.after[2])
    return View(
        (kt, kh, kw), (ut, uh, uw), keep_first, pad, first_row, up_frames,
        (rows[0], rows[1], rows[2]), (frames, high, wide), phases, steps, shift,
    )  # fmt: skip


def moved_to_start(job: Job) -> Job:
    """The same work near the start of a video where neither its start nor its end is read: slices
    of a video then have their launches in common."""
    view = view_of(job)
    first = 1 if job.keep_first else 0
    away = job.first - first
    last = view.first_row + view.rows[0] - 1
    if away <= 0 or view.first_row < 0 or last >= view.up_frames or job.stride[0] != 1:
        return job
    for u in (view.first_row, last):
        _piece_of(job, view, u)  # what is missing would pass for padding there
    step = away * job.up[0]
    frames = (job.frames[0] - step, job.frames[1] - step)
    return replace(job, first=first, total=None, frames=frames)


def problem_of(job: Job, view: View) -> Problem:
    """A convolution over all rows, to plan boxes by."""
    reach = tuple(
        k + (f - 1) * s for k, f, s in zip(view.kernel, view.phases, view.steps, strict=True)
    )
    return Problem(
        batch=1, channels=job.channels, outputs=job.outputs * view.phases[1] * view.phases[2],
        groups=1, size=view.rows, kernel=(reach[0], reach[1], reach[2]), stride=job.stride,
        dilation=ONES, pad_before=(0, 0, 0), pad_after=(0, 0, 0), replicate=(False,) * 3,
        itemsize=ITEMSIZE[job.dtype],
    )  # fmt: skip


def runs(job: Job, view: View, first_row: int, count: int) -> list[tuple[int, int, int]]:
    """(begin, end, piece) of `count` frames of rows from `first_row` on; frames of zeros belong to
    any piece. ValueError where a frame is not there."""
    found: list[list[int]] = []
    for j in range(count):
        piece = _piece_of(job, view, first_row + j)
        if found and piece in (-1, found[-1][2]):
            found[-1][1] = j + 1
        elif found and found[-1][2] == -1:
            found[-1][1:] = [j + 1, piece]
        else:
            found.append([j, j + 1, piece])
    return [(begin, end, max(piece, 0)) for begin, end, piece in found]


def _piece_of(job: Job, view: View, u: int) -> int:
    """The piece that holds frame u of the rows, -1 for zeros."""
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


def is_rows(piece: Piece, channels: int, size: tuple[int, int], itemsize: int) -> bool:
    """Whether the piece lies in memory as rows that the kernel can read."""
    if channels % 8 or channels * itemsize % 16 or not piece.aligned:
        return False
    (h, w), lengths = size, (channels, piece.frames, *size)
    wanted = (1, h * w * channels, w * channels, channels)
    return all(n == 1 or a == b for n, a, b in zip(lengths, piece.strides, wanted, strict=True))


def block_of(job: Job, piece: Piece) -> tuple[int, int]:
    """Positions along w and channels of one program of load_rows."""
    channels = 16
    most = 1 << 14 if job.norm else 128
    while channels < job.row_channels and channels < most:
        channels *= 2
    # Whole columns of a norm over few channels leave CDNA too few scalar registers for their masks.
    wide = channels >= 128 if job.norm else piece.strides[0] != 1
    elements = 4096 if wide else 2048
    return max(1, elements // channels), channels


def smallest_rows(p: Problem) -> int:
    """Rows that one line of output needs."""
    return plan.smallest_box_rows(p)
