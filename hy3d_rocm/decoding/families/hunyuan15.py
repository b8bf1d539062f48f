"""HunyuanVideo 1.5's VAE (diffusers' AutoencoderKLHunyuanVideo15) over an engine.

Causal convolutions with replicated borders; RMS norms per position; the middle block's attention
sees all earlier frames. Sizes change by packing: channels to space and time after a convolution
and back, with a shortcut around it that repeats or averages channels. Where time changes, the
video's first frame is packed in space only and takes half the repeats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.backends.torch_ops import by_phase
from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.families.parts import conv_of, framewise, packed, packed_in_space
from hy3d_rocm.decoding.layers import Engine, Handle, Local, Shuffle

_ORDER = "factor first"


class Hunyuan15Family(StructuredFamily):
    """See the module's text."""

    name = "HunyuanVideo 1.5"
    marks = ("conv_in.time_causal_padding", "norm_out.gamma")

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Packing takes whole pairs and squares."""
        return self.factor

    def around_first(self, engine: Engine, z: Handle) -> Handle:
        """The latent's channels, repeated."""
        times = int(self.view.decoder.repeat)
        return engine.local(z, framewise(lambda frames: frames.repeat_interleave(times, 1)))

    def around_last(self, engine: Engine, x: Handle) -> Handle:
        """Means of channels."""
        group = int(self.view.encoder.group_size)
        return engine.local(x, packed_in_space(1, mean_of=group))

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
        return engine.conv(x, conv_of(module.conv, shuffle=shuffle), add=around)

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """The convolution packed, plus means of x packed."""
        return self.packed_down(
            engine, x, conv_of(module.conv), int(module.group_size),
            2 if module.add_temporal_downsample else 1, order=_ORDER,
            with_first=Local(_packed_with_first_spread, lambda n: n + 1),
        )  # fmt: skip


def _packed_with_first_spread(frames: Tensor, first: int) -> Tensor:
    """Packed in space; the video's first frame as a pair of which the usual means over 2 n
    channels of both are the means over n channels of the one."""
    x = packed(frames, 2, order=_ORDER)
    if first != 0:
        return x
    halves = x[:, :, :1].repeat_interleave(2, 1).chunk(2, 1)
    return torch.cat([*halves, x[:, :, 1:]], 2)
