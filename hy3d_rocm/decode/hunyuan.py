"""HunyuanVideo's VAE (diffusers' AutoencoderKLHunyuanVideo) in trunk and head.

The layers are the VAE's own; only the order of calls is here, so that a GroupNorm writes straight
into the padded input of the convolution behind it (one activation less alive) and takes the
statistics it is told, and a causal convolution continues from the chunk before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from hy3d_rocm.decode.norms import NormPass, apply_affine
from hy3d_rocm.decode.vaes import Carry, VideoVae

if TYPE_CHECKING:
    from torch import Tensor


class HunyuanVae(VideoVae):
    """See the module's text."""

    name = "HunyuanVideo"
    has_global_norms = True

    @property
    def latent_channels(self) -> int:
        return int(self.decoder.conv_in.conv.in_channels)

    @property
    def out_channels(self) -> int:
        return int(self.decoder.conv_out.conv.out_channels)

    def block_factors(self) -> list[tuple[int, int]]:
        factors = []
        for block in self.decoder.up_blocks:
            time = space = 1
            for up in block.upsamplers or ():
                time *= int(up.upsample_factor[0])
                space *= int(up.upsample_factor[1])
            factors.append((time, space))
        return factors

    def reach(self, depth: int) -> int:
        scale, reach = 1.0, 0.0
        for block, (_, space) in list(
            zip(self.decoder.up_blocks, self.block_factors(), strict=True)
        )[depth:]:
            reach += 2 * len(block.resnets) / scale
            scale *= space
            if block.upsamplers is not None:
                reach += len(block.upsamplers) / scale
        return math.ceil(reach + 1 / scale)

    def whole(self, z: Tensor) -> Tensor:
        result: Tensor = self.decoder(self.post_quant_conv(z))
        return result

    def trunk(self, z: Tensor, depth: int) -> Tensor:
        run = _Run(NormPass(), Carry(), keep=False)
        d = self.decoder
        h = run.conv(d.conv_in, self.post_quant_conv(z))
        mid = d.mid_block
        h = run.resnet(mid.resnets[0], h)
        for attention, resnet in zip(mid.attentions, mid.resnets[1:], strict=True):
            if attention is not None:
                h = run.attention(attention, h)
            h = run.resnet(resnet, h)
        for block in d.up_blocks[:depth]:
            h = run.up_block(block, h)
        return h

    def head(self, x: Tensor, depth: int, carry: Carry, norms: NormPass, last: bool) -> Tensor:
        carry.start()
        run = _Run(norms, carry, keep=not last)
        d = self.decoder
        for block in d.up_blocks[depth:]:
            x = run.up_block(block, x)
        x = run.norm_conv(d.conv_norm_out, d.conv_act, d.conv_out, x)
        carry.first = False
        return x


class _Run:
    """One pass over a chunk: the layers of the VAE with our padding, statistics and carry."""

    def __init__(self, norms: NormPass, carry: Carry, keep: bool) -> None:
        self.norms = norms
        self.carry = carry
        self.keep = keep

    def _padded(self, conv: Any, x: Tensor, size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """An uninitialised input for `conv` of (T, H, W) `size` and padding; and its inside."""
        left, _, top, _, front, _ = conv.time_causal_padding
        t, h, w = size
        channels = conv.conv.in_channels
        buffer = x.new_empty((x.shape[0], channels, t + front, h + 2 * top, w + 2 * left))
        return buffer, buffer[:, :, front:, top : top + h, left : left + w]

    def _run_padded(self, conv: Any, buffer: Tensor) -> Tensor:
        """Fills the border by replication and the front from the chunk before, then convolves."""
        left, _, top, _, front, _ = conv.time_causal_padding
        body = buffer[:, :, front:]
        for i in range(top):
            body[:, :, :, i].copy_(body[:, :, :, top])
            body[:, :, :, -1 - i].copy_(body[:, :, :, -1 - top])
        for i in range(left):
            body[..., i].copy_(body[..., left])
            body[..., -1 - i].copy_(body[..., -1 - left])
        if front:
            self._front(buffer, front)
        result: Tensor = conv.conv(buffer)
        return result

    def _front(self, buffer: Tensor, front: int) -> None:
        carry = self.carry
        if carry.first:
            buffer[:, :, :front].copy_(
                buffer[:, :, front : front + 1].expand(-1, -1, front, -1, -1)
            )
            if self.keep:
                carry.frames.append(buffer[:, :, -front:].clone())
            return
        buffer[:, :, :front].copy_(carry.frames[carry.index])
        carry.frames[carry.index] = buffer[:, :, -front:].clone() if self.keep else None
        carry.index += 1

    def conv(self, conv: Any, x: Tensor) -> Tensor:
        if not any(conv.time_causal_padding):
            result: Tensor = conv.conv(x)
            return result
        buffer, inside = self._padded(conv, x, (x.shape[2], x.shape[3], x.shape[4]))
        inside.copy_(x)
        return self._run_padded(conv, buffer)

    def norm_conv(self, norm: Any, act: Any, conv: Any, x: Tensor) -> Tensor:
        """GroupNorm, activation, causal convolution; the normalised tensor exists once, padded."""
        buffer, inside = self._padded(conv, x, (x.shape[2], x.shape[3], x.shape[4]))
        scale, shift = self.norms.scale_shift(x, norm)
        apply_affine(x, scale, shift, inside)
        if isinstance(act, torch.nn.SiLU):
            F.silu(inside, inplace=True)
        else:
            inside.copy_(act(inside))
        return self._run_padded(conv, buffer)

    def resnet(self, block: Any, x: Tensor) -> Tensor:
        h = self.norm_conv(block.norm1, block.nonlinearity, block.conv1, x)
        h = self.norm_conv(block.norm2, block.nonlinearity, block.conv2, h)
        return h.add_(x if block.conv_shortcut is None else self.conv(block.conv_shortcut, x))

    def up_block(self, block: Any, x: Tensor) -> Tensor:
        for resnet in block.resnets:
            x = self.resnet(resnet, x)
        for up in block.upsamplers or ():
            x = self.upsample(up, x)
        return x

    def upsample(self, up: Any, x: Tensor) -> Tensor:
        """Nearest up-sampling; the video's first frame is not repeated in time."""
        ft, fh, fw = (int(f) for f in up.upsample_factor)
        t, h, w = x.shape[2:]
        lead = 1 if self.carry.first else 0
        buffer, inside = self._padded(up.conv, x, ((t - lead) * ft + lead, h * fh, w * fw))
        for dh in range(fh):
            for dw in range(fw):
                if lead:
                    inside[:, :, :1, dh::fh, dw::fw].copy_(x[:, :, :1])
                for dt in range(ft):
                    inside[:, :, lead + dt :: ft, dh::fh, dw::fw].copy_(x[:, :, lead:])
        return self._run_padded(up.conv, buffer)

    def attention(self, attn: Any, x: Tensor) -> Tensor:
        """The mid block's frame-causal attention: each frame attends to the keys up to it, which
        is what the dense (T*H*W)^2 mask says, without the mask."""
        b, c, t, h, w = x.shape
        scale, shift = self.norms.scale_shift(x, attn.group_norm)
        normed = torch.empty_like(x)
        apply_affine(x, scale, shift, normed)
        tokens = normed.flatten(2).transpose(1, 2)
        q, k, v = (
            layer(tokens).view(b, t * h * w, attn.heads, -1).transpose(1, 2)
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        del normed, tokens
        mixed = torch.empty_like(q)
        for frame in range(t):
            rows = slice(frame * h * w, (frame + 1) * h * w)
            mixed[:, :, rows] = F.scaled_dot_product_attention(
                q[:, :, rows], k[:, :, : rows.stop], v[:, :, : rows.stop]
            )
        out: Tensor = attn.to_out[0](mixed.transpose(1, 2).reshape(b, t * h * w, -1))
        out = out.transpose(1, 2).reshape(b, c, t, h, w)
        if attn.residual_connection:
            out = out + x
        return out if attn.rescale_output_factor == 1 else out / attn.rescale_output_factor
