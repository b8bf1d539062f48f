"""Wan's VAE (diffusers' AutoencoderKLWan of Wan 2.1 and 2.2, and AutoencoderKLQwenImage).

All convolutions are causal with zeros before the first frame; norms are per position; attention is
within a frame. The VAE itself goes a latent frame at a time through a cache of its convolutions'
last inputs: the first frame passes by the up-sampling in time, the frames behind it know nothing
of it there. In the down-sampling in time the first passes by too, but the next one reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.families import parts
from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.layers import Attention, Engine, Handle, Local, Shuffle, StrangeModuleError
from hy3d_rocm.decoding.memory.dry_run import in_turn

_CHUNK = 4  # frames of the video that the VAE encodes at a time


class WanFamily(StructuredFamily):
    name = "Wan"
    marks = ("conv_in._padding", "norm_out.gamma")

    @property
    def patch(self) -> int:
        """Side of the squares of pixels that the decoder's channels are made of."""
        return int(getattr(self.view.config, "patch_size", None) or 1)

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Wan 2.2 averages whole squares; before, convolutions took any size. Frames behind the
        last whole chunk are left out by the VAE, and by the layers where a chunk makes one latent.
        """
        residual = any(hasattr(b, "avg_shortcut") for b in self.needed_encoder().down_blocks)
        time = 1 if self.factor[0] == _CHUNK else _CHUNK
        return time, self.factor[1] if residual else self.patch

    def run_decoder(self, engine: Engine, z: Handle) -> Handle:
        return engine.local(super().run_decoder(engine, z), parts.framewise(self._finished))

    def _finished(self, frames: Tensor) -> Tensor:
        """Channels to pixels, clamped where the VAE's own decode does so."""
        frames = parts.unpacked(frames, self.patch)
        return frames.clamp(-1.0, 1.0) if getattr(self.view, "clamps", True) else frames

    def run_encoder(self, engine: Engine, pixels: Handle) -> Handle:
        """Frames behind the last 1 + 4 k are not read, as by the VAE itself."""
        if self.patch > 1:
            pixels = engine.local(pixels, parts.packed_in_space(self.patch, order="width first"))
        return super().run_encoder(engine, pixels)

    def attention(self, module: Any) -> Attention:
        return Attention(
            parts.norm_of(module.norm), module.to_qkv, None, None, module.proj, "frame"
        )

    def up_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """Wan 2.1: `upsamplers`, a list; Wan 2.2: one `upsampler` and a shortcut around all."""
        if not hasattr(block, "resnets"):
            return self._layer(engine, block, x, self.up)
        shortcut, start = getattr(block, "avg_shortcut", None), x
        x = self.resnets(engine, block, x)
        for up in getattr(block, "upsamplers", None) or ():
            x = self.up(engine, up, x)
        around = None if shortcut is None else engine.local(start, _repeated(shortcut))
        if not parts.absent(getattr(block, "upsampler", None)):
            return self.up(engine, block.upsampler, x, around)
        return x if around is None else engine.add(x, around)

    def up(self, engine: Engine, module: Any, x: Handle, add: Handle | None = None) -> Handle:
        if module.mode not in ("upsample2d", "upsample3d"):
            raise StrangeModuleError(f"an up-sampling is of mode {module.mode!r}")
        if module.mode == "upsample3d":
            twice = Shuffle((2, 1, 1), "time first")
            x = engine.conv(x, parts.conv_of(module.time_conv, skip_first=1, shuffle=twice))
        return engine.conv(x, parts.conv_of(module.resample[1], up=(1, 2, 2)), add=add)

    def down_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """Wan 2.1 has resnets, attention and down-samplings in one list; Wan 2.2 blocks of them."""
        if not hasattr(block, "resnets"):
            return self._layer(engine, block, x, self.down)
        start = x
        x = self.resnets(engine, block, x)
        if not parts.absent(block.downsampler):
            x = self.down(engine, block.downsampler, x)
        return self._averaged(engine, block.avg_shortcut, start, x)

    def _layer(self, engine: Engine, layer: Any, x: Handle, resized: Callable[..., Handle]) -> Any:
        if hasattr(layer, "to_qkv"):
            return engine.attention(x, self.attention(layer))
        if hasattr(layer, "mode"):
            return resized(engine, layer, x)
        return parts.resnet(engine, layer, x, self.norm)

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        if module.mode not in ("downsample2d", "downsample3d"):
            raise StrangeModuleError(f"a down-sampling is of mode {module.mode!r}")
        left, right, top, bottom = (int(n) for n in module.resample[0].padding)
        spatial = parts.conv_of(module.resample[1], before=(0, top, left), after=(0, bottom, right))
        x = engine.conv(x, spatial)
        if module.mode == "downsample3d":
            x = engine.conv(x, parts.conv_of(module.time_conv, skip_first=1, reread=1))
        return x

    def _averaged(self, engine: Engine, shortcut: Any, start: Handle, x: Handle) -> Handle:
        """x + AvgDown3D(start): means over groups of the channels that space and time are packed
        to; in time the first frame makes a pair with zeros before it."""
        rt, rs = int(shortcut.factor_t), int(shortcut.factor_s)
        group, channels = int(shortcut.group_size), int(shortcut.in_channels)
        if rt == 1:
            return engine.add(x, engine.local(start, parts.packed_in_space(rs, mean_of=group)))
        if rt != 2:
            raise StrangeModuleError(f"a shortcut averages {rt} frames")
        start = engine.local(start, parts.packed_in_space(rs))
        pairs = self.pairs(channels * rs * rs, mean_of=group, squares=rs * rs)
        return engine.conv(start, replace(pairs, before=(1, 0, 0)), add=x)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, a latent frame at a time with a cache of our own."""
        x = self.post_quant_conv(z)
        cache = _cache_of(self.decoder)
        tells = "first_chunk" in inspect.signature(self.decoder.forward).parameters

        def chunk(i: int) -> Tensor:
            more = {"first_chunk": i == 0} if tells else {}
            made: Tensor = self.decoder(x[:, :, i : i + 1], feat_cache=cache, feat_idx=[0], **more)
            return made

        return self._finished(torch.cat(in_turn(z.shape[2], chunk), 2))

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, in its own chunks with a cache of our own."""
        x = parts.packed(pixels, self.patch, order="width first")
        cache = _cache_of(self.encoder)

        def chunk(i: int) -> Tensor:
            start, stop = (1 + _CHUNK * (i - 1), 1 + _CHUNK * i) if i else (0, 1)
            made: Tensor = self.encoder(x[:, :, start:stop], feat_cache=cache, feat_idx=[0])
            return made

        made = in_turn(1 + (x.shape[2] - 1) // _CHUNK, chunk)
        result: Tensor = self.quant_conv(torch.cat(made, 2))
        return result


def _cache_of(coder: Any) -> list[None]:
    return [None for m in coder.modules() if isinstance(m, torch.nn.Conv3d)]


def _repeated(shortcut: Any) -> Local:
    """DupUp3D: channels repeated, then unpacked to space and time; the first frame stays one."""
    rt, rs, repeats = int(shortcut.factor_t), int(shortcut.factor_s), int(shortcut.repeats)
    shuffle = Shuffle((rt, rs, rs), "channel first", drop=rt - 1)
    return parts.unpacking(shuffle, lambda frames: frames.repeat_interleave(repeats, 1))
