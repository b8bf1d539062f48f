"""How one convolution is cut into launches, and how its tensors lie. Pure integers: no torch, no
triton.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import neg
from typing import TYPE_CHECKING, Any, NamedTuple

from hy3d_rocm.conv.problem import Problem, Triple

if TYPE_CHECKING:
    import torch

    from hy3d_rocm.conv.call import ConvSpec

# Bytes of the rows in flight and of the packed weight. Last-level caches of the cards this is for
# are 32 to 96 MB (a wave of programs reads each row 27 times); a larger box would only save halo.
WORKSPACE_BYTES = 56 << 20
# Partial sums of split convolutions, which are small ones.
SPLIT_BYTES = 16 << 20
# Outputs times kernel columns that are computed as one narrow block of 16.
NARROW = 16
GRID_LIMIT = 65535  # programs along y and z
ROW_LIMIT = 2**31 - 2**16  # row numbers are 32-bit; a block may reach beyond the end
_LINE_BYTES = 256  # parts of the workspace share no cache line

KERNELS = "hy3d_rocm.conv.triton.kernel"
Strides = tuple[int, int, int, int]  # c, t, h, w
Call = Callable[[Sequence[int], int], None]  # of Operands.addresses and a stream


def problem(spec: ConvSpec) -> Problem:
    """The Problem of a conv2d or conv3d; the batch of a conv2d is its time."""
    return spec.problem.folded if spec.ndim == 2 else spec.problem


@dataclass(frozen=True)
class Box:
    """Output frames [t0, t1) and output lines [h0, h1)."""

    t0: int
    t1: int
    h0: int
    h1: int

    def lines(self, problem: Problem) -> tuple[int, int]:
        """Frames and lines of padded input that the box reads."""
        return problem.reach(0, self.t1 - self.t0), problem.reach(1, self.h1 - self.h0)


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: its name in `module`. operands: for each pointer argument the operand's name and the
    offset in elements. numbers, constants: the arguments after the pointers, in order.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[float, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int
    module: str = KERNELS

    @property
    def compiled_for(self) -> tuple[Any, ...]:
        """What of it a compiled kernel depends on."""
        return self.module, self.kernel, self.constants, self.num_warps, self.num_stages


def refusal(p: Problem) -> str | None:
    """Why the kernel can't compute this, in a few words, or None."""
    if p.groups > 1 and (p.channels % 8 or p.outputs < 8):
        return (
            f"groups of {p.channels} -> {p.outputs} channels are too narrow for matrix units"
            " (multiples of 8 are taken)"
        )
    if smallest_box_rows(p) >= ROW_LIMIT:
        rows = p.batch * math.prod(p.padded)
        return f"{rows} rows of input do not fit 32-bit row numbers"
    if p.taps * p.tap_length >= ROW_LIMIT or p.groups > GRID_LIMIT:
        return "one output's weights, or the groups, are more than 32-bit numbers count"
    return None


def smallest_box_rows(p: Problem) -> int:
    """Rows that one frame and one line of output need."""
    return p.reach(0, 1) * p.reach(1, 1) * p.padded[2]


def rows_room(p: Problem, limit_bytes: int = WORKSPACE_BYTES) -> int:
    """Bytes of a box: together with the packed weight the workspace stays below the limit."""
    room = max(limit_bytes - whole_lines(p.weight_bytes), limit_bytes // 4)
    return room // _LINE_BYTES * _LINE_BYTES


def most_bytes(p: Problem) -> int:
    """Bytes of rows, packed weight and sums: no plan takes more, whatever the input's strides."""
    row = p.row_channels * p.itemsize
    whole = p.reach(0, p.out[0]) * p.reach(1, p.out[1]) * p.padded[2] * row
    rows = max(smallest_box_rows(p) * row, min(whole, rows_room(p)))
    line_sums = 4 * NARROW * p.padded[2]
    parts = (rows, p.weight_bytes, max(SPLIT_BYTES, line_sums))
    return sum(whole_lines(part) for part in parts)


def whole_lines(size_bytes: int) -> int:
    """Rounded up to what the parts of the workspace begin at multiples of."""
    return -(-size_bytes // _LINE_BYTES) * _LINE_BYTES


class Tiling(NamedTuple):
    """Positions of a tile, tiles for each block of positions, tiles that run at once."""

    block_p: int
    blocks_n: int
    units: int


def make_plan(p: Problem, limit_bytes: int, tiling: Tiling) -> tuple[int, int]:
    """Most frames and lines of a box.

    Of the box shapes that fit the limit, the cheapest: rows copied (those in a halo twice), and
    tiles in whole waves, since a last wave takes as long as a full one. Where not even one line of
    output fits, one line.
    """
    line_bytes = p.padded[2] * p.row_channels * p.itemsize
    budget = max(1, min(limit_bytes // line_bytes, ROW_LIMIT // p.padded[2]))
    return _cheapest(p, budget, tiling)[1:]


def _even(length: int) -> list[int]:
    """Box lengths that cut `length` into nearly equal parts, longest first."""
    found, boxes = [], 1
    while boxes <= length:
        found.append(-(-length // boxes))
        boxes = -(-length // (found[-1] - 1)) if found[-1] > 1 else length + 1
    return found


# Operations that the card does while it moves a byte; for weighing copies against products only.
_BALANCE = 200


def _cheapest(p: Problem, budget: int, tiling: Tiling) -> tuple[float, int, int]:
    """Of the boxes of at most `budget` lines the one with the least time of all boxes, in
    operations of a position, its frames and lines. Boxes that can't be cheaper are left out: plans
    ask for hundreds of boxes."""
    kt, kh, kw = p.kernel
    operations = 2 * kt * kh * kw * p.channels * p.cout
    wide, is_flat, itemsize = p.padded[2], p.is_flat, p.row_channels * p.itemsize
    block_p, blocks_n, units = tiling
    wave = units * block_p / blocks_n
    least = p.out[0] * p.out[1] * wide
    best = (float("inf"), 1, 1)
    lengths = _even(p.out[1])
    step, beyond = p.stride[1], p.reach(1, 1) - p.stride[1]
    for th in _even(p.out[0]):
        reach, copied = p.reach(0, th), _copied(p.out[0], th, p, 0)
        frames, boxes = _parts(p.out[0], th), -(-p.out[0] // th)
        longest = (budget // reach - beyond) // step
        for hh in lengths[bisect_left(lengths, -longest, key=neg) :]:
            count = -(-p.out[1] // hh)
            lines = copied * (p.out[1] * step + count * beyond) * wide
            traffic = lines * 2 * itemsize * _BALANCE / operations
            if (traffic + least + 0.5 * boxes * count * wave) * _ROUNDING > best[0]:
                if beyond >= 0:
                    break
                continue
            computed = 0.0
            for t, times in frames:
                for h, several in _parts(p.out[1], hh):
                    rows = (t - 1) * p.reach(1, h) + h if is_flat else t * h
                    blocks = -(-rows * wide // block_p)
                    waves = -(-blocks * blocks_n // units)
                    # Half a wave stands for what a launch costs.
                    computed += times * several * (waves + 0.5) * units * block_p / blocks_n
            best = min(best, (traffic + computed, th, hh))
    return best


# What a bound's rounding may add to it.
_ROUNDING = 1 - 1e-9


def _parts(length: int, step: int) -> list[tuple[int, int]]:
    """Lengths of the pieces of `step`, and of the rest, with how many there are."""
    full, rest = divmod(length, step)
    return [(step, full), (rest, 1)] if rest else [(step, full)]


def _copied(length: int, step: int, p: Problem, axis: int) -> int:
    """Input lines along `axis` that are copied in all."""
    full, rest = divmod(length, step)
    return full * p.reach(axis, step) + (p.reach(axis, rest) if rest else 0)


def splits(tiles: int, steps: int, outputs: int, positions: int, units: int) -> int:
    """In how many parts the sum is cut so that all units have work; 1 for most.

    steps: iterations of the loop. Parts are at least 8 steps and their sums fit SPLIT_BYTES.
    """
    if tiles * 2 > units:
        return 1
    room = SPLIT_BYTES // max(1, 4 * outputs * positions)
    return max(1, min(units // tiles, steps // 8, room))


# How the tensors lie in memory, which kernel can read that in place, and how a weight is packed: as
# (outputs, taps, channels), for a narrow convolution as (kw, outputs, kt * kh, channels), channels
# innermost and a multiple of 8.

FiveStrides = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Layout:
    """Strides of x and out (n, c, t, h, w); aligned: x starts at a multiple of 16 bytes.

    weight: its strides (o, c, t, h, w), None for those of a dense one; weight_aligned: as of x.
    """

    x: FiveStrides
    out: FiveStrides
    aligned: bool
    weight: FiveStrides | None = None
    weight_aligned: bool = True

    @classmethod
    def of(cls, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor | None = None) -> Layout:
        """That of the tensors; the batch of a 4-dimensional one is the time."""
        strides, aligned = (_strides_of(x), _strides_of(out)), x.data_ptr() % 16 == 0
        if weight is None:
            return cls(*strides, aligned)
        o, c, *rest = weight.stride()
        t, h, w = rest if len(rest) == 3 else (0, *rest)
        return cls(*strides, aligned, (o, c, t, h, w), weight.data_ptr() % 16 == 0)


def is_points(p: Problem, layout: Layout) -> bool:
    """Whether `conv_points` computes this: 1x1x1, dense NCDHW, whole vectors."""
    if p.batch > GRID_LIMIT:
        return False
    t, h, w = p.size
    dense = all(
        s[2:] == (h * w, w, 1) or (t == 1 and s[3:] == (w, 1)) for s in (layout.x, layout.out)
    )
    plain = p.kernel == (1, 1, 1) and p.is_flat and not p.is_padded and p.groups == 1
    whole = p.channels % 8 == 0 and t * h * w % 8 == 0 and t * h * w < 2**31 - 512
    strided = all(s[1] % 8 == 0 and (p.batch == 1 or s[0] % 8 == 0) for s in (layout.x, layout.out))
    return dense and plain and whole and strided and layout.aligned


def strides_of(lengths: Sequence[int], strides: Sequence[int]) -> Strides:
    """Of (C, T, H, W): c, t, h, w; 0 along an axis of one position, 1 for a single channel."""
    c, t, h, w = (0 if n == 1 else s for n, s in zip(lengths, strides, strict=True))
    return (1 if lengths[0] == 1 else c, t, h, w)


def _strides_of(tensor: torch.Tensor) -> FiveStrides:
    """In the order n, c, t, h, w."""
    if tensor.dim() == 5:
        n, c, t, h, w = tensor.stride()
        return (n, c, t, h, w)
    n, c, h, w = tensor.stride()
    return (0, c, n, h, w)


# Taps and channels of one program. Taps lie together in memory, so a tile reads stretches of all
# taps of its channels; as few tiles as there are kernels to be checked on each architecture.
TILES = ((4, 512), (16, 256), (32, 128))


def plain_strides(p: Problem) -> FiveStrides:
    """Those of a dense weight in PyTorch's order, (o, c, t, h, w)."""
    kt, kh, kw = p.kernel
    return (p.channels * kt * kh * kw, kt * kh * kw, kh * kw, kw, 1)


def weight_axes(narrow: bool) -> tuple[int, int, int, int, int]:
    """The axes of a weight (o, c, t, h, w) in the order of the packed one."""
    return (4, 0, 2, 3, 1) if narrow else (0, 2, 3, 4, 1)


def _step(sizes: Iterable[int], strides: Iterable[int]) -> int | None:
    """From each of these positions, in order, to the next: 0 for one, None where that varies."""
    step, count = 0, 1
    for n, distance in reversed(tuple(zip(sizes, strides, strict=True))):
        if count > 1 and n > 1 and distance != step * count:
            return None
        step, count = step if n == 1 or count > 1 else distance, count * n
    return step


def is_packed(p: Problem, narrow: bool, strides: FiveStrides) -> bool:
    """Whether a weight with these strides lies as a packed one does."""
    sizes, axes = (p.cout, p.channels, *p.kernel), weight_axes(narrow)
    return p.channels % 8 == 0 and _step((sizes[k] for k in axes), (strides[k] for k in axes)) == 1


def make_packing(p: Problem, narrow: bool, strides: FiveStrides) -> Launch | None:
    """Packs a weight with these strides: its taps are loaded as the positions of a video. None
    where they don't lie evenly."""
    kt, kh, kw = p.kernel
    taps = (kt, kh, 1 if narrow else kw)
    count, step = math.prod(taps), _step(taps, strides[2:])
    if step is None:
        return None
    frames, high, lies = p.cout, 1, (strides[0], 0)
    if narrow:
        frames, high, lies = kw, p.cout, (strides[4], strides[0])
    operands = (("unpacked", 0), *(("weight", 0),) * 3)
    block = next((tile for tile in TILES if tile[0] >= count), TILES[-1])
    return make_load(
        operands, p.channels, (high, count), (strides[1], *lies, step), (frames, high, count),
        (0, 0, 0), frames, 0, block,
    )  # fmt: skip


#: Of load_rows: nothing is replicated, up-sampled, normalised or activated.
PLAIN = (False, False, False, 1, 1, 1, False, "", False, False)


def make_load(
    operands: tuple[tuple[str, int], ...], channels: int, size: tuple[int, int], strides: Strides,
    box: Triple, origin: Triple, up_frames: int, first: int, block: tuple[int, int],
    flags: tuple[Any, ...] = PLAIN, eps: float = 0.0,
) -> Launch:  # fmt: skip
    """load_rows: a box of frames, lines and columns from `origin` on. size: height and width of the
    piece, whose first frame is `first`; block: positions and channels of one program."""
    frames, lines, wide = box
    c = -(-channels // 8) * 8
    whole = strides[0] == 1 and channels == c and not any(n % 8 for n in strides[1:])
    vector = 8 if whole else 1
    t, h, w = origin
    count = frames * lines * -(-wide // block[0]) * -(-c // block[1])
    return Launch(
        "load_rows", (count, 1, 1), operands,
        (channels, c // 8, *size, lines, wide, h, w, t, up_frames, first, strides[0],
         *(n // vector for n in strides[1:]), eps),
        (*flags, strides[3] == 1, vector, *block), 4, 1,
    )  # fmt: skip


def with_weight(load: Launch, packing: Launch) -> Launch:
    """Both by one launch."""
    numbers = packing.numbers
    weight = (*numbers[:4], numbers[9], *numbers[11:-1])
    return Launch(
        "load_rows_and_weight", (load.grid[0] + packing.grid[0], 1, 1),
        (*load.operands[:2], *packing.operands[:2]), (load.grid[0], *load.numbers[:-1], *weight),
        (*load.constants[-4:], *packing.constants[-4:]), 4, 1,
    )  # fmt: skip
