"""The plain way of `gemm`: kernels without extent in H and W, products of the input as it lies.

A frame of the input, or all of them, is the matrix (C, positions) or its transpose: nothing is
copied. The kT taps are products that are added up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import products
from hy3d_rocm.conv.tiers.windows import geometry

# Sums in f32 at a time: about what a card's last-level cache holds, since they are read back at
# once to be rounded.
_SUM_BYTES = 40 << 20
# Pieces start at multiples of this many positions, as fast products want it.
_SLICE = 128
_MAX_LEADING = (1 << 31) - 1

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Matrices:
    """A tensor as `count` matrices of channels x positions: sizes, and the strides from one matrix,
    channel, position or frame to the next."""

    count: int
    positions: int
    each: int
    channel: int
    step: int
    frame: int


@dataclass(frozen=True)
class Pieces:
    """`count` products, each of `matrices` matrices of `positions`. The first one starts at that
    matrix and position, the next one `jump` matrices or positions further on."""

    count: int
    matrices: int
    positions: int
    matrix: int
    position: int
    jump: tuple[int, int]


@dataclass(frozen=True)
class Steps:
    """cin: channels of a group. taps: products that are added up. Where one frame comes out, the
    frames it reads are channels (cin x kT of them, and one tap). samples: how often it is done, for
    one sample each; 1 where all are matrices of one list."""

    cin: int
    taps: int

    source: Matrices
    place: Matrices
    pieces: tuple[Pieces, ...]
    samples: int
    x_sample: int
    out_sample: int


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
    if not products.is_half(spec.dtype):
        return weights
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
        spec.notes[noted] = _steps(spec, x, out)
    found: Steps | None = spec.notes[noted]
    return found


def _steps(spec: ConvSpec, x: torch.Tensor, out: torch.Tensor) -> Steps | None:
    shape = geometry(spec)
    taps, outputs, cin = shape.kernel[0], shape.cout // shape.groups, shape.cin // shape.groups
    whole = taps == 1 and _is_flat(x) and _is_flat(out)
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
    samples = 1 if whole else shape.batch
    return Steps(
        cin,
        taps,
        source,
        place,
        pieces,
        samples,
        x.stride(0),
        out.stride(0),
    )


def _axes(x: torch.Tensor) -> tuple[Ints, Ints]:
    """Sizes and strides of T, H, W."""
    if x.dim() == 4:
        return (1, *x.shape[2:]), (0, *x.stride()[2:])
    return tuple(x.shape[2:]), x.stride()[2:]


def _step(x: torch.Tensor) -> int | None:
    """From a position of a frame to the next one, 0 if there is none; None where that differs."""
    (_, height, width), (_, row, step) = _axes(x)
    if width == 1:
        return row if height > 1 else 0
    return step if height == 1 or row == width * step else None


def _is_flat(x: torch.Tensor) -> bool:
    """Whether T, H and W of a sample are one dimension."""
    (t, h, w), (frame, _, _) = _axes(x)
    step = _step(x)
    return t == 1 or (step is not None and h * w > 1 and frame == h * w * step)


def _matrices(x: torch.Tensor, channels: int, frames: int, whole: bool) -> Matrices | None:
    """Frames of a sample, or whole samples, as matrices that BLAS takes; None where they are none.

    channels: of a group.
    """
    (t, h, w), (frame, _, _) = _axes(x)
    channel, step = x.stride(1), _step(x)
    if step is None:
        return None
    positions = t * h * w if whole else h * w
    if positions == 1:
        step = channels if channel == 1 else 1
    if channels == 1:
        channel = positions if step == 1 else 1
    is_plain = step == 1 and channel >= positions
    if not is_plain and not (channel == 1 and step >= channels):
        return None
    if max(channel, step, positions) > _MAX_LEADING:
        return None
    count, each = (x.shape[0], x.stride(0)) if whole else (frames, frame)
    return Matrices(count, positions, each, channel, step, frame)


def _is_aligned(x: torch.Tensor, source: Matrices) -> bool:
    """Whether every row of the matrices starts at 16 bytes."""
    strides = (source.each, source.frame, max(source.channel, source.step))
    return x.data_ptr() % 16 == 0 and all(s * x.element_size() % 16 == 0 for s in strides)


def _most(outputs: int) -> int:
    """Positions whose sums are made at a time."""
    return max(_SUM_BYTES // (4 * outputs) // _SLICE * _SLICE, _SLICE)


def _pieces(count: int, positions: int, most: int) -> Iterator[Pieces]:
    if positions <= most:
        each = min(most // positions, count)
        yield Pieces(count // each, each, positions, 0, 0, (each, 0))
        if count % each:
            yield Pieces(1, count % each, positions, count - count % each, 0, (0, 0))
        return
    for matrix in range(count):
        yield Pieces(positions // most, 1, most, matrix, 0, (0, most))
        if positions % most:
            yield Pieces(1, 1, positions % most, matrix, positions - positions % most, (0, 0))


def run(
    found: Steps, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """out = x * weight + bias, by the steps of that call."""
    shape = geometry(spec)
    outputs, cin = shape.cout // shape.groups, found.cin
    taps = _Taps(weight, found.taps, outputs, cin)
    by_channel = found.place.channel == 1 and outputs > 1
    for group in range(shape.groups):
        part = None
        if bias is not None:
            row, first = bias.stride(0), bias.storage_offset() + group * outputs * bias.stride(0)
            view = ((1, 1, outputs), (0, 0, row)) if by_channel else ((1, outputs, 1), (0, row, 0))
            part = bias.as_strided(*view, first)
        for n in range(found.samples):
            source = _Lane(found.source, x, cin, not by_channel,
                           int(x.storage_offset()) + n * found.x_sample
                           + group * cin * found.source.channel)  # fmt: skip
            place = _Lane(found.place, out, outputs, not by_channel,
                          n * found.out_sample + group * outputs * found.place.channel)  # fmt: skip
            for pieces in found.pieces:
                turns = [(taps.factor(group, turn, pieces.matrices, by_channel),
                          source.views(pieces, turn * shape.dilation[0] * found.source.frame))
                         for turn in range(found.taps)]  # fmt: skip
                _run_pieces(turns, place.views(pieces, 0), part, by_channel)


@dataclass(frozen=True)
class _Lane:
    """One sample and group of a tensor. rows: its matrices are (channels, positions)."""

    matrices: Matrices
    tensor: torch.Tensor
    channels: int
    rows: bool
    start: int

    def views(self, pieces: Pieces, offset: int) -> tuple[torch.Tensor, ...]:
        """A tensor for each product. All are cut by one operator, which costs the host less."""
        m, count = self.matrices, pieces.matrices
        sizes, strides = (count, self.channels, pieces.positions), (m.each, m.channel, m.step)
        if not self.rows:
            sizes, strides = (sizes[0], sizes[2], sizes[1]), (strides[0], strides[2], strides[1])
        offset += self.start + pieces.matrix * m.each + pieces.position * m.step
        if pieces.count == 1:
            return (self.tensor.as_strided(sizes, strides, offset),)
        jump = pieces.jump[0] * m.each + pieces.jump[1] * m.step
        held = self.tensor.as_strided((pieces.count, *sizes), (jump, *strides), offset)
        return held.unbind(0)


class _Taps:
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

    def factor(self, group: int, turn: int, count: int, transposed: bool) -> torch.Tensor:
        start = self.weight.storage_offset() + group * self.outputs * self.row + turn * self.tap
        if transposed:
            return self.weight.as_strided((count, self.cin, self.outputs), (0, 1, self.row), start)
        return self.weight.as_strided((count, self.outputs, self.cin), (0, self.row, 1), start)


def _run_pieces(
    turns: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]], places: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None, by_channel: bool,
) -> None:  # fmt: skip
    """Products of the same size. A product of half types into a half type may be split by the
    library, whose parts are rounded to that type before they are added
    (allow_bf16_reduced_precision_reduction, on by default): hence sums in f32 where there are any.
    """
    widens = products.can_widen(places[0].device, places[0].dtype)
    total: torch.Tensor | None = None
    for index, place in enumerate(places):
        for turn, (weight, sources) in enumerate(turns):
            factors = (sources[index], weight) if by_channel else (weight, sources[index])
            if turn:
                assert total is not None
                products.accumulate(total, *factors)
            elif widens:
                total = products.multiply(*factors, None, total)
            elif bias is None:
                total = torch.bmm(*factors, out=place)
            else:
                total = torch.baddbmm(bias, *factors, out=place)
        if widens and total is not None:
            products.write(place, total, bias)
