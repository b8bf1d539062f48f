"""SeedVR2's video VAE in small: modules of our own with the structure, the parameters' names and
the results of the upscaler's (numz/ComfyUI-SeedVR2_VideoUpscaler, src/models/video_vae_v3), and its
slices of time with a memory in each convolution. tests/unit/decoding/families/test_seedvr2.py holds
it against the true classes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from diffusers.models.attention_processor import Attention
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import nn

OFF, FIRST, NEXT = range(3)


class CausalConv(nn.Conv3d):
    """Zeros in space; in time the first frame again and again before itself, or what the slice
    before left."""

    def __init__(self, ins: int, outs: int, kernel: Any, stride: Any = 1, padding: Any = 0) -> None:
        super().__init__(ins, outs, kernel, stride=stride, padding=padding)
        self.temporal_padding = self.padding[0]
        self.padding = (0, *self.padding[1:])
        self.memory: Any = None

    def forward(self, x: Any, memory_state: int = OFF) -> Any:
        if memory_state == NEXT and self.memory is not None:
            x = torch.cat([self.memory, x], 2)
        else:
            x = torch.cat([*[x[:, :, :1]] * (2 * self.temporal_padding), x], 2)
        kept = self.kernel_size[0] - self.stride[0]
        self.memory = x[:, :, x.shape[2] - kept :] if memory_state != OFF and kept else None
        return super().forward(x)


def by_frame(module: nn.Module, x: Any) -> Any:
    """What `module` makes of each frame by itself."""
    return torch.cat([module(frame)[:, :, None] for frame in x.unbind(2)], 2)


class Resnet(nn.Module):
    def __init__(self, ins: int, outs: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(groups, n, eps=1e-6) for n in (ins, outs))
        self.conv1, self.conv2 = (CausalConv(n, outs, 3, padding=1) for n in (ins, outs))
        self.dropout, self.nonlinearity = nn.Dropout(0.0), nn.SiLU()
        self.conv_shortcut = CausalConv(ins, outs, 1) if ins != outs else None

    def forward(self, x: Any, memory_state: int) -> Any:
        y = self.nonlinearity(by_frame(self.norm1, x))
        y = self.nonlinearity(by_frame(self.norm2, self.conv1(y, memory_state)))
        y = self.conv2(self.dropout(y), memory_state)
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x, memory_state))


class Up(nn.Module):
    def __init__(self, channels: int, in_time: bool) -> None:
        super().__init__()
        self.temporal_ratio, self.spatial_ratio = 1 + in_time, 2
        self.upscale_conv = nn.Conv3d(channels, channels * 4 * self.temporal_ratio, 1)
        self.conv = CausalConv(channels, channels, 3, padding=1)

    def forward(self, x: Any, memory_state: int) -> Any:
        (b, c, t, h, w), z = x.shape, self.temporal_ratio
        y = self.upscale_conv(x).view(b, 2, 2, z, c, t, h, w).permute(0, 4, 5, 3, 6, 1, 7, 2)
        y = y.reshape(b, c, t * z, 2 * h, 2 * w)
        if z > 1 and memory_state != NEXT:
            y = torch.cat([y[:, :, :1], y[:, :, 2:]], 2)
        return self.conv(y, memory_state)


class Down(nn.Module):
    def __init__(self, channels: int, in_time: bool) -> None:
        super().__init__()
        kernel, stride = (3, 3, 3) if in_time else (1, 3, 3), (1 + in_time, 2, 2)
        self.conv = CausalConv(channels, channels, kernel, stride, (int(in_time), 0, 0))

    def forward(self, x: Any, memory_state: int) -> Any:
        return self.conv(nn.functional.pad(x, (0, 1, 0, 1)), memory_state)


class Block(nn.Module):
    def __init__(self, ins: int, outs: int, layers: int, groups: int, **resizers: Any) -> None:
        super().__init__()
        sizes = [ins, *[outs] * layers]
        self.resnets = nn.ModuleList(Resnet(a, b, groups) for a, b in pairwise(sizes))
        for name, resizer in resizers.items():
            setattr(self, name, None if resizer is None else nn.ModuleList([resizer]))

    def forward(self, x: Any, memory_state: int) -> Any:
        resizers = getattr(self, "upsamplers", None) or getattr(self, "downsamplers", None) or ()
        for layer in (*self.resnets, *resizers):
            x = layer(x, memory_state)
        return x


class Middle(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(channels, channels, groups) for _ in range(2))
        attention = Attention(
            channels, heads=1, dim_head=channels, eps=1e-6, norm_num_groups=groups,
            residual_connection=True, bias=True, upcast_softmax=True,
            _from_deprecated_attn_block=True,
        )  # fmt: skip
        self.attentions = nn.ModuleList([attention])

    def forward(self, x: Any, memory_state: int) -> Any:
        x = by_frame(self.attentions[0], self.resnets[0](x, memory_state))
        return self.resnets[1](x, memory_state)


class Coder(nn.Module):
    """Of an encoder `down_blocks`, of a decoder `up_blocks`."""

    def __init__(self, blocks: str, widths: Any, ends: tuple[int, int], groups: int) -> None:
        super().__init__()
        is_encoder, count = blocks == "down_blocks", len(widths)
        inner = widths if is_encoder else widths[::-1]
        self.conv_in = CausalConv(ends[0], inner[0], 3, padding=1)
        made = []
        for i, (ins, outs) in enumerate(zip((inner[0], *inner), inner, strict=False)):
            if is_encoder:
                resizer: Any = Down(outs, in_time=i >= count - 3)
                more, layers = {"downsamplers": resizer}, 1
            else:
                resizer = Up(outs, in_time=i < 2)
                more, layers = {"upsamplers": resizer}, 2
            more = more if i < count - 1 else dict.fromkeys(more)
            made.append(Block(ins, outs, layers, groups, **more))
        setattr(self, blocks, nn.ModuleList(made))
        self.mid_block = Middle(widths[-1], groups)
        self.conv_norm_out = nn.GroupNorm(groups, inner[-1], eps=1e-6)
        self.conv_act = nn.SiLU()
        self.conv_out = CausalConv(inner[-1], ends[1], 3, padding=1)

    def forward(self, x: Any, memory_state: int = OFF) -> Any:
        x = self.conv_in(x, memory_state)
        ups = getattr(self, "up_blocks", ())
        for part in (*getattr(self, "down_blocks", ()), self.mid_block, *ups):
            x = part(x, memory_state)
        return self.conv_out(self.conv_act(by_frame(self.conv_norm_out, x)), memory_state)


class Encoded(NamedTuple):
    latent: Any
    posterior: Any


class Decoded(NamedTuple):
    sample: Any


class SeedVr2(nn.Module):
    """slices: latent frames of a slice with use_slicing on."""

    def __init__(self, widths: Any = (8, 8, 16, 16), latent: int = 4, groups: int = 4) -> None:
        super().__init__()
        self.encoder = Coder("down_blocks", widths, (3, 2 * latent), groups)
        self.decoder = Coder("up_blocks", widths, (latent, 3), groups)
        self.config = {"latent_channels": latent}
        self.use_slicing, self.slices = False, 1

    def decode(self, z: Any) -> Decoded:
        made = self._sliced(self._decode, z if z.ndim == 5 else z.unsqueeze(2), self.slices)
        return Decoded(made.squeeze(2))

    def encode(self, x: Any) -> Encoded:
        x = x if x.ndim == 5 else x.unsqueeze(2)
        made = DiagonalGaussianDistribution(self._sliced(self._encode, x, 4 * self.slices))
        return Encoded(made.mode().squeeze(2), made)

    def _sliced(self, run: Any, x: Any, size: int) -> Any:
        """The first slice has a frame more."""
        if not self.use_slicing or x.shape[2] - 1 <= size:
            return run(x)
        first, *rest = x[:, :, 1:].split(size, 2)
        made = [run(torch.cat([x[:, :, :1], first], 2), FIRST), *(run(part, NEXT) for part in rest)]
        return torch.cat(made, 2)

    def _decode(self, z: Any, memory_state: int = OFF) -> Any:
        return self.decoder(z, memory_state)

    def _encode(self, x: Any, memory_state: int = OFF) -> Any:
        return self.encoder(x, memory_state)
