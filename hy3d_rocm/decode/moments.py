"""Mean and variance of an activation that is in memory a few frames at a time.

Gathered per channel, since a channel's moments serve every grouping; combined in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import dlpack

from hy3d_rocm import _native
from hy3d_rocm.decode.layers import Moments, Norm
from hy3d_rocm.decode.memory.live import modelled

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.layers import Weights

# Float copies are made so many elements at a time: on the CPU what stays in the cache.
CPU_BLOCK, GPU_BLOCK = 1 << 20, 1 << 22
_CORE_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """What norms of values of `dtype` are computed in: float32, of float64 itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def block_elements(device: torch.device) -> int:
    """Elements of a float copy; shapes alone ("meta") as on the device that they stand for."""
    return CPU_BLOCK if modelled(device).type == "cpu" else GPU_BLOCK


def blocks(x: Tensor, limit: int) -> Iterator[tuple[slice, slice]]:
    """(channels, frames) of x (C, T, H, W) in parts of at most `limit` elements, or one frame of
    one channel where that is more."""
    channels, frames, rows, columns = x.shape
    plane = max(rows * columns, 1)
    if channels * plane <= limit:
        step = max(1, limit // (channels * plane))
        for t in range(0, frames, step):
            yield slice(0, channels), slice(t, min(t + step, frames))
        return
    step = max(1, limit // plane)
    for t in range(frames):
        for c in range(0, channels, step):
            yield slice(c, min(c + step, channels)), slice(t, t + 1)


def channel_moments(x: Tensor) -> Moments:
    """Moments of each channel of x (1, C, T, H, W), float64 (C,); no whole float copy is made.

    Nothing cancels: the C core sums in float64; without it, and on a GPU, deviations are taken from
    a block's own mean.
    """
    if _native.available and x.device.type == "cpu" and x.dtype in _CORE_TYPES and x.numel():
        return _core_moments(x)
    body = x[0]
    if x.is_meta:  # shapes alone: what one block takes, and the result's
        _block_moments(body[next(blocks(body, block_elements(x.device)))])
        shapes = [body.new_empty(body.shape[0], dtype=torch.float64) for _ in range(2)]
        return Moments(body.shape[1:].numel(), *shapes)
    per_channel: dict[int, list[Moments]] = {}
    for channels, frames in blocks(body, block_elements(x.device)):
        part = _block_moments(body[channels, frames])
        per_channel.setdefault(channels.start, []).append(part)
    columns = [combine(parts) for parts in per_channel.values()]
    if len(columns) == 1:
        return columns[0]
    return Moments(
        columns[0].count,
        torch.cat([m.mean for m in columns]),
        torch.cat([m.deviations for m in columns]),
    )


def _core_moments(x: Tensor) -> Moments:
    found = torch.empty((2, x.shape[1]), dtype=torch.float64, device="cpu")
    source, mean, deviations = (_View(t) for t in (x.detach().resolve_neg(), found[0], found[1]))
    _native.channel_moments(source, mean, deviations, torch.get_num_threads())
    return Moments(x[0, 0].numel(), found[0], found[1])


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
    count = part.shape[1] * part.shape[2] * part.shape[3]
    wide = part.to(wide_type(part.dtype))
    if part.device.type == "cpu":
        # torch.var_mean takes 6 ns an element here, these passes 1 (one AVX-512 core).
        mean = wide.mean(dim=(1, 2, 3))
        deviations = (wide - mean[:, None, None, None]).square_().sum(dim=(1, 2, 3))
        return Moments(count, mean.double(), deviations.double())
    variance, mean = torch.var_mean(wide, dim=(1, 2, 3), correction=0)
    return Moments(count, mean.double(), variance.double() * count)


def combine(parts: Sequence[Moments]) -> Moments:
    """Moments of several parts together (Chan), float64; the order of `parts` is kept."""
    if not parts:
        raise ValueError("no moments to combine: the activation has no frames")
    count = sum(m.count for m in parts)
    if len(parts) == 1:
        return Moments(count, parts[0].mean.double(), parts[0].deviations.double())
    means = torch.stack([m.mean.double() for m in parts])
    deviations = torch.stack([m.deviations.double() for m in parts])
    shares = [m.count / count for m in parts]
    mean = sum_of([means[i] * share for i, share in enumerate(shares)])
    spread = sum_of([(means[i] - mean).square() * share for i, share in enumerate(shares)])
    return Moments(count, mean, deviations.sum(dim=0) + spread * count)


def sum_of(terms: Sequence[Tensor]) -> Tensor:
    """Their sum, first to last."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def group_affine(
    norm: Norm, moments: Moments, weights: Weights, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Factor and summand (C,) that stand for the "group" norm of a video of `dtype` with these
    moments, its weight, bias, scale and shift included: float32, for a float64 video float64."""
    mean, deviations = moments.mean.double(), moments.deviations.double()
    channels = mean.shape[0]
    if channels % norm.groups:
        raise ValueError(f"{channels} channels can't be normalised in {norm.groups} groups")
    by_group = mean.view(norm.groups, -1)
    group_mean = by_group.mean(dim=1)
    spread = (by_group - group_mean[:, None]).square().mean(dim=1)
    variance = deviations.view(norm.groups, -1).mean(dim=1) / moments.count + spread
    repeats = channels // norm.groups
    factor = (variance + norm.eps).rsqrt().repeat_interleave(repeats)
    weight, bias = norm_parameters(norm, weights)
    if weight is not None:
        factor = factor * weight.double()
    summand = -group_mean.repeat_interleave(repeats) * factor
    if bias is not None:
        summand = summand + bias.double()
    return factor.to(wide_type(dtype)), summand.to(wide_type(dtype))


def norm_parameters(norm: Norm, weights: Weights) -> tuple[Tensor | None, Tensor | None]:
    """The norm's weight and bias (C,) with its scale and shift folded in: float32, of float64
    weights float64."""

    def of(name: str | None) -> Tensor | None:
        found = None if name is None else weights.of(norm.module, name)
        return None if found is None else found.reshape(-1).to(wide_type(found.dtype))

    def beside(value: Tensor) -> Tensor:
        like = weight if bias is None else bias
        like = value if like is None else like
        return value.reshape(-1).to(like.device, wide_type(like.dtype))

    weight, bias = of(norm.weight), of(norm.bias)
    if norm.scale is not None:
        scale = 1 + beside(norm.scale)
        weight = scale if weight is None else weight * scale
        bias = None if bias is None else bias * scale
    if norm.shift is not None:
        shift = beside(norm.shift)
        bias = shift if bias is None else bias + shift
    return weight, bias
