"""A VAE whose layers nobody knows, and latents for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hy3d_rocm.decoding import DecodeOptions

MB = 1 << 20
# Three convolutions of 3x3, two of them before four times up-sampling: 2 + 1/4 latents.
HALO = DecodeOptions(halo_pixels=12, overlap_pixels=8, min_tile_pixels=16)


class ConvNet(nn.Module):
    """4 channels -> 3 in twice the frames but one and four times the rows; `time`: "causal",
    "both" (later frames change earlier ones) or "frame"."""

    def __init__(self, time: str = "causal", space: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        depth = 1 if time == "frame" else 3
        self.pads = {"causal": (2, 0), "both": (1, 1), "frame": (0, 0)}[time]
        self.time, self.space = time, space
        self.calls: list[tuple[int, ...]] = []
        sizes = ((8, 4), (8, 8), (3, 8))
        self.layers = nn.ModuleList(
            nn.Conv3d(i, o, (depth, 3, 3), padding=(0, 1, 1)) for o, i in sizes
        )
        for parameter in self.parameters():
            parameter.requires_grad_(False).copy_(
                torch.randn(parameter.shape, generator=generator) * 0.3
            )

    def decode(self, z: Any) -> Any:
        self.calls.append(tuple(z.shape))
        x = torch.tanh(self._conv(0, z))
        x = torch.tanh(self._conv(1, x))
        if self.time == "causal":
            x = torch.cat([x[:, :, :1], x[:, :, 1:].repeat_interleave(2, 2)], 2)
        x = functional.interpolate(x, scale_factor=(1, self.space, self.space))
        return self._conv(2, x)

    def _conv(self, number: int, x: Any) -> Any:
        return self.layers[number](functional.pad(x, (0, 0, 0, 0, *self.pads)))


def latents(frames: int = 5, height: int = 16, width: int = 18, batch: int = 1) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((batch, 4, frames, height, width), generator=generator)
