"""Mean and variance of activations, and what a GroupNorm makes of them.

Per channel, since a channel's moments serve every grouping, of an activation that is in memory a
few frames at a time; combined in float64.

Tiles share the statistics of a whole video that is never there: they are estimated from a part of
it, single rows and columns of the prefix's output, evenly spread over the picture and put side by
side, of all frames or of a few runs of them. Pictures differ more from place to place than from
scale to scale, so this tells more than as many neighbours in blocks; averages of neighbours lose
the small differences, and single frames make of every movement a jump (figures: docs/decode.md,
tests/bench/measure_statistics.py). A correction takes care of what remains, where one is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

from hy3d_rocm import _native
from hy3d_rocm.decoding.layers import Moments, Norm, Range, Triple, Weights
from hy3d_rocm.decoding.memory.dry_run import modelled

Affine = tuple[Tensor, Tensor]  # factor and summand (C,)
# Rows or columns, and frames, of a part that are taken together.
BLOCK_ROWS, BLOCK_FRAMES = 1, 5
# Float copies are made so many elements at a time: on the CPU what stays in the cache.
CPU_BLOCK, GPU_BLOCK = 1 << 20, 1 << 22
# What the C core and the fused kernels compute in, as they call it.
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """What norms of values of `dtype` are computed in: float32, of float64 itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def block_elements(device: torch.device) -> int:
    """Elements of a float copy; shapes alone ("meta") as on the device that they stand for."""
    return CPU_BLOCK if modelled(device).type == "cpu" else GPU_BLOCK


def blocks(x: Tensor, limit: int) -> Iterator[tuple[slice, slice]]:
    """(channels, frames) of x (C, T, H, W) in parts of at most `limit` elements, or one frame of
    one channel where that is more."""
    (channels, frames), plane = x.shape[:2], max(x[0, 0].numel(), 1)
    many, few = limit // (channels * plane), max(1, limit // plane)
    if many:
        for t in range(0, frames, many):
            yield slice(0, channels), slice(t, min(t + many, frames))
        return
    for t in range(frames):
        for c in range(0, channels, few):
            yield slice(c, min(c + few, channels)), slice(t, t + 1)


def channel_moments(x: Tensor) -> Moments:
    """Moments of each channel of x (1, C, T, H, W), float64 (C,); no whole float copy is made.

    Nothing cancels: the C core sums in float64; without it, and on a GPU, deviations are taken from
    a block's own mean.
    """
    body, count = x[0], x[0, 0].numel()
    if _native.available and x.device.type == "cpu" and x.dtype in NAMES and count:
        found = torch.empty((2, x.shape[1]), dtype=torch.float64, device="cpu")
        source, *into = (_View(t) for t in (x.detach().resolve_neg(), found[0], found[1]))
        _native.channel_moments(source, into[0], into[1], torch.get_num_threads())
        return Moments(count, found)
    per_channel: dict[int, list[Moments]] = {}
    for channels, frames in blocks(body, block_elements(x.device)):
        part = _block_moments(body[channels, frames])
        per_channel.setdefault(channels.start, []).append(part)
    columns = [combine(parts).rows for parts in per_channel.values()]
    return Moments(count, torch.cat(columns, 1))


class _View:
    """A tensor in host memory as DLPack, without the operators that Tensor.__dlpack__ asks first:
    one that runs out of memory would come back as another error."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> Any:
        return dlpack.to_dlpack(self._tensor)  # type: ignore[attr-defined]


def _block_moments(part: Tensor) -> Moments:
    count = part[0].numel()
    wide = part.to(wide_type(part.dtype))
    variance, mean = torch.var_mean(wide, dim=(1, 2, 3), correction=0)
    return Moments(count, torch.stack((mean.double(), variance.double() * count)))


def combine(parts: Sequence[Moments]) -> Moments:
    """Moments of several parts together (Chan), float64; the order of `parts` is kept."""
    if not parts:
        raise ValueError("no moments to combine: the activation has no frames")
    if len(parts) == 1:
        return parts[0]
    means, deviations = torch.stack([m.rows for m in parts], 1)
    counts = [m.count for m in parts]
    count = sum(counts)
    # A fill for each run of equal shares: a tensor of them would be copied, and waited for.
    alike = [(n / count, len(list(run))) for n, run in itertools.groupby(counts)]
    if len(alike) == 1:
        variance, mean = torch.var_mean(means, dim=0, correction=0)
    else:
        shares = torch.cat([means.new_full((length, 1), share) for share, length in alike])
        mean = (means * shares).sum(dim=0)
        variance = ((means - mean).square() * shares).sum(dim=0)
    deviation = torch.add(deviations.sum(dim=0), variance, alpha=count)
    return Moments(count, torch.stack((mean, deviation)))


def group_affine(
    norm: Norm, moments: Moments, weights: Weights, dtype: torch.dtype = torch.float32
) -> Affine:
    """Factor and summand (C,) that stand for the "group" norm of a video of `dtype` with these
    moments, its weight, bias, scale and shift included: float32, for a float64 video float64."""
    return grouped(moments, norm.groups).affine(norm, weights, moments.rows.shape[1], dtype)


def norm_parameters(norm: Norm, weights: Weights) -> tuple[Tensor | None, Tensor | None]:
    """The norm's weight and bias (C,) with its scale and shift folded in: float32, of float64
    weights float64."""
    named = [None if n is None else weights.of(norm.module, n) for n in (norm.weight, norm.bias)]
    given = [*named, norm.scale, norm.shift]
    kinds = [(p.device, wide_type(p.dtype)) for p in given if p is not None]  # the weights' first
    weight, bias, scale, shift = (None if p is None else p.reshape(-1).to(*kinds[0]) for p in given)
    if scale is not None:
        weight = 1 + scale if weight is None else weight * (1 + scale)
        bias = None if bias is None else bias * (1 + scale)
    if shift is not None:
        bias = shift if bias is None else bias + shift
    return weight, bias


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean and variance of each group, float64 (G,), of one norm."""

    mean: Tensor
    variance: Tensor

    def affine(self, norm: Norm, weights: Weights, channels: int, dtype: torch.dtype) -> Affine:
        """Factor and summand (C,) for a video of `dtype`: as group_affine()."""
        size = norm.groups, channels // norm.groups
        parameters = norm_parameters(norm, weights)
        weight, bias = (None if p is None else p.expand(channels).view(size) for p in parameters)
        factor = (self.variance + norm.eps).rsqrt_()[:, None]
        factor = factor.expand(size) if weight is None else factor * weight
        summand = -self.mean[:, None] * factor
        if bias is not None:
            summand = summand + bias
        wide = wide_type(dtype)
        return factor.reshape(-1).to(wide), summand.view(-1).to(wide)

    def deviation(self, truth: Statistics) -> float:
        """Largest error against the true ones: of a mean in standard deviations, or of a standard
        deviation in itself."""
        sigma = truth.variance.clamp_min(1e-30).sqrt()
        mean = (self.mean - truth.mean).abs() / sigma
        spread = (self.variance.sqrt() / sigma - 1).abs()
        return float(torch.maximum(mean, spread).max())


def grouped(moments: Moments, groups: int) -> Statistics:
    """Statistics of groups of channels."""
    channels = moments.rows.shape[1]
    if channels % groups:
        raise ValueError(f"{channels} channels can't be normalised in {groups} groups")
    inside = moments.deviations.view(groups, -1).mean(dim=1)
    variance, centre = torch.var_mean(moments.mean.view(groups, -1), 1, correction=0)
    return Statistics(centre, variance.add_(inside, alpha=1 / moments.count))


def corrected(now: Statistics, part: Statistics, whole: Statistics, eps: float) -> Statistics:
    """What a part measures at a norm now, moved by the difference between what it measured and what
    the whole video did, with the same statistics in force."""
    gain = (now.variance + eps) / (part.variance + eps)
    return Statistics(now.mean + (whole.mean - part.mean) * gain.sqrt(), whole.variance * gain)


def spread(length: int, keep: int, block: int, from_start: bool = False) -> list[int]:
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


def reduced(fetch: Callable[[Range], Tensor], size: Triple, keep: Triple) -> Tensor:
    """The part of a grid of `size` (T, H, W) that has the size `keep`; fetch((first, stop)) gives
    frames (1, C, t, H, W). The first frame is always in it: causal layers treat it apart."""
    rows, columns = (spread(n, k, BLOCK_ROWS) for n, k in zip(size[1:], keep[1:], strict=True))
    frames = spread(size[0], keep[0], BLOCK_FRAMES, from_start=True)
    return torch.cat([fetch((t, t + 1))[:, :, :, rows][..., columns] for t in frames], 2)
