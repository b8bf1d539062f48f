"""VAEs made of a middle block and residual blocks up or down, with GroupNorm: HunyuanVideo's,
SeedVR2's and those of images differ in their convolutions and in what norms and attention see."""

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
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle, Norm


class BlockFamily(StructuredFamily):
    """See the module's text."""

    @abstractmethod
    def up(self, module: Any) -> tuple[Conv, ...]:
        """An up-sampling: layers, one after the other."""

    @abstractmethod
    def down(self, module: Any) -> Conv:
        """A down-sampling."""

    def norm(self, module: Any) -> Norm:
        """A norm."""
        return norm_of(module)

    def attention(self, module: Any) -> Attention:
        """Of the middle block."""
        return attention_of(module, self.span)

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with framewise decoding, tiling and slicing off."""
        d = self.decoder
        x = self.quantised(engine, z, self.post_quant_conv)
        x = engine.conv(x, conv_of(d.conv_in))
        x = mid_block(engine, d.mid_block, x, self.attention, self.norm)
        for block in d.up_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x, norm=self.norm)
            for up in block.upsamplers or ():
                for part in self.up(up):
                    x = engine.conv(x, part)
        return engine.conv(x, self._last(d))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x, norm=self.norm)
            for down in block.downsamplers or ():
                x = engine.conv(x, self.down(down))
        x = mid_block(engine, e.mid_block, x, self.attention, self.norm)
        return self.quantised(engine, engine.conv(x, self._last(e)), self.quant_conv)

    def _last(self, coder: Any) -> Conv:
        norm, act = self.norm(coder.conv_norm_out), act_of(coder.conv_act)
        return conv_of(coder.conv_out, norm=norm, act=act)
