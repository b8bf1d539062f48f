"""Image VAEs (diffusers' AutoencoderKL) over an engine: a video of one frame.

2D convolutions with zeros around, GroupNorm, attention in the middle block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.blocks import BlockFamily
from hy3d_rocm.decode.families.parts import StrangeModuleError, absent, attention_of, conv_of
from hy3d_rocm.decode.layers import Attention, Conv

if TYPE_CHECKING:
    from torch import Tensor


class ImageFamily(BlockFamily):
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

    def up(self, module: Any) -> tuple[Conv, ...]:
        plain = module.use_conv and not module.use_conv_transpose and module.interpolate
        if not plain or module.norm is not None:
            raise StrangeModuleError("an up-sampling is not nearest and then a convolution")
        return (conv_of(module.conv, up=(1, 2, 2)),)

    def down(self, module: Any) -> Conv:
        if not module.use_conv or module.norm is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        more = {} if module.padding else {"after": (0, 1, 1)}
        return conv_of(module.conv, **more)

    def attention(self, module: Any) -> Attention:
        return attention_of(module, "frame")

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
