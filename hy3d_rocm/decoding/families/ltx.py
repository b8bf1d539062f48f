"""LTX's VAE (diffusers' AutoencoderKLLTXVideo, 0.9.0 to 0.9.8) over an engine.

Convolutions replicate frames, in a causal decoder before the first only, else on both sides, and
put zeros around each frame; RMS norms per position, which the timestep scales and shifts where the
decoder is conditioned on one; channels are unpacked to space and time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3d_rocm.decoding.backends.statistics import wide_type
from hy3d_rocm.decoding.families import parts
from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.layers import Conv, Engine, Handle, Norm, Shuffle, StrangeModuleError


class LtxFamily(StructuredFamily):
    """See the module's text.

    timestep: what vae.decode takes as `temb`, for a conditioned one; None until it is set, unless
    the VAE has one of its own.
    """

    name = "LTX"
    marks = ("conv_in.is_causal", "patch_size_t")
    beside_layers = ("time_embedder", "scale_shift_table", "timestep_scale_multiplier")

    def __init__(self, vae: Any, view: Any = None) -> None:
        super().__init__(vae, view)
        self.timestep = getattr(self.view, "decode_timestep", None)
        self.conditioned = self.view.decoder.timestep_scale_multiplier is not None

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Since 0.9.5 packing takes whole pairs and squares; before, convolutions took any."""
        downs = (d for b in self.needed_encoder().down_blocks for d in b.downsamplers or ())
        if any(hasattr(d, "group_size") for d in downs):
            return self.factor
        return 1, _patch(self.view.encoder)

    def check(self) -> None:
        """As for all; also refuses what makes every decode another one."""
        for name, module in self.decoder.named_modules():
            if getattr(module, "per_channel_scale1", None) is not None:
                raise StrangeModuleError(
                    f"decoder.{name} adds fresh noise to every decode, so that no two are the same"
                )
        super().check()

    def run_decoder(self, engine: Engine, z: Handle) -> Handle:
        patch = _patch(self.view.decoder)
        x = super().run_decoder(engine, z)
        return engine.local(x, parts.framewise(lambda frames: parts.unpacked(frames, patch)))

    def run_encoder(self, engine: Engine, pixels: Handle) -> Handle:
        packs = parts.packed_in_space(_patch(self.view.encoder), order="width first")
        x = super().run_encoder(engine, engine.local(pixels, packs))
        return engine.local(x, parts.framewise(_with_variance))

    def resnets(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """A block's residual blocks, with its embedding of the timestep."""
        embedded = self._embedded(engine, block)
        for layer in block.resnets:
            norms: list[Norm] = []
            if embedded is not None:
                table = _table(layer, embedded)
                norms = [
                    _modulated(parts.norm_of(module), *rows)
                    for module, rows in ((layer.norm1, table[:2]), (layer.norm2, table[2:]))
                ]
            x = parts.resnet(engine, layer, x, parts.norm_of, norms)
        return x

    def up_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        if block.conv_in is not None:
            x = parts.resnet(engine, block.conv_in, x, parts.norm_of)
        for up in block.upsamplers or ():
            x = self.up(engine, up, x)
        return self.resnets(engine, block, x)

    def down_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        x = super().down_block(engine, block, x)
        after = getattr(block, "conv_out", None)
        return x if after is None else parts.resnet(engine, after, x, parts.norm_of)

    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """The convolution unpacked, less the frames that the first would have more; plus, since
        0.9.5, x unpacked and its channels put one behind the other so many times."""
        time, height, width = (int(n) for n in module.stride)
        shuffle = Shuffle((time, height, width), "channel first", drop=time - 1)
        around = None
        if module.residual:
            repeats = time * height * width // int(module.upscale_factor)
            around = engine.local(
                x, parts.unpacking(shuffle, lambda x: x.repeat(1, repeats, 1, 1, 1))
            )
        return engine.conv(x, parts.conv_of(module.conv, shuffle=shuffle), add=around)

    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """A convolution with a stride; or, since 0.9.5, one packed, plus means of x packed."""
        if not hasattr(module, "group_size"):
            return engine.conv(x, parts.conv_of(module))
        time, side, width = (int(n) for n in module.stride)
        if side != width or time > 2:
            raise StrangeModuleError(f"a down-sampling is by {time}, {side} and {width}")
        group = int(module.group_size)
        return self.packed_down(engine, x, parts.conv_of(module.conv), group, time, side=side)

    def last(self, engine: Engine, coder: Any) -> Conv:
        embedded = self._embedded(engine, coder)
        if embedded is None:
            return super().last(engine, coder)
        rows = _table(coder, embedded)
        return parts.last_of(coder, lambda module: _modulated(parts.norm_of(module), *rows))

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit; its authors' takes the timestep as a number."""
        made: Tensor
        if not self.conditioned:
            made = self.decoder(z)
        elif self.view is not self.vae:
            made = self.decoder(z, timestep=self._timestep())
        else:
            temb = torch.full((z.shape[0],), self._timestep(), dtype=z.dtype, device=z.device)
            made = self.decoder(z, temb)
        return made

    def _timestep(self) -> float:
        if self.timestep is None:
            raise ValueError(
                "this LTX VAE is conditioned on a timestep: give timestep=0.05, or the decode "
                "timestep that its pipeline uses"
            )
        return self.timestep

    def _embedded(self, engine: Engine, block: Any) -> Tensor | None:
        """`block`'s embedding of the timestep, (n C,) in float32 or float64; None where it takes
        none, or where only sizes are asked for, which it does not change. The sines of the timestep
        are float32 numbers, as in the VAE's own code."""
        embedder = getattr(block, "time_embedder", None)
        if embedder is None or not self.conditioned or getattr(engine, "sizes_only", False):
            return None
        scale = self.view.decoder.timestep_scale_multiplier.detach()
        scale = scale.to(wide_type(scale.dtype))
        temb = scale * torch.full((1,), self._timestep(), dtype=scale.dtype, device=scale.device)
        layers = embedder.timestep_embedder
        parts.act_of(layers.act)
        x = embedder.time_proj(temb).to(temb.dtype)
        x = F.silu(F.linear(x, *_beside(layers.linear_1, x)))
        return F.linear(x, *_beside(layers.linear_2, x)).flatten()


def _beside(linear: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias beside x: a host may have put modules on several devices."""
    weight, bias = (t.detach().to(x.device, x.dtype) for t in (linear.weight, linear.bias))
    return weight, bias


def _table(owner: Any, embedded: Tensor) -> Tensor:
    """The owner's shifts and scales (n, C) in turns, with the timestep's."""
    own: Tensor = owner.scale_shift_table.detach().to(embedded.device, embedded.dtype)
    return own + embedded.view(own.shape[0], -1)


def _modulated(norm: Norm, shift: Tensor, scale: Tensor) -> Norm:
    """The norm times 1 + scale, plus shift. One without parameters of its own takes these as its
    weight and bias, so that whoever reads weights brings them to where it computes."""
    if norm.weight is not None or norm.bias is not None:
        return replace(norm, scale=scale, shift=shift)
    return replace(norm, module=parts.FixedWeight(1 + scale, shift), weight="weight", bias="bias")


def _patch(coder: Any) -> int:
    if int(coder.patch_size_t) != 1:
        raise StrangeModuleError(f"its patches hold {coder.patch_size_t} frames")
    return int(coder.patch_size)


def _with_variance(frames: Tensor) -> Tensor:
    """The last channel, the log variance of all, as often as there are means."""
    last = frames[:, -1:].expand(-1, frames.shape[1] - 2, -1, -1, -1)
    return torch.cat([frames, last], 1)
