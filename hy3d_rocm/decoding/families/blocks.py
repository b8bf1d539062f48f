"""HunyuanVideo's VAE and images': GroupNorm of all there is, and plain up- and down-samplings."""

from __future__ import annotations

from typing import Any

from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.families.parts import conv_of, numbers
from hy3d_rocm.decoding.layers import Engine, Handle, StrangeModuleError


class HunyuanFamily(StructuredFamily):
    """HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo). All convolutions are causal with
    replicated borders; GroupNorm; the middle block's attention sees all earlier frames; the first
    frame is not repeated in time."""

    name = "HunyuanVideo"
    marks = ("conv_in.time_causal_padding", "conv_norm_out.num_groups")

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        up = numbers(module.upsample_factor, 3)
        return engine.conv(x, conv_of(module.conv, up=up, keep_first=up[0] > 1))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        return engine.conv(x, conv_of(module.conv))


class ImageFamily(StructuredFamily):
    """Image VAEs (diffusers' AutoencoderKL): a video of one frame. 2D convolutions with zeros
    around, GroupNorm, attention in the middle block."""

    name = "image"
    marks = ("conv_in.weight", "conv_norm_out.num_groups")
    is_image = True
    span = "frame"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Also by two dimensions."""
        return super().recognises(vae) and vae.decoder.conv_in.weight.ndim == 4

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        plain = module.use_conv and not getattr(module, "use_conv_transpose", False)
        nearest = getattr(module, "interpolate", True)
        if not plain or not nearest or getattr(module, "norm", None) is not None:
            raise StrangeModuleError("an up-sampling is not nearest and then a convolution")
        return engine.conv(x, conv_of(module.conv, up=(1, 2, 2)))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if not module.use_conv or getattr(module, "norm", None) is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        more = {} if getattr(module, "padding", 0) else {"after": (0, 1, 1)}
        return engine.conv(x, conv_of(module.conv, **more))
