"""The VAEs whose decoders are residual blocks with up- and down-samplings behind them:
HunyuanVideo's, HunyuanVideo 1.5's, SeedVR2's and images'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.backends.torch_ops import by_phase
from hy3d_rocm.decoding.families import parts
from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.families.proof import unsplit
from hy3d_rocm.decoding.layers import Engine, Handle, Local, Norm, Shuffle, StrangeModuleError

_ORDER = "factor first"  # of HunyuanVideo 1.5's packed channels


class HunyuanFamily(StructuredFamily):
    """HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo). All convolutions are causal with
    replicated borders; GroupNorm; the middle block's attention sees all earlier frames; the first
    frame is not repeated in time."""

    name = "HunyuanVideo"
    marks = ("conv_in.time_causal_padding", "conv_norm_out.num_groups")

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        up = parts.numbers(module.upsample_factor, 3)
        return engine.conv(x, parts.conv_of(module.conv, up=up, keep_first=up[0] > 1))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        return engine.conv(x, parts.conv_of(module.conv))


class Hunyuan15Family(StructuredFamily):
    """HunyuanVideo 1.5's VAE (diffusers' AutoencoderKLHunyuanVideo15). Causal convolutions with
    replicated borders; RMS norms per position; the middle block's attention sees all earlier
    frames. Sizes change by packing: channels to space and time after a convolution and back, with a
    shortcut around it that repeats or averages channels. Where time changes, the video's first
    frame is packed in space only and takes half the repeats."""

    name = "HunyuanVideo 1.5"
    marks = ("conv_in.time_causal_padding", "norm_out.gamma")

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Packing takes whole pairs and squares."""
        return self.factor

    def around_first(self, engine: Engine, z: Handle) -> Handle:
        """The latent's channels, repeated."""
        times = int(self.view.decoder.repeat)
        return engine.local(z, parts.framewise(lambda frames: frames.repeat_interleave(times, 1)))

    def around_last(self, engine: Engine, x: Handle) -> Handle:
        """Means of channels."""
        group = int(self.view.encoder.group_size)
        return engine.local(x, parts.packed_in_space(1, mean_of=group))

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """The convolution unpacked, plus x repeated and unpacked."""
        time, repeats = 2 if module.add_temporal_upsample else 1, int(module.repeats)
        whole = Shuffle((time, 2, 2), _ORDER)

        def run(frames: Tensor, first: int) -> Tensor:
            """One copy, laid out as the frames are: the convolution's result is made over it."""
            lead = 1 if first == 0 and time == 2 else 0
            _, channels, count, high, wide = frames.shape
            size = lead + time * (count - lead), 2 * high, 2 * wide
            last = frames.stride(1) == 1
            made = torch.empty(
                (1, channels * repeats // (4 * time), *size), dtype=frames.dtype,
                device=frames.device,
                memory_format=torch.channels_last_3d if last else torch.contiguous_format,
            )  # fmt: skip
            start, rest = frames[0, :, :lead], frames[0, :, lead:]
            for part, factor, times, place in (
                (start, (1, 2, 2), repeats // 2, made[0, :, :lead]),
                (rest, whole.factor, repeats, made[0, :, lead:]),
            ):
                if part.shape[1]:
                    moved = by_phase(part, factor, _ORDER).permute(3, 4, 0, 5, 1, 6, 2)
                    place.view(len(moved), times, *moved.shape[1:]).copy_(moved.unsqueeze(1))
            return made

        around = engine.local(x, Local(run, lambda n: 1 + time * (n - 1)))
        shuffle = replace(whole, first=(1, 2, 2)) if time == 2 else whole
        return engine.conv(x, parts.conv_of(module.conv, shuffle=shuffle), add=around)

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """The convolution packed, plus means of x packed."""
        return self.packed_down(
            engine, x, parts.conv_of(module.conv), int(module.group_size),
            2 if module.add_temporal_downsample else 1, order=_ORDER,
            with_first=Local(_packed_with_first_spread, lambda n: n + 1),
        )  # fmt: skip


def _packed_with_first_spread(frames: Tensor, first: int) -> Tensor:
    """Packed in space; the video's first frame as a pair of which the usual means over 2 n
    channels of both are the means over n channels of the one."""
    x = parts.packed(frames, 2, order=_ORDER)
    if first != 0:
        return x
    halves = x[:, :, :1].repeat_interleave(2, 1).chunk(2, 1)
    return torch.cat([*halves, x[:, :, 1:]], 2)


class SeedVr2Family(StructuredFamily):
    """SeedVR2's VAE (VideoAutoencoderKL of its video_vae_v3, and its wrapper). Convolutions are
    causal: in time the first frame is repeated before itself, in space there are zeros. GroupNorm
    and attention see one frame at a time. Up-sampling is a 1x1x1 convolution whose channels become
    space and time, and a convolution behind it; of the two frames that the video's first one would
    make the first stays."""

    name = "SeedVR2"
    marks = ("conv_in.temporal_padding", "conv_norm_out.num_groups")
    span = "frame"

    def norm(self, module: Any) -> Norm:
        """Whoever holds a GroupNorm gives it one frame at a time."""
        norm = parts.norm_of(module)
        return replace(norm, kind="frame") if norm.kind == "group" else norm

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if getattr(module, "norm", None) is not None or getattr(module, "use_conv", True) is False:
            raise StrangeModuleError(
                "an up-sampling is not a convolution to more and one behind it"
            )
        time, space = int(module.temporal_ratio), int(module.spatial_ratio)
        first = (1, space, space) if time > 1 else None
        shuffle = Shuffle((time, space, space), "space first", first=first)
        x = engine.conv(x, parts.conv_of(module.upscale_conv, shuffle=shuffle))
        return engine.conv(x, parts.conv_of(module.conv))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if getattr(module, "norm", None) is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        down = parts.conv_of(module.conv)
        if down.stride[1] > 1 and not any(down.before[1:]):
            # Its forward() pads two sides where the convolution pads none.
            down = replace(down, after=(0, 1, 1), modes=(down.modes[0], "zeros", "zeros"))
        return engine.conv(x, down)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, its slices of time off."""
        made: Tensor = unsplit(self.vae)._decode(z)
        return made

    def own_encode(self, pixels: Tensor) -> Tensor:
        made: Tensor = unsplit(self.vae)._encode(pixels)
        return made


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
        return engine.conv(x, parts.conv_of(module.conv, up=(1, 2, 2)))

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if not module.use_conv or getattr(module, "norm", None) is not None:
            raise StrangeModuleError("a down-sampling is not a convolution alone")
        more = {} if getattr(module, "padding", 0) else {"after": (0, 1, 1)}
        return engine.conv(x, parts.conv_of(module.conv, **more))
