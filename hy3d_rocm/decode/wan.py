"""Wan's VAE (diffusers' AutoencoderKLWan) in trunk and head.

The VAE streams by itself, a latent frame at a time, through a feature cache of its causal
convolutions; here the caches are local lists instead of attributes of the VAE. Its RMS norms are
per position, so the head is exact in tiles whose halo covers its receptive field; the attention of
the middle block is in the trunk.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.norms import NormPass
from hy3d_rocm.decode.vaes import Carry, VideoVae

if TYPE_CHECKING:
    from torch import Tensor

_CACHE_FRAMES = 2


class WanVae(VideoVae):
    """See the module's text."""

    name = "Wan"
    has_global_norms = False

    @property
    def latent_channels(self) -> int:
        return int(self.decoder.conv_in.in_channels)

    @property
    def out_channels(self) -> int:
        return int(self.decoder.conv_out.out_channels) // self.pixel_factor**2

    @property
    def pixel_factor(self) -> int:
        return int(getattr(self.vae.config, "patch_size", None) or 1)

    def block_factors(self) -> list[tuple[int, int]]:
        factors = []
        for block in self.decoder.up_blocks:
            modes = [up.mode for up in _upsamplers(block)]
            factors.append((2 ** modes.count("upsample3d"), 2 ** len(modes)))
        return factors

    def reach(self, depth: int) -> int:
        scale, reach = 1.0, 0.0
        for block in self.decoder.up_blocks[depth:]:
            reach += 2 * len(block.resnets) / scale
            for _ in _upsamplers(block):
                scale *= 2
                reach += 1 / scale
        return math.ceil(reach + 1 / scale)

    def whole(self, z: Tensor) -> Tensor:
        x = self.post_quant_conv(z)
        cache: list[Any] = [None] * self._convs()
        out: Tensor | None = None
        for i in range(z.shape[2]):
            frames = self.decoder(
                x[:, :, i : i + 1], feat_cache=cache, feat_idx=[0], first_chunk=i == 0
            )
            out = frames if out is None else torch.cat([out, frames], 2)
        assert out is not None
        return self._finish(out)

    def _convs(self) -> int:
        """Upper bound of the cache's length: the decoder's causal convolutions."""
        return sum(isinstance(m, torch.nn.Conv3d) for m in self.decoder.modules())

    def _finish(self, frames: Tensor) -> Tensor:
        p = self.pixel_factor
        if p > 1:
            b, c, t, h, w = frames.shape
            frames = frames.view(b, c // (p * p), p, p, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
            frames = frames.reshape(b, c // (p * p), t, h * p, w * p)
        return frames.clamp(-1.0, 1.0)

    def trunk(self, z: Tensor, depth: int) -> Tensor:
        x = self.post_quant_conv(z)
        cache: list[Any] = [None] * self._convs()
        out: Tensor | None = None
        at = 0
        for i in range(z.shape[2]):
            index = [0]
            h = _cached_conv(self.decoder.conv_in, x[:, :, i : i + 1], cache, index)
            h = self.decoder.mid_block(h, feat_cache=cache, feat_idx=index)
            for block in self.decoder.up_blocks[:depth]:
                h = block(h, feat_cache=cache, feat_idx=index, first_chunk=i == 0)
            if out is None:
                grid = self.grid(tuple(z.shape), depth)
                out = h.new_empty((z.shape[0], h.shape[1], *grid))
            out[:, :, at : at + h.shape[2]] = h
            at += h.shape[2]
        assert out is not None
        return out

    def head(self, x: Tensor, depth: int, carry: Carry, norms: NormPass, last: bool) -> Tensor:
        if carry.first:
            carry.frames = [None] * self._convs()
        parts = []
        step = self.scale(depth)[0]  # as many as the trunk makes of one latent frame
        start = 0
        while start < x.shape[2]:
            stop = start + (1 if carry.first else step)
            parts.append(self._head_step(x[:, :, start:stop], depth, carry))
            start, carry.first = stop, False
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def _head_step(self, x: Tensor, depth: int, carry: Carry) -> Tensor:
        index = [0]
        d = self.decoder
        for block in d.up_blocks[depth:]:
            x = block(x, feat_cache=carry.frames, feat_idx=index, first_chunk=carry.first)
        x = d.nonlinearity(d.norm_out(x))
        return self._finish(_cached_conv(d.conv_out, x, carry.frames, index))


def _upsamplers(block: Any) -> list[Any]:
    """Both layouts: WanUpBlock has a list `upsamplers`, WanResidualUpBlock one `upsampler`."""
    found = getattr(block, "upsamplers", None)
    if found is None:
        one = getattr(block, "upsampler", None)
        found = [] if one is None else [one]
    return list(found)


def _cached_conv(conv: Any, x: Tensor, cache: list[Any], index: list[int]) -> Tensor:
    """A causal convolution that sees the two frames before `x` and remembers the last two."""
    slot = index[0]
    before = cache[slot]
    recent = x[:, :, -_CACHE_FRAMES:].clone()
    if recent.shape[2] < _CACHE_FRAMES and before is not None:
        recent = torch.cat([before[:, :, -1:], recent], 2)
    result: Tensor = conv(x, before)
    cache[slot] = recent
    index[0] += 1
    return result
