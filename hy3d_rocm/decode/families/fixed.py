"""Convolutions with fixed weights, for what VAEs do to pairs of frames without any parameter.

Packing two frames into channels and averaging channels are linear, so an engine that can convolve
with a stride in time can do them, whatever its slices and chunks are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.families.parts import same_frames
from hy3d_rocm.decode.layers import Local

if TYPE_CHECKING:
    from torch import Tensor


class FixedWeight(torch.nn.Module):
    """A weight (O, C, 2, 1, 1) for pairs of frames, without a bias."""

    bias = None

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)


def packed_in_space(factor: int, mean_of: int = 1, order: str = "channel first") -> Local:
    """Squares of `factor` positions to channels, (C, rh, rw) or, "factor first", (rh, rw, C); then
    means over `mean_of` neighbours of these."""

    def run(frames: Tensor, first: int) -> Tensor:
        return packed(frames, factor, mean_of, order)

    return Local(run, same_frames)


def packed(frames: Tensor, factor: int, mean_of: int = 1, order: str = "channel first") -> Tensor:
    """What packed_in_space does, on a tensor."""
    b, c, t, h, w = frames.shape
    x = frames.reshape(b, c, t, h // factor, factor, w // factor, factor)
    axes = (0, 1, 4, 6, 2, 3, 5) if order == "channel first" else (0, 4, 6, 1, 2, 3, 5)
    x = x.permute(axes).reshape(b, c * factor * factor, t, h // factor, w // factor)
    return x if mean_of == 1 else x.reshape(b, -1, mean_of, *x.shape[2:]).mean(2)


def paired(
    channels: int, mean_of: int, order: str, squares: int, dtype: torch.dtype, device: torch.device
) -> FixedWeight:
    """Two frames of `channels` channels packed into one, then means over `mean_of` neighbours.

    order: "channel first", the frames go between the channels and the `squares` positions that
    packed() has put behind each; "factor first", they go before all.
    """
    at = torch.arange(channels, device="cpu")
    weight = torch.zeros((2 * channels // mean_of, channels, 2), dtype=torch.float64, device="cpu")
    for frame in range(2):
        if order == "channel first":
            place = (at // squares * 2 + frame) * squares + at % squares
        else:
            place = frame * channels + at
        weight[place // mean_of, at, frame] = 1 / mean_of
    return FixedWeight(weight.reshape(*weight.shape, 1, 1).to(device, dtype))
