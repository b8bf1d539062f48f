"""What VAEs do without a parameter, in words that every engine has.

Channels are packed and padding reflects in functions of single frames. Packing two frames into
channels and averaging channels are linear, so an engine that can convolve with a stride in time can
do them with fixed weights, whatever its slices and chunks are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from hy3d_rocm.decode.families.parts import StrangeModuleError, same_frames
from hy3d_rocm.decode.layers import Conv, Engine, Handle, Local

if TYPE_CHECKING:
    from torch import Tensor

# How channels and a square's rows and columns lie in the packed channels: axes of (B, C, T, H, rh,
# W, rw). "channel first": (C, rh, rw); "factor first": (rh, rw, C); "width first": (C, rw, rh).
_AXES = {
    "channel first": (0, 1, 4, 6, 2, 3, 5),
    "factor first": (0, 4, 6, 1, 2, 3, 5),
    "width first": (0, 1, 6, 4, 2, 3, 5),
}


def packed(frames: Tensor, factor: int, mean_of: int = 1, order: str = "channel first") -> Tensor:
    """Squares of `factor` positions to channels; then means over `mean_of` neighbours of these."""
    b, c, t, h, w = frames.shape
    x = frames.reshape(b, c, t, h // factor, factor, w // factor, factor).permute(_AXES[order])
    x = x.reshape(b, c * factor * factor, t, h // factor, w // factor)
    return x if mean_of == 1 else x.reshape(b, -1, mean_of, *x.shape[2:]).mean(2)


def unpacked(frames: Tensor, factor: int) -> Tensor:
    """What packed() with the order "width first" made, as it was."""
    b, c, t, h, w = frames.shape
    c //= factor * factor
    x = frames.reshape(b, c, factor, factor, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return x.reshape(b, c, t, h * factor, w * factor)


def packed_in_space(factor: int, mean_of: int = 1, order: str = "channel first") -> Local:
    """packed() as a layer."""
    return Local(lambda frames, first: packed(frames, factor, mean_of, order), same_frames)


def packed_with_first_twice(factor: int, order: str = "channel first") -> Local:
    """packed() as a layer; the video's first frame makes a pair with itself."""

    def run(frames: Tensor, first: int) -> Tensor:
        x = packed(frames, factor, order=order)
        return torch.cat([x[:, :, :1], x], 2) if first == 0 else x

    return Local(run, lambda n: n + 1)


class FixedWeight(torch.nn.Module):
    """A weight, and a bias or none, that are no parameters of the VAE's."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)


def paired(
    channels: int, mean_of: int, order: str, squares: int, dtype: torch.dtype, device: torch.device
) -> FixedWeight:
    """Two frames of `channels` channels packed into one, then means over `mean_of` neighbours: a
    weight (O, C, 2, 1, 1).

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


class Reflecting:
    """An Engine that gives a layer that pads by reflection to `engine` as padded frames and the
    rest, since engines and backends know zeros and replication only.

    Norms per position and activations give the same before the padding as behind it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.attention, self.local, self.add = engine.attention, engine.local, engine.add

    def conv(self, x: Handle, layer: Conv, *, add: Handle | None = None) -> Handle:
        """The layer on all of x, plus `add`."""
        if "reflect" in layer.modes:
            x = self.engine.local(x, _reflected(layer))
            before, after = ((side[0], 0, 0) for side in (layer.before, layer.after))
            modes = (layer.modes[0], "zeros", "zeros")
            layer = replace(layer, before=before, after=after, modes=modes)
        return self.engine.conv(x, layer, add=add)


def _reflected(layer: Conv) -> Local:
    if layer.modes[0] == "reflect" or layer.modes[1] != layer.modes[2]:
        raise StrangeModuleError("a convolution reflects in time, or along one side only")
    if layer.up != (1, 1, 1) or (layer.norm is not None and layer.norm.kind == "group"):
        raise StrangeModuleError("a convolution reflects what a GroupNorm or up-sampling makes")
    sides = (layer.before[2], layer.after[2], layer.before[1], layer.after[1], 0, 0)
    return Local(lambda frames, first: F.pad(frames, sides, mode="reflect"), same_frames)
