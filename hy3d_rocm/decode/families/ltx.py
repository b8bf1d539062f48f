"""LTX's VAE (diffusers' AutoencoderKLLTXVideo, 0.9.0 to 0.9.8) over an engine.

Convolutions replicate frames, in a causal decoder before the first only, else on both sides, and
put zeros around each frame; RMS norms per position, which the timestep scales and shifts where the
decoder is conditioned on one; channels are unpacked to space and time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from hy3d_rocm.decode.backends.statistics import wide_type
from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.fixed import packed, packed_in_space
from hy3d_rocm.decode.families.parts import (
    StrangeModuleError,
    act_of,
    conv_of,
    norm_of,
    resnet,
    same_frames,
)
from hy3d_rocm.decode.families.reflect import Reflecting
from hy3d_rocm.decode.families.survey import Size, Survey
from hy3d_rocm.decode.families.views import View
from hy3d_rocm.decode.layers import Engine, Handle, Local, Norm, Shuffle
from hy3d_rocm.decode.plain import shuffled

if TYPE_CHECKING:
    from torch import Tensor


class LtxFamily(StructuredFamily):
    """See the module's text.

    timestep: what vae.decode takes as `temb`, for a conditioned one; None until it is set, unless
    the VAE has one of its own.
    """

    name = "LTX"

    def __init__(self, vae: Any) -> None:
        super().__init__(vae)
        self.timestep: float | None = getattr(vae, "decode_timestep", None)

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Convolutions that are told whether they are causal, and patches of pixels at the end."""
        return hasattr(vae.decoder.conv_in, "is_causal") and hasattr(vae.decoder, "patch_size_t")

    def set_timestep(self, timestep: float) -> None:
        """What decode() and whole() take from now on."""
        self.timestep = timestep
        if isinstance(self.vae, View):
            self.vae.decode_timestep = timestep

    @property
    def conditioned(self) -> bool:
        """Whether decoding takes a timestep."""
        return self.decoder.timestep_scale_multiplier is not None

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """Since 0.9.5 packing takes whole pairs and squares; before, convolutions took any."""
        downs = (d for b in self.needed_encoder().down_blocks for d in b.downsamplers or ())
        if any(hasattr(d, "group_size") for d in downs):
            return self.factor
        return 1, _patch(self.encoder)

    def check(self) -> None:
        """As for all; also refuses what makes every decode another one."""
        for name, module in self.decoder.named_modules():
            if getattr(module, "per_channel_scale1", None) is not None:
                raise StrangeModuleError(
                    f"decoder.{name} adds fresh noise to every decode, so that no two are the same"
                )
        super().check()

    def beside_layers(self) -> list[Tensor]:
        """What turns the timestep into scales and shifts."""
        return [
            p for name, p in self.decoder.named_parameters()
            if "time_embedder" in name or name.endswith(_CONDITIONS)
        ]  # fmt: skip

    def surveyed(self, survey: Survey, z: Size) -> Size:
        """decode() on sizes, which no timestep changes."""
        size: Size = self._decoded(survey, z, None)
        return size

    def probed(self, engine: Engine, z: Handle, timestep: float) -> Handle:
        """decode() with this timestep."""
        return self._decoded(engine, z, self._temb(timestep))

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode(z, timestep) with framewise decoding, tiling and slicing off."""
        return self._decoded(engine, z, self._temb(self.timestep))

    def _temb(self, timestep: float | None) -> Tensor | None:
        """The timestep (1,), scaled, in float32 or float64; None for a VAE that takes none."""
        if not self.conditioned:
            return None
        if timestep is None:
            raise ValueError(
                "this LTX VAE is conditioned on a timestep: give timestep=0.05, or the decode "
                "timestep that its pipeline uses"
            )
        scale = _wide(self.decoder.timestep_scale_multiplier)
        temb: Tensor = torch.full((1,), timestep, dtype=scale.dtype, device=scale.device) * scale
        return temb

    def _decoded(self, engine: Engine, z: Handle, temb: Tensor | None) -> Handle:
        d, engine = self.decoder, Reflecting(engine)
        x = engine.conv(z, conv_of(d.conv_in))
        embedded = _embedded(d.mid_block, temb)
        for layer in d.mid_block.resnets:
            x = _resnet(engine, layer, x, embedded)
        for block in d.up_blocks:
            if block.conv_in is not None:
                x = _resnet(engine, block.conv_in, x, None)
            for up in block.upsamplers or ():
                x = _up(engine, up, x)
            embedded = _embedded(block, temb)
            for layer in block.resnets:
                x = _resnet(engine, layer, x, embedded)
        norm = norm_of(d.norm_out)
        embedded = _embedded(d, temb)
        if embedded is not None:
            shift, scale = _table(d, embedded).unbind(0)
            norm = _modulated(norm, shift, scale)
        x = engine.conv(x, conv_of(d.conv_out, norm=norm, act=act_of(d.conv_act)))
        return engine.local(x, Local(_unpatched(d), same_frames))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e, engine = self.needed_encoder(), Reflecting(engine)
        x = engine.local(pixels, Local(_patched(e), same_frames))
        x = engine.conv(x, conv_of(e.conv_in))
        for block in e.down_blocks:
            for layer in block.resnets:
                x = _resnet(engine, layer, x, None)
            for down in block.downsamplers or ():
                x = self._down(engine, down, x)
            if getattr(block, "conv_out", None) is not None:
                x = _resnet(engine, block.conv_out, x, None)
        for layer in e.mid_block.resnets:
            x = _resnet(engine, layer, x, None)
        last = conv_of(e.conv_out, norm=norm_of(e.norm_out), act=act_of(e.conv_act))
        return engine.local(engine.conv(x, last), Local(_with_variance, same_frames))

    def _down(self, engine: Engine, down: Any, x: Handle) -> Handle:
        """A convolution with a stride; or, since 0.9.5, one packed, plus means of x packed."""
        if not hasattr(down, "group_size"):
            return engine.conv(x, conv_of(down))
        conv, group = conv_of(down.conv), int(down.group_size)
        time, side, width = (int(n) for n in down.stride)
        if side != width or time > 2:
            raise StrangeModuleError(f"a down-sampling is by {time}, {side} and {width}")
        if time == 1:
            means = engine.local(x, packed_in_space(side, mean_of=group))
            return engine.add(engine.local(engine.conv(x, conv), packed_in_space(side)), means)
        squares = side * side
        inputs, outputs = (int(conv.module.weight.shape[i]) * squares for i in (1, 0))
        means = engine.local(x, _first_twice(side))
        means = engine.conv(means, self.pairs(inputs, mean_of=group, squares=squares))
        # The VAE repeats the first frame before it convolves; where nothing later is read, that is
        # to repeat what becomes of it.
        if conv.after[0] == 0:
            x = engine.local(engine.conv(x, conv), _first_twice(side))
        else:
            front, *sides = conv.before
            x = engine.conv(x, replace(conv, before=(front + 1, sides[0], sides[1])))
            x = engine.local(x, packed_in_space(side))
        return engine.conv(x, self.pairs(outputs, squares=squares), add=means)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        temb = None
        if self._temb(self.timestep) is not None and self.timestep is not None:
            temb = torch.full((z.shape[0],), self.timestep, dtype=z.dtype, device=z.device)
        result: Tensor = self.decoder(z, temb)
        return result

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code, unsplit."""
        result: Tensor = self.needed_encoder()(pixels)
        return result


_CONDITIONS = ("scale_shift_table", "timestep_scale_multiplier")


def _embedded(block: Any, temb: Tensor | None) -> Tensor | None:
    """`block`'s embedding of the timestep, (n C,) in float32 or float64; None where it takes none.
    The sines of the timestep are float32 numbers, as in the VAE's own code."""
    if temb is None or block.time_embedder is None:
        return None
    embedder = block.time_embedder
    layers = embedder.timestep_embedder
    act_of(layers.act)
    x = embedder.time_proj(temb).to(temb.dtype)
    x = F.silu(F.linear(x, *_beside(layers.linear_1, x)))
    return F.linear(x, *_beside(layers.linear_2, x)).flatten()


def _wide(parameter: Tensor) -> Tensor:
    """In float32, a float64 one as it is."""
    return parameter.detach().to(wide_type(parameter.dtype))


def _beside(linear: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias beside x: a host may have put modules on several devices."""
    weight, bias = (t.detach().to(x.device, x.dtype) for t in (linear.weight, linear.bias))
    return weight, bias


def _table(owner: Any, embedded: Tensor) -> Tensor:
    """The owner's scales and shifts, with the timestep's."""
    own = owner.scale_shift_table.detach().to(embedded.device, embedded.dtype)
    result: Tensor = own + embedded.view(own.shape[0], -1)
    return result


class Modulation(torch.nn.Module):
    """A timestep's scales and shifts as a norm's weight and bias."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)


def _modulated(norm: Norm, shift: Tensor, scale: Tensor) -> Norm:
    """The norm times 1 + scale, plus shift. One without parameters of its own takes these as its
    weight and bias, so that whoever reads weights brings them to where it computes."""
    if norm.weight is not None or norm.bias is not None:
        return replace(norm, scale=scale, shift=shift)
    return replace(norm, module=Modulation(1 + scale, shift), weight="weight", bias="bias")


def _resnet(engine: Engine, block: Any, x: Handle, embedded: Tensor | None) -> Handle:
    if embedded is None:
        return resnet(engine, block, x)
    table = _table(block, embedded)
    norms: list[Norm] = []
    for module, (shift, scale) in ((block.norm1, table[:2]), (block.norm2, table[2:])):
        norms.append(_modulated(norm_of(module), shift, scale))
    return resnet(engine, block, x, add_norms=norms)


def _up(engine: Engine, up: Any, x: Handle) -> Handle:
    """The convolution unpacked, less the frames that the first would have more; plus, since 0.9.5,
    x unpacked and its channels put one behind the other so many times."""
    time, height, width = (int(n) for n in up.stride)
    shuffle = Shuffle((time, height, width), "channel first", drop=time - 1)
    around = None
    if up.residual:
        repeats = time * height * width // int(up.upscale_factor)

        def run(frames: Tensor, first: int) -> Tensor:
            x = shuffled(frames, shuffle).repeat(1, repeats, 1, 1, 1)
            return x[:, :, shuffle.drop :] if first == 0 else x

        around = engine.local(x, Local(run, lambda n: n * time - shuffle.drop))
    return engine.conv(x, conv_of(up.conv, shuffle=shuffle), add=around)


def _first_twice(side: int) -> Local:
    def run(frames: Tensor, first: int) -> Tensor:
        x = packed(frames, side)
        return torch.cat([x[:, :, :1], x], 2) if first == 0 else x

    return Local(run, lambda n: n + 1)


def _patch(coder: Any) -> int:
    if int(coder.patch_size_t) != 1:
        raise StrangeModuleError(f"its patches hold {coder.patch_size_t} frames")
    return int(coder.patch_size)


def _unpatched(decoder: Any) -> Any:
    """Channels (C, pw, ph) to pixels."""
    p = _patch(decoder)

    def run(frames: Tensor, first: int) -> Tensor:
        b, packed_channels, t, h, w = frames.shape
        c = packed_channels // (p * p)
        x = frames.reshape(b, c, p, p, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
        return x.reshape(b, c, t, h * p, w * p)

    return run


def _patched(encoder: Any) -> Any:
    p = _patch(encoder)

    def run(frames: Tensor, first: int) -> Tensor:
        b, c, t, h, w = frames.shape
        x = frames.reshape(b, c, t, h // p, p, w // p, p).permute(0, 1, 6, 4, 2, 3, 5)
        return x.reshape(b, c * p * p, t, h // p, w // p)

    return run


def _with_variance(frames: Tensor, first: int) -> Tensor:
    """The last channel, the log variance of all, as often as there are means."""
    last = frames[:, -1:].expand(-1, frames.shape[1] - 2, -1, -1, -1)
    return torch.cat([frames, last], 1)
