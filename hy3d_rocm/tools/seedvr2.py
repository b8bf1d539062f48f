"""SeedVR2's video VAE as it is published, in structure only: what `hy3d-rocm plan` plans for.

Its classes are the upscaler's own and no package has them. They are built on diffusers' image VAE,
and so is this: the same tree with convolutions of three axes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_WIDTHS = (128, 256, 512, 512)
_TIMES = 2  # how often time is halved


class BareSeedVr2(nn.Module):
    """encoder and decoder; without a forward() of any."""

    def __init__(self, widths: tuple[int, ...] = _WIDTHS, **changes: Any) -> None:
        from hy3d_rocm.tools.loading import class_of

        super().__init__()
        count = len(widths)
        shape: dict[str, Any] = {
            "block_out_channels": widths, "layers_per_block": 2, "latent_channels": 16,
            "down_block_types": ("DownEncoderBlock2D",) * count,
            "up_block_types": ("UpDecoderBlock2D",) * count,
            "use_quant_conv": False, "use_post_quant_conv": False,
        }  # fmt: skip
        image = class_of("AutoencoderKL")(**(shape | changes))
        self.encoder, self.decoder = image.encoder, image.decoder
        for coder in (self.encoder, self.decoder):
            for module in list(coder.modules()):
                for name, part in list(module.named_children()):
                    if isinstance(part, nn.Conv2d):
                        size = 1 if part.kernel_size == (1, 1) else 3
                        setattr(module, name, _causal(part, (size,) * 3))
        for i, block in enumerate(self.encoder.down_blocks[:-1]):
            time = 2 if i >= count - 1 - _TIMES else 1
            down = block.downsamplers[0]
            down.conv = _causal(down.conv, (2 * time - 1, 3, 3), (time, 2, 2), (time - 1, 0, 0))
        for i, block in enumerate(self.decoder.up_blocks[:-1]):
            up, time = block.upsamplers[0], 2 if i < _TIMES else 1
            up.temporal_ratio, up.spatial_ratio, up.norm = time, 2, None
            up.upscale_conv = nn.Conv3d(up.channels, 4 * time * up.channels, 1)

    def _decode(self, z: torch.Tensor) -> torch.Tensor:
        raise ValueError("SeedVR2's own code is not here to be asked")

    _encode = _decode


def _causal(like: Any, kernel: Any, stride: Any = 1, padding: Any = None) -> nn.Conv3d:
    """A convolution between as many channels, padded in time by whoever calls it."""
    around = tuple(n // 2 for n in kernel) if padding is None else padding
    made = nn.Conv3d(like.in_channels, like.out_channels, kernel, stride, (0, *around[1:]))
    made.temporal_padding = around[0]
    return made
