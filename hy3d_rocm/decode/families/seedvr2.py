"""SeedVR2's VAE (VideoAutoencoderKL of its video_vae_v3, and its wrapper) over an engine.

Convolutions are causal: in time the first frame is repeated before itself, in space there are
zeros. GroupNorm and attention see one frame at a time. Up-sampling is a 1x1x1 convolution whose
channels become space and time, and a convolution behind it; of the two frames that the video's
first one would make the first stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.blocks import BlockFamily
from hy3d_rocm.decode.families.calls import unsplit
from hy3d_rocm.decode.families.parts import (
    StrangeModuleError,
    attention_of,
    conv_of,
    frame_norm_of,
)
from hy3d_rocm.decode.layers import Attention, Conv, Norm, Shuffle

if TYPE_CHECKING:
    from torch import Tensor


class SeedVr2Family(BlockFamily):
    """See the module's text."""

    name = "SeedVR2"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Padding in time that a convolution keeps beside its own, and a GroupNorm at the end."""
        decoder = vae.decoder
        return hasattr(decoder.conv_in, "temporal_padding") and hasattr(
            getattr(decoder, "conv_norm_out", None), "num_groups"
        )

    def norm(self, module: Any) -> Norm:
        return frame_norm_of(module)

    def attention(self, module: Any) -> Attention:
        found = attention_of(module, "frame")
        return replace(found, norm=replace(found.norm, kind="frame"))

    def up(self, module: Any) -> tuple[Conv, ...]:
        if getattr(module, "norm", None) is not None or getattr(module, "use_conv", True) is False:
            raise StrangeModuleError(
                "an up-sampling is not a convolution to more and one behind it"
            )
        time, space = int(module.temporal_ratio), int(module.spatial_ratio)
        first = (1, space, space) if time > 1 else None
        shuffle = Shuffle((time, space, space), "space first", first=first)
        return conv_of(module.upscale_conv, shuffle=shuffle), conv_of(module.conv)

    def down(self, module: Any) -> Conv:
        if getattr(module, "norm", None) is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        down = conv_of(module.conv)
        # Its forward() pads two sides where the convolution pads none.
        pads = down.stride[1] > 1 and not any(down.before[1:])
        return (
            replace(down, after=(0, 1, 1), modes=(down.modes[0], "zeros", "zeros"))
            if pads
            else down
        )

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, its slices of time off."""
        result: Tensor = unsplit(self.vae)._decode(z)
        return result

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, its slices of time off."""
        self.needed_encoder()
        result: Tensor = unsplit(self.vae)._encode(pixels)
        return result
