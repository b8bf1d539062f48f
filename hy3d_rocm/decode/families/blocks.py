"""VAEs made of a middle block and residual blocks up or down, with GroupNorm: HunyuanVideo's and
those of images differ in their convolutions and in what the attention sees."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

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


class BlockFamily(StructuredFamily):
    """See the module's text."""

    @abstractmethod
    def up(self, module: Any) -> Conv:
        """An up-sampling."""

    @abstractmethod
    def down(self, module: Any) -> Conv:
        """A down-sampling."""

    def attention(self, module: Any) -> Attention:
        """Of the middle block."""
        return attention_of(module, self.span)

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with framewise decoding, tiling and slicing off."""
        d = self.decoder
        x = self.quantised(engine, z, self.post_quant_conv)
        x = engine.conv(x, conv_of(d.conv_in))
        x = mid_block(engine, d.mid_block, x, self.attention)
        for block in d.up_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for up in block.upsamplers or ():
                x = engine.conv(x, self.up(up))
        return engine.conv(x, _last(d))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for down in block.downsamplers or ():
                x = engine.conv(x, self.down(down))
        x = mid_block(engine, e.mid_block, x, self.attention)
        return self.quantised(engine, engine.conv(x, _last(e)), self.quant_conv)


def _last(coder: Any) -> Conv:
    norm, act = norm_of(coder.conv_norm_out), act_of(coder.conv_act)
    return conv_of(coder.conv_out, norm=norm, act=act)
