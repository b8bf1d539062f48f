"""A video in slices of frames, and the grains in which a convolution goes over it.

The grains depend on shapes and on slice_bytes alone: never on budget, residency or faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.engines.geometry import (
    kernel_size,
    own_frames,
    padded_size,
    result_shape,
    source_range,
)
from hy3d_rocm.decode.engines.spill import Slice
from hy3d_rocm.decode.layers import Conv, Moments, Pieces, Range

if TYPE_CHECKING:
    from torch import Tensor

SLICE_BYTES = {"cpu": 32 << 20}
GPU_SLICE_BYTES = 512 << 20

Shape = tuple[int, int, int, int]


def default_slice_bytes(device: torch.device) -> int:
    """Bytes of a slice where nobody says: small where the cache matters, large where launching
    does."""
    return SLICE_BYTES.get(device.type, GPU_SLICE_BYTES)


class Sliced:
    """A video (1, C, T, H, W) as slices in order. parts: the moments of each slice, None where they
    were not gathered."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.slices: list[Slice] = []
        self.parts: list[Moments | None] = []
        self.consumed = False

    @property
    def frame_bytes(self) -> int:
        channels, _, rows, columns = self.shape
        return channels * rows * columns * self.dtype.itemsize

    def append(self, piece: Slice, moments: Moments | None) -> None:
        self.slices.append(piece)
        self.parts.append(moments)

    def covering(self, frames: Range) -> list[Slice]:
        """The slices that hold these frames."""
        return [s for s in self.slices if s.first < frames[1] and s.stop > frames[0]]


def pieces_of(slices: Sequence[Slice], tensors: Sequence[Tensor], skip: int, total: int) -> Pieces:
    """Slices as a layer's source whose own video begins at frame `skip`."""
    first = slices[0].first - skip
    parts = list(tensors)
    if first < 0:
        parts[0] = parts[0][:, :, -first:]
        first = 0
    return Pieces(tuple(parts), first, total - skip)


def frames_of(
    slices: Sequence[Slice], tensors: Sequence[Tensor], frames: Range, copy: bool = False
) -> Tensor:
    """Some frames out of the slices that cover them: one tensor, a copy where they are several (or
    it is asked for)."""
    parts = [
        t[:, :, max(frames[0] - s.first, 0) : frames[1] - s.first]
        for s, t in zip(slices, tensors, strict=True)
    ]
    if len(parts) > 1:
        return torch.cat(parts, dim=2)
    return parts[0].clone() if copy else parts[0]


@dataclass(frozen=True)
class Grain:
    """One call of the backend. own: frames of the convolution's output before the shuffle; result:
    frames of the result; drop: frames to be cut off its start; reads: frames of x."""

    own: Range
    result: Range
    drop: int
    reads: Range


class ConvPlan:
    """A layer over a video of `shape`.

    cuts: frames of the result where a grain should end (those where a slice of the residual ends,
    which can then be taken as it is).
    """

    def __init__(
        self, layer: Conv, shape: Shape, dtype: torch.dtype, weight: Tensor,
        slice_bytes: int, cuts: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.layer = layer
        self.kernel = kernel_size(weight)
        self.total = shape[1]
        self.shape: Shape = result_shape(layer, shape, tuple(weight.shape), self.kernel)
        if self.shape[1] <= 0:
            raise ValueError(f"a video of {shape[1]} frames is too short for this layer")
        self.passed = min(layer.skip_first, shape[1])
        # The frame of x at which the convolution's own video begins.
        self.base = layer.skip_first - layer.reread
        shuffle = layer.shuffle
        self._rt = 1 if shuffle is None else shuffle.factor[0]
        self._lead = self._rt if shuffle is None or shuffle.first is None else shuffle.first[0]
        self._drop = 0 if shuffle is None else shuffle.drop
        self.step = max(1, slice_bytes // self._frame_bytes(shape, dtype.itemsize))
        self.grains = self._grains(shape[1] - self.base, sorted(set(cuts)))

    def _frame_bytes(self, shape: Shape, item: int) -> int:
        """Of the larger of result and padded input, for a frame of the convolution's output."""
        channels, _, rows, columns = self.shape
        result = channels * rows * columns * max(self._rt, self._lead)
        high, wide = padded_size(self.layer, shape[2:])
        return max(result, shape[0] * high * wide * self.layer.stride[0]) * item

    def _grains(self, frames: int, cuts: list[int]) -> list[Grain]:
        """frames: of the convolution's own video."""
        total = own_frames(self.layer, frames, self.kernel[0]) if frames > 0 else 0
        ends = {end for end in map(self._own_end, cuts) if end is not None and end < total}
        # The first grain makes at least one frame that is not dropped.
        least = next((n for n in range(1, total) if self._start(n) > self._drop), total)
        found: list[Grain] = []
        at = 0
        for end in [*sorted(e for e in ends if e >= least), total]:
            while at < end:
                stop = max(min(at + self.step, end), min(least, end))
                found.append(self._grain((at, stop), frames))
                at = stop
        return found

    def _start(self, own: int) -> int:
        """The shuffled frame at which output frame `own` begins, nothing dropped."""
        return self._lead + (own - 1) * self._rt if own else 0

    def _own_end(self, cut: int) -> int | None:
        """The output frame at which the result's frame `cut` begins, if one does."""
        own, rest = divmod(cut - self.passed + self._drop - self._lead, self._rt)
        return own + 1 if rest == 0 and own >= 0 else None

    def _grain(self, own: Range, frames: int) -> Grain:
        offset = self.passed - self._drop
        first, stop = self._start(own[0]) + offset, self._start(own[1]) + offset
        reads = source_range(self.layer, own, self.kernel[0], frames)
        drop = max(0, self.passed - first)
        return Grain(own, (first + drop, stop), drop, (reads[0] + self.base, reads[1] + self.base))
