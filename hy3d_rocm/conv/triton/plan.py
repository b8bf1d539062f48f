"""How one convolution is cut into launches, and how its tensors lie. Pure integers: no torch, no
triton.

A `Plan` says where rows come from: the input itself where it already
is rows ("direct"), or a workspace that `to_rows` fills box by box.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
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
_ROW_LIMIT = 2**31 - 2**16  # row numbers are 32-bit; a block may reach beyond the end
_LINE_BYTES = 256  # parts of the workspace share no cache line

Call = Callable[[Sequence[int], int], None]  # of Operands.addresses and a stream


def problem(spec: ConvSpec) -> Problem:
    """The Problem of a conv2d or conv3d; the batch of a conv2d is its time."""
    return spec.problem.folded if spec.ndim == 2 else spec.problem


@dataclass(frozen=True)
class Box:
    """One launch: output frames [t0, t1) and output lines [h0, h1) of sample n."""

    n: int
    t0: int
    t1: int
    h0: int
    h1: int

    def lines(self, problem: Problem) -> tuple[int, int]:
        """Frames and lines of padded input that the box reads."""
        return problem.reach(0, self.t1 - self.t0), problem.reach(1, self.h1 - self.h0)


@dataclass(frozen=True)
class Plan:
    """direct: the input is rows already, all in one launch. Else boxes of at most th x hh."""

    problem: Problem
    direct: bool
    th: int
    hh: int

    def boxes(self) -> Iterator[Box]:
        """All boxes, later ones never larger than the first."""
        frames, lines, _ = self.problem.out
        for n in range(self.problem.batch):
            for t0 in range(0, frames, self.th):
                for h0 in range(0, lines, self.hh):
                    yield Box(n, t0, min(t0 + self.th, frames), h0, min(h0 + self.hh, lines))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the rows' workspace."""
        if self.direct:
            return 0
        first = next(self.boxes())
        frames, lines = first.lines(self.problem)
        p = self.problem
        return frames * lines * p.padded[2] * p.row_channels * p.itemsize


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: its name. operands: for each pointer argument the operand's name and the offset in
    elements. numbers, constants: the arguments after the pointers, in order.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int

    @property
    def compiled_for(self) -> tuple[Any, ...]:
        """What of it a compiled kernel depends on."""
        return self.kernel, self.constants, self.num_warps, self.num_stages


def refusal(p: Problem) -> str | None:
    """Why the kernel can't compute this, in a few words, or None."""
    if p.groups > 1 and (p.channels % 8 or p.outputs < 8):
        return (
            f"groups of {p.channels} -> {p.outputs} channels are too narrow for matrix units"
            " (multiples of 8 are taken)"
        )
    rows = p.batch * p.padded[0] * p.padded[1] * p.padded[2]
    if min(rows, smallest_box_rows(p)) >= _ROW_LIMIT:
        return f"{rows} rows of input do not fit 32-bit row numbers"
    if p.taps * p.tap_length >= _ROW_LIMIT or p.groups > GRID_LIMIT:
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


def make_plan(p: Problem, is_rows: bool, limit_bytes: int, tiling: Tiling) -> Plan:
    """The plan. is_rows: the input lies as rows in memory (channels-last, dense, aligned).

    Of the box shapes that fit the limit, the cheapest: rows copied (those in a halo twice), and
    tiles in whole waves, since a last wave takes as long as a full one. Where not even one line of
    output fits, one line.
    """
    rows = p.batch * p.padded[0] * p.padded[1] * p.padded[2]
    if is_rows and not p.is_padded and rows < _ROW_LIMIT:
        return Plan(p, True, p.out[0], p.out[1])
    line_bytes = p.padded[2] * p.row_channels * p.itemsize
    budget = max(1, min(limit_bytes // line_bytes, _ROW_LIMIT // p.padded[2]))
    _, th, hh = _cheapest(p, budget, tiling)
    return Plan(p, False, th, hh)


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

Strides = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Layout:
    """Strides of x and out (n, c, t, h, w); aligned: x starts at a multiple of 16 bytes.

    weight: its strides (o, c, t, h, w), None for those of a dense one; weight_aligned: as of x.
    """

    x: Strides
    out: Strides
    aligned: bool
    weight: Strides | None = None
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


def is_rows(p: Problem, layout: Layout) -> bool:
    """Whether x lies in memory as rows that the kernel can read."""
    c = p.row_channels
    if c != p.cin or not layout.aligned or c * p.itemsize % 16:
        return False
    return _lies((p.batch, c, *p.size), layout.x, rows_strides(p.size, c))


def _lies(sizes: tuple[int, ...], strides: Strides, wanted: Strides) -> bool:
    """Whether strides are those wanted, wherever they matter."""
    return all(n == 1 or a == b for n, a, b in zip(sizes, strides, wanted, strict=True))


def _strides_of(tensor: torch.Tensor) -> Strides:
    """In the order n, c, t, h, w."""
    if tensor.dim() == 5:
        n, c, t, h, w = tensor.stride()
        return (n, c, t, h, w)
    n, c, h, w = tensor.stride()
    return (0, c, n, h, w)


def rows_strides(size: Triple, channels: int) -> Strides:
    """Strides of a dense (n, t, h, w, c) tensor in the order n, c, t, h, w."""
    t, h, w = size
    return (t * h * w * channels, 1, h * w * channels, w * channels, channels)


# Taps and channels of one program. Taps lie together in memory, so a tile reads stretches of all
# taps of its channels; as few tiles as there are kernels to be checked on each architecture.
TILES = ((4, 512), (16, 256), (32, 128))


def channels_of(p: Problem) -> int:
    """Channels of one tap of a packed weight."""
    return p.channels if p.groups > 1 else p.row_channels


def plain_strides(p: Problem) -> Strides:
    """Those of a dense weight in PyTorch's order, (o, c, t, h, w)."""
    kt, kh, kw = p.kernel
    return (p.channels * kt * kh * kw, kt * kh * kw, kh * kw, kw, 1)


def packed_strides(p: Problem, narrow: bool) -> Strides:
    """Those of the packed weight, in the order o, c, t, h, w."""
    (kt, kh, _), c = p.kernel, channels_of(p)
    if narrow:
        return (kt * kh * c, 1, kh * c, c, p.cout * kt * kh * c)
    return rows_strides(p.kernel, c)


def is_packed(p: Problem, narrow: bool, strides: Strides) -> bool:
    """Whether a weight with these strides lies as a packed one does."""
    if channels_of(p) != p.channels:
        return False
    sizes = (p.cout, p.channels, *p.kernel)
    return _lies(sizes, strides, packed_strides(p, narrow))


def make_packing(p: Problem, narrow: bool, strides: Strides) -> Launch:
    """Packs a weight with these strides."""
    kt, kh, kw = p.kernel
    taps, c = kt * kh * kw, channels_of(p)
    to = packed_strides(p, narrow)
    lie = zip(p.kernel, strides[2:], (kh * kw, kw, 1), strict=True)
    dense = taps > 1 and all(n == 1 or a == b for n, a, b in lie)
    block_t, block_c = next((t for t in TILES if t[0] >= taps), TILES[-1])
    programs = p.cout * -(-taps // block_t) * -(-c // block_c)
    numbers = (p.channels, c // 8, taps, kh, kw, to[0] // c, to[3] // c, to[4] // c, *strides)
    operands, constants = (("unpacked", 0), ("weight", 0)), (dense, block_t, block_c)
    return Launch("pack_weight", (programs, 1, 1), operands, numbers, constants, 4, 1)
