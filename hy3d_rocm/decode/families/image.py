"""Image VAEs (diffusers' AutoencoderKL) over an engine: a video of one frame.

2D convolutions with zeros around, GroupNorm, attention in the middle block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.parts import (
    StrangeModuleError,
    absent,
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


class ImageFamily(StructuredFamily):
    """See the module's text."""

    name = "image"
    is_image = True
    lengths = (1,)

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """A 2D convolution first, a GroupNorm last."""
        decoder = vae.decoder
        return decoder.conv_in.weight.ndim == 4 and hasattr(
            getattr(decoder, "conv_norm_out", None), "num_groups"
        )

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with tiling and slicing off, of one image (1, C, 1, H, W)."""
        d = self.decoder
        x = self.quantised(engine, z, self.post_quant_conv)
        x = engine.conv(x, conv_of(d.conv_in))
        x = mid_block(engine, d.mid_block, x, _attention)
        for block in d.up_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for up in block.upsamplers or ():
                x = engine.conv(x, _up(up))
        return engine.conv(x, _last(d))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for down in block.downsamplers or ():
                x = engine.conv(x, _down(down))
        x = mid_block(engine, e.mid_block, x, _attention)
        return self.quantised(engine, engine.conv(x, _last(e)), self.quant_conv)

    def own_decode(self, z: Tensor) -> Tensor:
        """The image by the VAE's own code, unsplit."""
        z = z[:, :, 0]
        if not absent(self.post_quant_conv):
            z = self.post_quant_conv(z)
        result: Tensor = self.decoder(z)
        return result.unsqueeze(2)

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, unsplit."""
        result: Tensor = self.needed_encoder()(pixels[:, :, 0])
        return (result if absent(self.quant_conv) else self.quant_conv(result)).unsqueeze(2)


def _attention(attn: Any) -> Attention:
    return attention_of(attn, "frame")


def _up(up: Any) -> Conv:
    if not up.use_conv or up.use_conv_transpose or up.norm is not None or not up.interpolate:
        raise StrangeModuleError("an up-sampling is not nearest and then a convolution")
    return conv_of(up.conv, up=(1, 2, 2))


def _down(down: Any) -> Conv:
    if not down.use_conv or down.norm is not None:
        raise StrangeModuleError("a down-sampling is not a convolution alone")
    more = {} if down.padding else {"after": (0, 1, 1)}
    return conv_of(down.conv, **more)


def _last(coder: Any) -> Conv:
    norm, act = norm_of(coder.conv_norm_out), act_of(coder.conv_act)
    return conv_of(coder.conv_out, norm=norm, act=act)
