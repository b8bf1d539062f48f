"""HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo) over an engine.

All convolutions are causal with replicated borders; GroupNorm; the middle block's attention sees
all earlier frames; the first frame is not repeated in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.parts import (
    act_of,
    attention_of,
    conv_of,
    mid_block,
    norm_of,
    resnet,
)
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle

if TYPE_CHECKING:
    from torch import Tensor


class HunyuanFamily(StructuredFamily):
    """See the module's text."""

    name = "HunyuanVideo"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Padding in time before, and a GroupNorm at the end."""
        decoder = vae.decoder
        return hasattr(decoder.conv_in, "time_causal_padding") and hasattr(
            getattr(decoder, "conv_norm_out", None), "num_groups"
        )

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with framewise decoding, tiling and slicing off."""
        d = self.decoder
        x = self.quantised(engine, z, self.post_quant_conv)
        x = engine.conv(x, conv_of(d.conv_in))
        x = mid_block(engine, d.mid_block, x, self._attention)
        for block in d.up_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for up in block.upsamplers or ():
                x = engine.conv(x, _up(up))
        return engine.conv(x, _last(d))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for down in block.downsamplers or ():
                x = engine.conv(x, conv_of(down.conv))
        x = mid_block(engine, e.mid_block, x, self._attention)
        return self.quantised(engine, engine.conv(x, _last(e)), self.quant_conv)

    def _attention(self, attn: Any) -> Attention:
        return attention_of(attn, self.span)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        result: Tensor = self.decoder(self.post_quant_conv(z))
        return result

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, unsplit."""
        result: Tensor = self.quant_conv(self.needed_encoder()(pixels))
        return result


def _up(module: Any) -> Conv:
    time, height, width = (int(n) for n in module.upsample_factor)
    return conv_of(module.conv, up=(time, height, width), keep_first=time > 1)


def _last(coder: Any) -> Conv:
    norm, act = norm_of(coder.conv_norm_out), act_of(coder.conv_act)
    return conv_of(coder.conv_out, norm=norm, act=act)
