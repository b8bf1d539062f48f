"""Columns of `gemm` that are cheap to have: those of a kernel of one element are the input as it
lies, and those of small layers are made by PyTorch's own im2col, since there the host is what costs
(`columns` asks the GPU for less, and the host for twice as many operators).

Frames are samples: with kT taps, the frames that an output reads are channels of one sample, as
the weight has them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.problem import Box, Problem, Triple
from hy3d_rocm.conv.tiers import products, windows

# Larger ones cost the GPU more than twice as many operators cost the host
# (paint_unet_512_b1 and seven other sets on an H200).
_COLUMN_BYTES = 32 << 20
_MOST_BYTES = 160 << 20
# Sums that are not made in the result itself, at a time: about what a card's last-level cache
# holds, since they are read back at once to be rounded.
_SUM_BYTES = 40 << 20
# Each of them is a kernel of im2col.
_MOST_SAMPLES = 4

_Piece = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """is_view: of a kernel of one element; then `samples` and boxes of `steps` are taken at a time,
    else all at once. work: dtype of the operands; total: of the sums; is_direct: they are made in
    the result. bytes: all that a run takes."""

    shape: Problem
    is_view: bool
    work: torch.dtype
    total: torch.dtype
    is_direct: bool
    samples: int = 0
    steps: Triple = (0, 0, 0)
    bytes: int = 0

    @property
    def depth(self) -> int:
        """Products of an output."""
        return self.shape.channels * math.prod(self.shape.kernel)

    def sum_bytes(self, samples: int, positions: int) -> int:
        """Of sums whose rows are aligned."""
        if self.is_direct:
            return 0
        return samples * self.shape.outputs * windows.aligned(positions) * self.total.itemsize


def plan(spec: ConvSpec) -> Plan | None:
    """None where the columns have to be made and im2col has no words for the padding, or they are
    too large."""
    work = products.work_dtype(spec.device, spec.dtype)
    total = products.sum_dtype(spec.device, spec.dtype)
    draft = Plan(spec.problem, spec.is_view, work, total, total is spec.dtype)
    if min(spec.out_size) == 0:
        return None
    return _views(draft) if draft.is_view else _small(draft, spec.dtype)


@functools.lru_cache(maxsize=1024)
def _views(draft: Plan) -> Plan | None:
    """Where the input does not lie as BLAS wants it, or is of another type, it is copied."""
    shape, weights = draft.shape, 2 * draft.shape.outputs * draft.depth * draft.work.itemsize

    def need(samples: int, steps: Triple) -> int:
        copy = samples * draft.depth * math.prod(steps) * draft.work.itemsize
        return weights + copy + draft.sum_bytes(samples, math.prod(steps))

    def excess(samples: int, steps: Triple) -> int:
        sums = draft.sum_bytes(samples, math.prod(steps))
        return max(need(samples, steps) - _MOST_BYTES, sums - _SUM_BYTES)

    steps = windows.steps_that_fit(shape.out, lambda steps: excess(1, steps), 0, cut_width=True)
    if steps is None:
        return None
    samples = 1
    if steps == shape.out:
        samples = windows.largest(shape.batch, lambda n: excess(n, shape.out) <= 0)
    size = need(samples, steps)
    return dataclasses.replace(draft, samples=samples, steps=steps, bytes=size)


def _small(draft: Plan, dtype: torch.dtype) -> Plan | None:
    shape, samples = draft.shape, draft.shape.batch * draft.shape.out[0]
    if shape.groups > 1 or min(shape.batch, shape.out[0]) > 1 or samples > _MOST_SAMPLES:
        return None
    # im2col pads H and W, as much before as after.
    if draft.work is not dtype or shape.pad_before[0] or shape.pad_before != shape.pad_after:
        return None
    positions = math.prod(shape.out[1:])
    columns = samples * positions * draft.depth * dtype.itemsize
    # Frames are copied where they are no channels as they lie, and by im2col; a weight where it is
    # not contiguous.
    frames = math.prod(shape.size[1:]) * shape.cin * shape.kernel[0] * samples
    held = columns + (2 * frames + shape.cout * draft.depth) * dtype.itemsize
    held += draft.sum_bytes(samples, positions)
    if columns > _COLUMN_BYTES or held > _MOST_BYTES:
        return None
    return dataclasses.replace(draft, samples=samples, steps=shape.out, bytes=held)


def run(
    found: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """out = x * weight + bias. All of 4 or 5 dimensions."""
    shape, outputs = found.shape, found.shape.outputs
    for group in range(shape.groups):
        rows = weight if shape.groups == 1 else weight[group * outputs : (group + 1) * outputs]
        rows = rows.reshape(1, outputs, found.depth).to(found.work)
        addend = bias
        if bias is not None and shape.groups > 1:
            addend = bias[group * outputs : (group + 1) * outputs]
        pieces = _parts(found, group, x, out) if found.is_view else _columns(found, x, out)
        for columns, place in pieces:
            _multiply(found, rows, columns.to(found.work), addend, place)


def _multiply(
    found: Plan, rows: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor | None,
    place: torch.Tensor,
) -> None:  # fmt: skip
    """place = rows @ columns + bias. columns: (N, depth, positions); place: (N, outputs,
    positions)."""
    samples, outputs, positions = place.shape
    if samples > 1:
        rows = rows.expand(samples, -1, -1)
    if found.is_direct:
        if bias is None:
            torch.bmm(rows, columns, out=place)
        else:
            torch.baddbmm(bias.view(1, -1, 1), rows, columns, out=place)
        return
    size, line = (samples, outputs, positions), windows.aligned(positions)
    addend = None if bias is None else bias.view(1, -1, 1)
    if place.stride(1) == 1 and outputs > 1:  # channels are adjacent
        rows, columns, place = columns.mT, rows.mT, place.mT
        size, line = (samples, positions, outputs), outputs
        addend = None if bias is None else bias
    total = torch.empty(samples * size[1] * line, dtype=found.total, device=place.device)
    total = total.as_strided(size, (size[1] * line, line, 1))
    products.multiply(rows, columns, None, total)
    products.write(place, total, addend)


def _parts(found: Plan, group: int, x: torch.Tensor, out: torch.Tensor) -> Iterator[_Piece]:
    """The input and the place of each result."""
    shape = found.shape

    def part(
        whole: torch.Tensor, channels: int, samples: tuple[int, int], box: Box
    ) -> torch.Tensor:
        if shape.groups > 1:
            whole = whole.narrow(1, group * channels, channels)
        if samples != (0, shape.batch):
            whole = whole[slice(*samples)]
        if found.steps != shape.out:
            whole = windows.target(windows.lifted(whole), box)
        return whole

    for samples in windows.cut(shape.batch, found.samples):
        for box in windows.boxes(shape.box, found.steps):
            columns = part(x, found.depth, samples, box)
            place = part(out, shape.outputs, samples, box)
            count = samples[1] - samples[0]
            yield columns.reshape(count, found.depth, -1), place.view(count, shape.outputs, -1)


def _columns(found: Plan, x: torch.Tensor, out: torch.Tensor) -> Iterator[_Piece]:
    """All of a small layer."""
    shape, samples = found.shape, found.samples
    columns = torch._C._nn.im2col(
        _frames(shape, samples, x), shape.kernel[1:], shape.dilation[1:], shape.pad_before[1:],
        shape.stride[1:],
    )  # fmt: skip
    each = out.stride(2 if shape.out[0] > 1 else 0) if samples > 1 else 0
    step = out.stride(-2 if shape.out[2] == 1 else -1)
    sizes = (samples, shape.cout, math.prod(shape.out[1:]))
    yield columns, out.as_strided(sizes, (each, out.stride(1), step))


def _frames(shape: Problem, samples: int, x: torch.Tensor) -> torch.Tensor:
    """x as (samples, C x kT, H, W)."""
    if x.dim() == 4:
        return x
    n, c, t, h, w = x.stride()
    taps, height, width = shape.kernel[0], *shape.size[1:]
    tap = t * shape.dilation[0]
    each = t * shape.stride[0] if shape.out[0] > 1 else n
    start = x.storage_offset()
    if taps == 1 or c == taps * tap:
        sizes = (samples, shape.cin * taps, height, width)
        return x.as_strided(sizes, (each, tap if taps > 1 else c, h, w), start)
    sizes5 = (samples, shape.cin, taps, height, width)
    copy = torch.as_strided_copy(x, sizes5, (each, c, tap, h, w), start)
    return copy.view(samples, shape.cin * taps, height, width)
