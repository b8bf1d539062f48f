"""GroupNorm over a video that is never whole in memory.

GroupNorm takes its mean and variance over (T, H, W) of a whole sample. A tile sees a part of them
only, so a tile that normalises by itself differs from its neighbours. Here the moments of every
GroupNorm layer are gathered over all tiles in passes: layer k of pass n is exact once the layers
before it were exact in pass n - 1, so the passes converge to the whole decode. One sample at a
time: x is (1, C, T, H, W) everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

Crop = tuple[slice, slice, slice]
Owned = tuple[tuple[int, int], tuple[int, int]]
WHOLE: Crop = (slice(None), slice(None), slice(None))


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of (G,) groups, in float64."""

    count: float = 0.0
    mean: Tensor | None = None
    deviations: Tensor | None = None

    def add(self, count: float, mean: Tensor, deviations: Tensor) -> None:
        """Adds a part by Chan's pairwise update."""
        if self.mean is None or self.deviations is None:
            self.count, self.mean, self.deviations = count, mean, deviations
            return
        total = self.count + count
        delta = mean - self.mean
        self.deviations = (
            self.deviations + deviations + delta * delta * (self.count * count / total)
        )
        self.mean = self.mean + delta * (count / total)
        self.count = total


@dataclass
class Statistics:
    """What one pass over all tiles gathered, by the GroupNorm's place in the forward pass."""

    layers: list[Moments] = field(default_factory=list)
    #: (grain, layer) -> mean and variance (G,) of the grain's owned part
    grains: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, grain: int, layer: int, count: float, mean: Tensor, deviations: Tensor) -> None:
        while len(self.layers) <= layer:
            self.layers.append(Moments())
        self.layers[layer].add(count, mean, deviations)
        self.grains[grain, layer] = (mean, deviations / count)

    def whole(self, layer: int) -> tuple[Tensor, Tensor]:
        """Mean and variance (G,) over all grains."""
        moments = self.layers[layer]
        assert moments.mean is not None
        assert moments.deviations is not None
        return moments.mean, moments.deviations / moments.count


def group_moments(x: Tensor, groups: int, crop: Crop = WHOLE) -> tuple[float, Tensor, Tensor]:
    """Moments of each group of `x` (1, C, T, H, W) over `crop`: count, mean (G,), deviations (G,).

    Per channel first: a reduction over a strided view needs no copy, a regrouping would.
    """
    part = x[(slice(None), slice(None), *crop)]
    positions = float(part.shape[2] * part.shape[3] * part.shape[4])
    if part.dtype == torch.float32:
        variance, mean = torch.var_mean(part[0], dim=(1, 2, 3), correction=0)
    else:
        variance, mean = _low_precision_moments(part[0])
    mean = mean.double().view(groups, -1)
    variance = variance.double().view(groups, -1)
    group_mean = mean.mean(dim=1)
    spread = variance.mean(dim=1) + (mean - group_mean[:, None]).square().mean(dim=1)
    count = positions * mean.shape[1]
    return count, group_mean, spread * count


def _low_precision_moments(part: Tensor) -> tuple[Tensor, Tensor]:
    """Variance and mean per channel in float32, a frame at a time so that no whole copy is made."""
    means, variances = [], []
    for t in range(part.shape[1]):
        variance, mean = torch.var_mean(part[:, t].float(), dim=(1, 2), correction=0)
        means.append(mean)
        variances.append(variance)
    frame_means = torch.stack(means)
    mean = frame_means.mean(dim=0)
    return torch.stack(variances).mean(dim=0) + (frame_means - mean).square().mean(dim=0), mean


class NormPass:
    """What the GroupNorm layers of one pass over all grains normalise with, and record.

    * `frozen`: these whole-video statistics, the same in every tile.
    * `before`: the tile's own, moved by the difference between tile and whole video that the pass
      before saw. A scale that all tiles have in common cancels, as it does in the whole decode;
      frozen statistics would keep it, and passes that feed frozen statistics back diverge
      (measured: docs/decode.md).
    * neither: the tile's own.
    """

    def __init__(
        self,
        frozen: Statistics | None = None,
        before: Statistics | None = None,
        gather: Statistics | None = None,
    ) -> None:
        self.frozen = frozen
        self.before = before
        self.gather = gather
        self._owned: Owned | None = None
        self._grain = self._grid_w = self._layer = 0

    def start(self, grain: int, grid_w: int, owned: Owned | None = None) -> None:
        """Before each grain. `owned`: ((h0, h1), (w0, w1)) in the grain's own grid of width
        `grid_w` that belongs to no other tile; None: all of it."""
        self._grain, self._grid_w, self._owned, self._layer = grain, grid_w, owned, 0

    def _crop(self, x: Tensor) -> Crop:
        if self._owned is None:
            return WHOLE
        scale = x.shape[-1] // self._grid_w
        (h0, h1), (w0, w1) = self._owned
        return slice(None), slice(h0 * scale, h1 * scale), slice(w0 * scale, w1 * scale)

    def scale_shift(self, x: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
        """Per channel factors (C, 1, 1, 1), float32, so that GroupNorm(x) = x * scale + shift."""
        layer = self._layer
        self._layer += 1
        if self.frozen is not None:
            return affine(norm, *self.frozen.whole(layer))
        count, mean, deviations = group_moments(x, norm.num_groups, self._crop(x))
        if self.gather is not None:
            self.gather.add(self._grain, layer, count, mean, deviations)
        variance = deviations / count
        if self.before is not None:
            whole_mean, whole_variance = self.before.whole(layer)
            grain_mean, grain_variance = self.before.grains[self._grain, layer]
            gain = (variance + norm.eps) / (grain_variance + norm.eps)
            mean = mean + (whole_mean - grain_mean) * gain.sqrt()
            variance = whole_variance * gain
        return affine(norm, mean, variance)


def affine(norm: nn.GroupNorm, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Folds mean and variance (G,) and the layer's weight and bias into scale and shift."""
    repeats = norm.num_channels // norm.num_groups
    scale = (variance + norm.eps).rsqrt().repeat_interleave(repeats)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -mean.repeat_interleave(repeats) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    return scale.float().view(-1, 1, 1, 1), shift.float().view(-1, 1, 1, 1)


def apply_affine(x: Tensor, scale: Tensor, shift: Tensor, out: Tensor) -> None:
    """out = x * scale + shift for x (1, C, T, H, W); float32 inside whatever the type of x."""
    if x.dtype == torch.float32:
        torch.addcmul(shift, x[0], scale, out=out[0])
        return
    for t in range(x.shape[2]):
        out[0, :, t] = torch.addcmul(shift[:, 0], x[0, :, t].float(), scale[:, 0])
