"""A convolution in integers, as tiers cut it: always in three dimensions. No torch, no triton."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

Triple = tuple[int, int, int]
Range = tuple[int, int]  # first, one past the last
Box = tuple[Range, Range, Range]  # T, H, W of the output


@dataclass(frozen=True)
class Problem:
    """Sizes as (t, h, w). `channels` and `outputs` are those of one group.

    Tiers that copy the input into rows have a row for each position of it, with all channels.
    """

    batch: int
    channels: int
    outputs: int
    groups: int
    size: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad_before: Triple
    pad_after: Triple
    itemsize: int

    @cached_property
    def padded(self) -> Triple:
        """Input size with its padding."""
        sides = zip(self.size, self.pad_before, self.pad_after, strict=True)
        return triple(n + a + b for n, a, b in sides)

    @cached_property
    def out(self) -> Triple:
        """Output size."""
        parts = zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        return triple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in parts)

    @property
    def box(self) -> Box:
        """The whole output."""
        t, h, w = self.out
        return (0, t), (0, h), (0, w)

    @property
    def cin(self) -> int:
        """Channels of all groups."""
        return self.channels * self.groups

    @property
    def cout(self) -> int:
        """Outputs of all groups."""
        return self.outputs * self.groups

    @property
    def is_padded(self) -> bool:
        return any(self.pad_before) or any(self.pad_after)

    def span(self, axis: int, part: Range) -> Range:
        """The input that outputs `part` of an axis read; outside of 0 .. size is padding."""
        first = part[0] * self.stride[axis] - self.pad_before[axis]
        return first, first + self.reach(axis, part[1] - part[0])

    def reach(self, axis: int, outputs: int) -> int:
        """Input positions along an axis that so many outputs read."""
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def box_elems(self, counts: Triple) -> tuple[int, int]:
        """Elements that a box of so many outputs reads, with its padding, and those it makes."""
        return self.cin * math.prod(self.window_sizes(counts)), self.cout * math.prod(counts)

    def window_sizes(self, counts: Triple) -> Triple:
        """T, H, W of the input window of a box of so many outputs."""
        return triple(self.reach(axis, count) for axis, count in enumerate(counts))

    @property
    def row_channels(self) -> int:
        """Channels of a row: a multiple of 8, so that 16-byte loads of half types fit."""
        return -(-self.cin // 8) * 8

    @property
    def is_flat(self) -> bool:
        """Whether an output position and a tap are a constant number of rows apart."""
        return self.stride == (1, 1, 1)

    @property
    def merged(self) -> bool:
        """Whether the taps along w are one tap of contiguous memory."""
        return self.dilation[2] == 1 and self.groups == 1

    @property
    def tap_length(self) -> int:
        """Contiguous elements of one tap."""
        if self.groups > 1:
            return self.channels
        return self.row_channels * (self.kernel[2] if self.merged else 1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight, packed in rows."""
        return self.cout * self.taps * self.tap_length * self.itemsize

    @property
    def taps(self) -> int:
        """Of an output: taps along w count as one where they are merged."""
        kt, kh, kw = self.kernel
        return kt * kh * (1 if self.merged else kw)

    @property
    def folded(self) -> Problem:
        """Itself, or with the samples of a batch of single frames as frames of one sample."""
        single = (self.size[0], self.kernel[0], self.pad_before[0], self.pad_after[0])
        if self.batch == 1 or single != (1, 1, 0, 0):
            return self
        stride, dilation = (1, *self.stride[1:]), (1, *self.dilation[1:])
        size = (self.batch, *self.size[1:])
        return replace(self, batch=1, size=size, stride=stride, dilation=dilation)


def triple(values: Iterable[int], fill: int = 1) -> Triple:
    """Of three numbers, or of two behind `fill`."""
    t, h, w = (fill, fill, *values)[-3:]
    return t, h, w
