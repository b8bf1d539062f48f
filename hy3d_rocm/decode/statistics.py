"""GroupNorm's statistics of a whole video, estimated from a part of it.

The part is made of single rows and columns of the trunk's output, evenly spread over the picture
and put side by side, of all frames or of a few runs of them. Strangers meet everywhere in it, yet
it tells more than as many neighbours in blocks: pictures differ more from place to place than from
scale to scale. Averages of neighbours lose the small differences, and single frames make of every
movement a jump (figures: docs/decode.md, tests/bench/measure_statistics.py). A correction takes
care of what remains, where one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.moments import (
    channel_moments,
    combine,
    norm_parameters,
    wide_type,
)

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.layers import Moments, Norm, Range, Weights

Size = tuple[int, int, int]
# Rows or columns, and frames, that are taken together.
BLOCK_ROWS, BLOCK_FRAMES = 1, 5


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean and variance of each group, float64 (G,), of one norm."""

    mean: Tensor
    variance: Tensor

    def affine(
        self, norm: Norm, weights: Weights, channels: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Factor and summand (C,) for a video of `dtype`: as group_affine()."""
        repeats = channels // norm.groups
        factor = (self.variance + norm.eps).rsqrt().repeat_interleave(repeats)
        weight, bias = norm_parameters(norm, weights)
        if weight is not None:
            factor = factor * weight.double()
        summand = -self.mean.repeat_interleave(repeats) * factor
        if bias is not None:
            summand = summand + bias.double()
        return factor.to(wide_type(dtype)), summand.to(wide_type(dtype))

    def deviation(self, truth: Statistics) -> float:
        """Largest error against the true ones: of a mean in standard deviations, or of a standard
        deviation in itself."""
        sigma = truth.variance.clamp_min(1e-30).sqrt()
        mean = (self.mean - truth.mean).abs() / sigma
        spread = (self.variance.sqrt() / sigma - 1).abs()
        return float(torch.maximum(mean, spread).max())


def grouped(moments: Moments, groups: int) -> Statistics:
    """Statistics of groups of channels."""
    mean = moments.mean.double().view(groups, -1)
    variance = moments.deviations.double().view(groups, -1) / moments.count
    centre = mean.mean(dim=1)
    return Statistics(centre, variance.mean(dim=1) + (mean - centre[:, None]).square().mean(dim=1))


@dataclass(frozen=True, eq=False)
class Correction:
    """What the part measured at a norm, and what the whole video did, with the same statistics in
    force. `of` moves what the part measures now by that difference."""

    part: Statistics
    whole: Statistics

    def of(self, now: Statistics, eps: float) -> Statistics:
        gain = (now.variance + eps) / (self.part.variance + eps)
        return Statistics(
            now.mean + (self.whole.mean - self.part.mean) * gain.sqrt(),
            self.whole.variance * gain,
        )


class Gathering:
    """True moments of each group norm, frame by frame as tiles come by."""

    def __init__(self, count: int) -> None:
        self._moments: list[Moments | None] = [None] * count
        self._groups = [1] * count

    def add(self, norm: Norm, index: int, frames: Tensor) -> None:
        """`frames` (1, C, t, h, w) belong to nobody else."""
        if frames.numel() == 0:
            return
        more, known = channel_moments(frames), self._moments[index]
        self._moments[index] = more if known is None else combine([known, more])
        self._groups[index] = norm.groups

    def statistics_of(self, index: int) -> Statistics:
        """Of one norm, which has seen frames."""
        moments = self._moments[index]
        if moments is None:
            raise RuntimeError("a norm saw no frames")
        return grouped(moments, self._groups[index])


def blocks(length: int, keep: int, block: int, from_start: bool = False) -> list[int]:
    """`keep` of `length` indices (all where that is as many): blocks of about `block` neighbours,
    evenly spread; from_start: the first one begins at 0."""
    if keep >= length:
        return list(range(length))
    count = max(keep // block, 1)
    free = length - keep
    found: list[int] = []
    for i in range(count):
        gap = free * (2 * i + 1) // (2 * count)
        if from_start:
            gap = free * i // max(count - 1, 1)
        start = len(found) + gap
        found += range(start, start + keep * (i + 1) // count - keep * i // count)
    return found


def reduced(fetch: Callable[[Range], Tensor], size: Size, keep: Size) -> Tensor:
    """The part of a grid of `size` (T, H, W) that has the size `keep`; fetch((first, stop)) gives
    frames (1, C, t, H, W). The first frame is always in it: causal layers treat it apart."""
    frames = blocks(size[0], keep[0], BLOCK_FRAMES, from_start=True)
    rows, columns = (blocks(n, k, BLOCK_ROWS) for n, k in zip(size[1:], keep[1:], strict=True))
    parts = []
    for frame in frames:
        part = fetch((frame, frame + 1))
        parts.append(part[:, :, :, rows][..., columns])
    return torch.cat(parts, 2)
