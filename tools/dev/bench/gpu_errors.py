"""How far a convolution's result is from float64 sums, at some of its outputs."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import windows

_POSITIONS = 64
_CHANNELS = 4  # of each position, so 256 outputs


@dataclass(frozen=True)
class Reference:
    """`exact` (P, 4) in float64 at outputs `places` (n, t, h, w) and `channels` (P, 4)."""

    places: tuple[torch.Tensor, ...]
    channels: torch.Tensor
    exact: torch.Tensor

    def error(self, result: torch.Tensor) -> tuple[float, float]:
        """Root mean square and maximum of |result - exact|; NaN where the result is."""
        n, t, h, w = (place[:, None] for place in self.places)
        got = windows.lifted(result)[n, self.channels, t, h, w].double()
        gap = (got - self.exact).abs()
        return float(gap.square().mean().sqrt()), float(gap.max())


def reference(call: ConvCall, seed: int = 0) -> Reference:
    """Exact sums at 256 random outputs of a batched call; on its device."""
    spec, shape, rng = call.spec, call.spec.problem, random.Random(seed)
    x, weight = windows.lifted(call.x), windows.lifted(call.weight)
    per_group = shape.cout // shape.groups
    places, channels, exact = [], [], []
    for _ in range(_POSITIONS):
        n, *point = (rng.randrange(size) for size in (shape.batch, *shape.out))
        t, h, w = ((p, p + 1) for p in point)
        taps = windows.window(x[n : n + 1], shape, (t, h, w))[0]
        for axis, spread in enumerate(shape.dilation):
            taps = taps[(slice(None),) * (axis + 1) + (slice(None, None, spread),)]
        chosen = [rng.randrange(shape.cout) for _ in range(_CHANNELS)]
        grouped = taps.reshape(shape.groups, -1).double()
        rows = weight[chosen].reshape(_CHANNELS, -1).double()
        exact.append((grouped[[c // per_group for c in chosen]] * rows).sum(1))
        places.append((n, *point))
        channels.append(chosen)
    device = spec.device
    at = torch.tensor(channels, device=device)
    total = torch.stack(exact)
    if call.bias is not None:
        total = total + call.bias.double()[at]
    columns = torch.tensor(places, device=device).unbind(1)
    return Reference(columns, at, total)
