"""SeedVR2's VAE (VideoAutoencoderKL of its video_vae_v3, and its wrapper) over an engine.

Convolutions are causal: in time the first frame is repeated before itself, in space there are
zeros. GroupNorm and attention see one frame at a time. Up-sampling is a 1x1x1 convolution whose
channels become space and time, and a convolution behind it; of the two frames that the video's
first one would make the first stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.families.parts import conv_of, norm_of
from hy3d_rocm.decoding.families.proof import unsplit
from hy3d_rocm.decoding.layers import Engine, Handle, Norm, Shuffle, StrangeModuleError


class SeedVr2Family(StructuredFamily):
    """See the module's text."""

    name = "SeedVR2"
    marks = ("conv_in.temporal_padding", "conv_norm_out.num_groups")
    span = "frame"

    def norm(self, module: Any) -> Norm:
        """Whoever holds a GroupNorm gives it one frame at a time."""
        norm = norm_of(module)
        return replace(norm, kind="frame") if norm.kind == "group" else norm

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if getattr(module, "norm", None) is not None or getattr(module, "use_conv", True) is False:
            raise StrangeModuleError(
                "an up-sampling is not a convolution to more and one behind it"
            )
        time, space = int(module.temporal_ratio), int(module.spatial_ratio)
        first = (1, space, space) if time > 1 else None
        shuffle = Shuffle((time, space, space), "space first", first=first)
        x = engine.conv(x, conv_of(module.upscale_conv, shuffle=shuffle))
        return engine.conv(x, conv_of(module.conv))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if getattr(module, "norm", None) is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        down = conv_of(module.conv)
        if down.stride[1] > 1 and not any(down.before[1:]):
            # Its forward() pads two sides where the convolution pads none.
            down = replace(down, after=(0, 1, 1), modes=(down.modes[0], "zeros", "zeros"))
        return engine.conv(x, down)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, its slices of time off."""
        made: Tensor = unsplit(self.vae)._decode(z)
        return made

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, its slices of time off."""
        made: Tensor = unsplit(self.vae)._encode(pixels)
        return made
