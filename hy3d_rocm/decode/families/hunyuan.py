"""HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo) over an engine.

All convolutions are causal with replicated borders; GroupNorm; the middle block's attention sees
all earlier frames; the first frame is not repeated in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.blocks import BlockFamily
from hy3d_rocm.decode.families.parts import conv_of
from hy3d_rocm.decode.layers import Conv

if TYPE_CHECKING:
    from torch import Tensor


class HunyuanFamily(BlockFamily):
    """See the module's text."""

    name = "HunyuanVideo"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Padding in time before, and a GroupNorm at the end."""
        decoder = vae.decoder
        return hasattr(decoder.conv_in, "time_causal_padding") and hasattr(
            getattr(decoder, "conv_norm_out", None), "num_groups"
        )

    def up(self, module: Any) -> tuple[Conv, ...]:
        time, height, width = (int(n) for n in module.upsample_factor)
        return (conv_of(module.conv, up=(time, height, width), keep_first=time > 1),)

    def down(self, module: Any) -> Conv:
        return conv_of(module.conv)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        result: Tensor = self.decoder(self.post_quant_conv(z))
        return result

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, unsplit."""
        result: Tensor = self.quant_conv(self.needed_encoder()(pixels))
        return result
