"""The plan of `gemm`: how columns of the input are laid out, and how large a piece is.

In channels-last order the kW taps of a row lie next to each other, so a matrix whose rows start
one position apart, and overlap, holds all of them without a copy. BLAS wants rows that don't
overlap: every m-th position (m = ceil(kW / stride)) makes such a matrix, and the m of them are one
batched product. Only the kH taps (and kT, where that is cheaper than adding products up) are
copied: 3 or 9 times the input instead of 27, for one box of the output at a time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.windows import Geometry, Sizes, geometry

# Bytes at most, together below 256 MB with the BLAS library's own workspace (32 MiB on Hopper).
_WEIGHT_BYTES = 48 << 20
_COPY_BYTES = 64 << 20
_PIECE_BYTES = 96 << 20
# Sums start at multiples of so many positions (64 bytes of f32): below 16 bytes cuBLAS has slow
# kernels only. What the rounding adds is computed and not stored.
ALIGNED = 16
# Garbage columns (positions that straddle two rows) tolerated before kW is copied, too.
_MAX_WASTE = 1.5


@dataclass(frozen=True)
class Plan:
    """How one group of a convolution is cut.

    rows: output channels at a time. phases: m above. turns: products that are added up (kT or 1).
    line: positions a row of outputs takes. copied: elements copied for each position.
    outer: the box whose input is put into channels-last order at once; inner: that of a product.
    """

    shape: Geometry
    cin: int
    rows: int
    phases: int
    turns: int
    free_width: bool
    line: int
    copied: int
    outer: Sizes
    inner: Sizes
    bytes: int
    traffic: float  # bytes moved for each output position

    @property
    def step(self) -> int:
        """Elements from one output's columns to the next one's."""
        return self.copied * (self.shape.stride[2] if self.free_width else 1)

    @property
    def depth(self) -> int:
        """Products of one output in one turn."""
        return self.copied * (self.shape.kernel[2] if self.free_width else 1)

    def sums(self, planes: int, rows: int) -> int:
        """Positions of a phase that a box of so many planes and rows is computed for."""
        return rounded(planes * rows * self.line // self.phases)

    @property
    def width(self) -> int:
        """Positions of the input held for a line."""
        return self.line * (self.shape.stride[2] if self.free_width else 1)


def rounded(positions: int) -> int:
    return -(-positions // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class _Costs:
    """Bytes an element."""

    work: int
    total: int


def plan(spec: ConvSpec) -> Plan | None:
    """The cut of a convolution, or None where not even the smallest piece is small enough."""
    work = products.work_dtype(spec.device, spec.dtype)
    total = products.sum_dtype(spec.device, spec.dtype)
    return _plan(geometry(spec), _Costs(work.itemsize, total.itemsize), products.is_half(total))


@functools.lru_cache(maxsize=1024)
def _plan(shape: Geometry, costs: _Costs, rounds: bool) -> Plan | None:
    cin = shape.cin // shape.groups
    depth = cin * shape.taps
    rows = min(shape.cout // shape.groups, _WEIGHT_BYTES // (depth * costs.work))
    if rows == 0 or min(shape.out) == 0:
        return None
    best: Plan | None = None
    for turns in {1, 1 if rounds or shape.stride[0] > 1 else shape.kernel[0]}:
        for width in (shape.out[2], *(-(-shape.out[2] // n) for n in (4, 16, 64, 256, 1024))):
            found = _cut(shape, costs, cin, rows, turns, width)
            if found is not None:
                best = found if best is None or found.traffic < best.traffic else best
                break
    return best


def _cut(
    shape: Geometry, costs: _Costs, cin: int, rows: int, turns: int, width: int
) -> Plan | None:
    """The plan for boxes of `width` outputs a row that copies least; None if a row is too long."""
    taps = shape.kernel[1] * (1 if turns > 1 else shape.kernel[0])
    phases = -(-shape.kernel[2] // shape.stride[2])
    window = shape.window_sizes((1, 1, width))[2]
    line = math.ceil(math.ceil(window / shape.stride[2]) / phases) * phases
    free = shape.dilation[2] == 1 and line <= _MAX_WASTE * width
    if not free:
        taps, phases, line = taps * shape.kernel[2], 1, width
    copied = cin * taps
    held = line * (shape.stride[2] if free else 1)

    def piece(steps: Sizes) -> int:
        t, h, _ = steps
        planes = shape.window_sizes((t, h, 1))[0] if turns > 1 else t
        slack = phases * ALIGNED
        columns = (planes * h * held + slack * (held // line) + shape.kernel[2]) * copied
        return columns * costs.work + (t * h * line + slack) * rows * costs.total

    def copy(steps: Sizes) -> int:
        return cin * math.prod(shape.window_sizes(steps)) * costs.work

    outer = windows.least_halo(shape, width, copy, _COPY_BYTES, shape.out)
    inner = outer and windows.least_halo(shape, width, piece, _PIECE_BYTES, outer, planes=turns > 1)
    if outer is None or inner is None:
        return None
    planes = shape.window_sizes((inner[0], 1, 1))[0] / inner[0] if turns > 1 else 1.0
    # Channels-last copy, columns, what products read of them, and what they add up and round.
    moved = (2 + shape.taps) * cin + 2 * planes * copied
    traffic = moved * costs.work + turns * 2 * rows * costs.total
    total = rows * cin * shape.taps * costs.work + copy(outer) + piece(inner)
    return Plan(
        shape, cin, rows, phases, turns, free, line, copied, outer, inner, total, traffic
    )  # fmt: skip
