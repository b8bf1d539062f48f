"""The plain way of `gemm`: kernels without extent in H and W, products of the input as it lies.

A frame of the input, or all of them, is the matrix (C, positions) or its transpose: nothing is
copied. The kT taps are products that are added up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products
from hy3d_rocm.conv.tiers.windows import geometry, lifted

# Sums in f32 at a time: about what a card's last-level cache holds, since they are read back at
# once to be rounded.
_SUM_BYTES = 40 << 20
# Pieces start at multiples of this many positions, as fast products want it.
_SLICE = 128
_MAX_LEADING = (1 << 31) - 1

Piece = tuple[int, int, int, int]  # first matrix, matrices, first position, positions


@dataclass(frozen=True)
class Matrices:
    """A tensor as `count` matrices of channels x positions: the strides from one matrix, channel,
    position or frame to the next."""

    count: int
    positions: int
    each: int
    channel: int
    step: int
    frame: int

    def view(
        self, tensor: torch.Tensor, channels: int, piece: Piece, start: int, *, rows: bool
    ) -> torch.Tensor:
        """The matrices of a piece, (channels, positions) with rows, else turned."""
        matrix, count, position, positions = piece
        start += matrix * self.each + position * self.step
        if rows:
            sizes, strides = (count, channels, positions), (self.each, self.channel, self.step)
        else:
            sizes, strides = (count, positions, channels), (self.each, self.step, self.channel)
        return tensor.as_strided(sizes, strides, start)


@dataclass(frozen=True)
class Steps:
    """cin: channels of a group. taps: products that are added up. Where one frame comes out, the
    frames it reads are channels (cin x kT of them, and one tap). samples: how often it is done, for
    one sample each; 1 where all are matrices of one list."""

    cin: int
    taps: int
    source: Matrices
    place: Matrices
    pieces: tuple[Piece, ...]
    samples: int


def can(spec: ConvSpec) -> bool:
    """Whether a convolution may be computed so, as far as strides don't matter."""
    shape = geometry(spec)
    if shape.kernel[1:] != (1, 1) or shape.stride != (1, 1, 1) or shape.is_padded:
        return False
    if products.work_dtype(spec.device, spec.dtype) is not spec.dtype:
        return False
    return shape.kernel[0] == 1 or not products.is_half(products.sum_dtype(spec.device, spec.dtype))


def workspace_bytes(spec: ConvSpec) -> int:
    """What the products take for their sums, and the weight in the order of its taps."""
    if not can(spec):
        return 0
    shape = geometry(spec)
    weights = math.prod(spec.weight_size) * spec.dtype.itemsize if shape.kernel[0] > 1 else 0
    if not products.can_widen(spec.device, spec.dtype):
        return weights
    outputs = spec.weight_size[0] // spec.groups
    positions = shape.batch * math.prod(shape.out)
    return weights + 4 * outputs * min(_most(outputs), positions + 3 * shape.batch * shape.out[0])


def steps(spec: ConvSpec, x: torch.Tensor, out: torch.Tensor) -> Steps | None:
    """What to do, noted in the spec; None where the strides make no matrices, or such as BLAS has
    slow products for and a copy is cheaper (kT > 1)."""
    noted = ("gemm in place", x.stride(), x.data_ptr() % 16)
    if noted not in spec.notes:
        spec.notes[noted] = _steps(spec, lifted(x), lifted(out))
    found: Steps | None = spec.notes[noted]
    return found


def _steps(spec: ConvSpec, x: torch.Tensor, out: torch.Tensor) -> Steps | None:
    shape = geometry(spec)
    taps, outputs, cin = shape.kernel[0], shape.cout // shape.groups, shape.cin // shape.groups
    whole = taps == 1 and all(flat_step(t.shape[2:], t.stride()[2:]) is not None for t in (x, out))
    source = _matrices(x, cin, shape.out[0], whole)
    place = _matrices(out, outputs, shape.out[0], whole)
    if source is not None and taps > 1 and shape.out[0] == 1:
        step = source.frame * shape.dilation[0]
        if source.step == 1 and source.channel == taps * step and step >= source.positions:
            source = dataclasses.replace(source, channel=step)
            cin, taps = cin * taps, 1
    if source is None or place is None or (taps > 1 and not _is_aligned(x, source)):
        return None
    widens = products.can_widen(spec.device, spec.dtype)
    most = _most(outputs) if widens else _MAX_LEADING
    pieces = tuple(_pieces(place.count, place.positions, most))
    return Steps(cin, taps, source, place, pieces, 1 if whole else shape.batch)


def flat_step(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """From a position to the next one where the dimensions are one, 0 where there is one position;
    None where they are not."""
    sides = [(n, s) for n, s in zip(sizes, strides, strict=True) if n > 1]
    if not sides:
        return 0
    wanted = sides[-1][1]
    for size, stride in reversed(sides):
        if stride != wanted:
            return None
        wanted = size * stride
    return sides[-1][1]


def blas_strides(channels: int, positions: int, channel: int, step: int) -> tuple[int, int] | None:
    """The strides of a matrix channels x positions, or of its transpose, as BLAS takes them; None
    where it takes none of them."""
    if positions == 1:
        step = channels if channel == 1 else 1
    if channels == 1:
        channel = positions if step == 1 else 1
    is_plain = step == 1 and channel >= positions
    if not is_plain and not (channel == 1 and step >= channels):
        return None
    return None if max(channel, step, positions) > _MAX_LEADING else (channel, step)


def _matrices(x: torch.Tensor, channels: int, frames: int, whole: bool) -> Matrices | None:
    """Frames of a sample (N, C, T, H, W), or whole samples, as matrices that BLAS takes; None where
    they are none. channels: of a group."""
    first = 2 if whole else 3
    step = flat_step(x.shape[first:], x.stride()[first:])
    if step is None:
        return None
    positions = math.prod(x.shape[first:])
    found = blas_strides(channels, positions, x.stride(1), step)
    if found is None:
        return None
    count, each = (x.shape[0], x.stride(0)) if whole else (frames, x.stride(2))
    return Matrices(count, positions, each, *found, x.stride(2))


def _is_aligned(x: torch.Tensor, source: Matrices) -> bool:
    """Whether every row of the matrices starts at 16 bytes."""
    strides = (source.each, source.frame, max(source.channel, source.step))
    return x.data_ptr() % 16 == 0 and all(s * x.element_size() % 16 == 0 for s in strides)


def _most(outputs: int) -> int:
    """Positions whose sums are made at a time."""
    return max(_SUM_BYTES // (4 * outputs) // _SLICE * _SLICE, _SLICE)


def _pieces(count: int, positions: int, most: int) -> Iterator[Piece]:
    if positions <= most:
        each = min(most // positions, count)
        for first in range(0, count, each):
            yield first, min(each, count - first), 0, positions
        return
    for matrix in range(count):
        for first in range(0, positions, most):
            yield matrix, 1, first, min(most, positions - first)


def run(
    found: Steps, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """out = x * weight + bias, by the steps of that call.

    A product of half types into a half type may be split by the library, whose parts are rounded to
    that type before they are added (allow_bf16_reduced_precision_reduction, on by default): hence
    sums in f32 where there are any.
    """
    shape = geometry(spec)
    outputs, cin = shape.cout // shape.groups, found.cin
    weights = _Weights(weight, found.taps, outputs, cin)
    rows = found.place.channel != 1 or outputs == 1
    widens = products.can_widen(out.device, out.dtype)
    tap = shape.dilation[0] * found.source.frame
    for group in range(shape.groups):
        part = None
        if bias is not None:
            step, first = bias.stride(0), bias.storage_offset() + group * outputs * bias.stride(0)
            view = ((1, outputs, 1), (0, step, 0)) if rows else ((1, 1, outputs), (0, 0, step))
            part = bias.as_strided(*view, first)
        for n in range(found.samples):
            # By the tensors' own strides: a matrix of one channel has any.
            start = int(x.storage_offset()) + n * x.stride(0)
            start += group * (shape.cin // shape.groups) * x.stride(1)
            to = n * out.stride(0) + group * outputs * out.stride(1)
            total: torch.Tensor | None = None
            for piece in found.pieces:
                place = found.place.view(out, outputs, piece, to, rows=rows)
                if total is None or total.shape != place.shape:
                    total = None
                for turn in range(found.taps):
                    data = found.source.view(x, cin, piece, start + turn * tap, rows=rows)
                    factor = weights.factor(group, turn, piece[1], not rows)
                    factors = (factor, data) if rows else (data, factor)
                    if turn:
                        assert total is not None
                        products.accumulate(total, *factors)
                    elif widens:
                        total = products.multiply(*factors, None, total)
                    elif part is None:
                        total = torch.bmm(*factors, out=place)
                    else:
                        total = torch.baddbmm(part, *factors, out=place)
                if widens:
                    assert total is not None
                    products.write(place, total, part)


class _Weights:
    """The weight as kT matrices (Cout, C), as it lies or, where BLAS can't take that, copied."""

    def __init__(self, weight: torch.Tensor, taps: int, outputs: int, cin: int) -> None:
        count = weight.shape[0]
        if cin != weight.shape[1]:  # the taps are channels
            weight = weight.reshape(count, cin)
        row, channel = weight.stride()[:2]
        tap = weight.stride(2) if taps > 1 else 0
        # What has one element has any stride.
        channel, row = (1 if cin == 1 else channel), (cin if count == 1 else row)
        if taps > 1 or channel != 1 or row < cin:
            sizes, strides = (taps, count, cin), (tap, row, channel)
            weight = torch.as_strided_copy(weight, sizes, strides, weight.storage_offset())
            tap, row = count * cin, cin
        self.weight, self.outputs, self.cin = weight, outputs, cin
        self.tap, self.row = tap, row
        self._made: dict[tuple[int, int, int], torch.Tensor] = {}

    def factor(self, group: int, turn: int, count: int, transposed: bool) -> torch.Tensor:
        made = self._made.get((group, turn, count))
        if made is None:
            start = self.weight.storage_offset() + group * self.outputs * self.row
            sizes, strides = (count, self.outputs, self.cin), (0, self.row, 1)
            if transposed:
                sizes, strides = (count, self.cin, self.outputs), (0, 1, self.row)
            made = self.weight.as_strided(sizes, strides, start + turn * self.tap)
            self._made[group, turn, count] = made
        return made
