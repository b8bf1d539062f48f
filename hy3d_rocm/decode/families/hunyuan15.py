"""HunyuanVideo 1.5's VAE (diffusers' AutoencoderKLHunyuanVideo15) over an engine.

Causal convolutions with replicated borders; RMS norms per position; the middle block's attention
sees all earlier frames. Sizes change by packing: channels to space and time after a convolution
and back, with a shortcut around it that repeats or averages channels. Where time changes, the
video's first frame is packed in space only and takes half the repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.fixed import packed, packed_in_space
from hy3d_rocm.decode.families.parts import (
    act_of,
    attention_of,
    conv_of,
    mid_block,
    norm_of,
    resnet,
    same_frames,
)
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle, Local, Shuffle
from hy3d_rocm.decode.plain import shuffled

if TYPE_CHECKING:
    from torch import Tensor

_ORDER = "factor first"


class Hunyuan15Family(StructuredFamily):
    """See the module's text."""

    name = "HunyuanVideo 1.5"

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Padding in time before, and an RMS norm at the end."""
        decoder = vae.decoder
        return hasattr(decoder.conv_in, "time_causal_padding") and hasattr(
            getattr(decoder, "norm_out", None), "gamma"
        )

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Packing takes whole pairs and squares."""
        return self.factor

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode with tiling and slicing off."""
        d = self.decoder
        repeated = engine.local(z, _repeated(int(d.repeat)))
        x = engine.conv(z, conv_of(d.conv_in), add=repeated)
        x = mid_block(engine, d.mid_block, x, self._attention)
        for block in d.up_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for up in block.upsamplers or ():
                x = _up(engine, up, x)
        return engine.conv(x, _last(d))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with tiling and slicing off."""
        e = self.needed_encoder()
        x = engine.conv(pixels, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = resnet(engine, layer, x)
            for down in block.downsamplers or ():
                x = self._down(engine, down, x)
        x = mid_block(engine, e.mid_block, x, self._attention)
        means = engine.local(x, packed_in_space(1, mean_of=int(e.group_size)))
        return engine.conv(x, _last(e), add=means)

    def _down(self, engine: Engine, down: Any, x: Handle) -> Handle:
        conv, group = conv_of(down.conv), int(down.group_size)
        width = int(conv.module.weight.shape[0]) * 4
        if not down.add_temporal_downsample:
            means = engine.local(x, packed_in_space(2, mean_of=group, order=_ORDER))
            x = engine.local(engine.conv(x, conv), packed_in_space(2, order=_ORDER))
            return engine.add(x, means)
        channels = width * 2 * group // 2  # of x, packed in space
        means = engine.local(x, Local(_packed_with_first_spread, _one_more))
        means = engine.conv(means, self.pairs(channels, mean_of=group, order=_ORDER))
        x = engine.local(engine.conv(x, conv), Local(_packed_with_first_twice, _one_more))
        return engine.conv(x, self.pairs(width, order=_ORDER), add=means)

    def _attention(self, attn: Any) -> Attention:
        return attention_of(attn, self.span)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        result: Tensor = self.decoder(z)
        return result

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, unsplit."""
        result: Tensor = self.needed_encoder()(pixels)
        return result


def _last(coder: Any) -> Conv:
    norm, act = norm_of(coder.norm_out), act_of(coder.conv_act)
    return conv_of(coder.conv_out, norm=norm, act=act)


def _repeated(times: int) -> Local:
    return Local(lambda frames, first: frames.repeat_interleave(times, 1), same_frames)


def _up(engine: Engine, up: Any, x: Handle) -> Handle:
    """The convolution unpacked, plus x repeated and unpacked."""
    time, repeats = 2 if up.add_temporal_upsample else 1, int(up.repeats)
    inner = Shuffle((1, 2, 2), _ORDER)
    whole = Shuffle((time, 2, 2), _ORDER, first=(1, 2, 2) if time == 2 else None)

    def run(frames: Tensor, first: int) -> Tensor:
        if time == 1:
            return shuffled(frames.repeat_interleave(repeats, 1), inner)
        lead = 1 if first == 0 else 0
        rest = shuffled(frames[:, :, lead:], Shuffle((2, 2, 2), _ORDER))
        rest = rest.repeat_interleave(repeats, 1)
        if not lead:
            return rest
        start = shuffled(frames[:, :, :1], inner).repeat_interleave(repeats // 2, 1)
        return torch.cat([start, rest], 2)

    around = engine.local(x, Local(run, lambda n: 1 + time * (n - 1)))
    return engine.conv(x, conv_of(up.conv, shuffle=whole), add=around)


def _one_more(frames: int) -> int:
    return frames + 1


def _packed_with_first_twice(frames: Tensor, first: int) -> Tensor:
    """Packed in space; the video's first frame makes a pair with itself."""
    x = packed(frames, 2, order=_ORDER)
    return torch.cat([x[:, :, :1], x], 2) if first == 0 else x


def _packed_with_first_spread(frames: Tensor, first: int) -> Tensor:
    """Packed in space; the video's first frame as a pair of which the usual means over 2 n
    channels of both are the means over n channels of the one."""
    x = packed(frames, 2, order=_ORDER)
    if first != 0:
        return x
    halves = x[:, :, :1].repeat_interleave(2, 1).chunk(2, 1)
    return torch.cat([*halves, x[:, :, 1:]], 2)
