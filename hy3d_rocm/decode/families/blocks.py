"""VAEs made of a middle block and residual blocks up or down: HunyuanVideo's and images', and in
files of their own HunyuanVideo 1.5's, Wan's and SeedVR2's. They differ in their convolutions and in
what norms and attention see."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.parts import (
    StrangeModuleError,
    attention_of,
    conv_of,
    last_of,
    mid_block,
    norm_of,
    resnet,
)
from hy3d_rocm.decode.layers import Attention, Engine, Handle, Norm


class BlockFamily(StructuredFamily):
    """See the module's text."""

    @abstractmethod
    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """x through an up-sampling."""

    @abstractmethod
    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """x through a down-sampling."""

    def up_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """x through residual blocks and what up-samplings follow."""
        for layer in block.resnets:
            x = resnet(engine, layer, x, norm=self.norm)
        for up in block.upsamplers or ():
            x = self.up(engine, up, x)
        return x

    def down_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """x through residual blocks and what down-samplings follow."""
        for layer in block.resnets:
            x = resnet(engine, layer, x, norm=self.norm)
        for down in block.downsamplers or ():
            x = self.down(engine, down, x)
        return x

    def norm(self, module: Any) -> Norm:
        """A norm."""
        return norm_of(module)

    def attention(self, module: Any) -> Attention:
        """Of the middle block."""
        return attention_of(module, self.span)

    def around_first(self, engine: Engine, z: Handle) -> Handle | None:
        """What is added to what the decoder's first convolution makes of z."""
        return None

    def around_last(self, engine: Engine, x: Handle) -> Handle | None:
        """What is added to what the encoder's last convolution makes of x."""
        return None

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with framewise decoding, tiling and slicing off."""
        d = self.view.decoder
        z = self.quantised(engine, z, self.post_quant_conv)
        x = engine.conv(z, conv_of(d.conv_in), add=self.around_first(engine, z))
        x = mid_block(engine, d.mid_block, x, self.attention, self.norm)
        for block in d.up_blocks:
            x = self.up_block(engine, block, x)
        return engine.conv(x, last_of(d, self.norm))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            x = self.down_block(engine, block, x)
        x = mid_block(engine, e.mid_block, x, self.attention, self.norm)
        x = engine.conv(x, last_of(e, self.norm), add=self.around_last(engine, x))
        return self.quantised(engine, x, self.quant_conv)


class HunyuanFamily(BlockFamily):
    """HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo). All convolutions are causal with
    replicated borders; GroupNorm; the middle block's attention sees all earlier frames; the first
    frame is not repeated in time."""

    name = "HunyuanVideo"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Padding in time before, and a GroupNorm at the end."""
        decoder = vae.decoder
        return hasattr(decoder.conv_in, "time_causal_padding") and hasattr(
            getattr(decoder, "conv_norm_out", None), "num_groups"
        )

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        time, height, width = (int(n) for n in module.upsample_factor)
        layer = conv_of(module.conv, up=(time, height, width), keep_first=time > 1)
        return engine.conv(x, layer)

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        return engine.conv(x, conv_of(module.conv))


class ImageFamily(BlockFamily):
    """Image VAEs (diffusers' AutoencoderKL): a video of one frame. 2D convolutions with zeros
    around, GroupNorm, attention in the middle block."""

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

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        plain = module.use_conv and not module.use_conv_transpose and module.interpolate
        if not plain or module.norm is not None:
            raise StrangeModuleError("an up-sampling is not nearest and then a convolution")
        return engine.conv(x, conv_of(module.conv, up=(1, 2, 2)))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if not module.use_conv or module.norm is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        more = {} if module.padding else {"after": (0, 1, 1)}
        return engine.conv(x, conv_of(module.conv, **more))

    def attention(self, module: Any) -> Attention:
        return attention_of(module, "frame")
