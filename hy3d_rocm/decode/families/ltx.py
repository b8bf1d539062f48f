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
from hy3d_rocm.decode.backends.torch_ops import shuffled
from hy3d_rocm.decode.families.base import StructuredFamily, Survey
from hy3d_rocm.decode.families.fixed import FixedWeight, Reflecting, packed_in_space, unpacked
from hy3d_rocm.decode.families.parts import (
    StrangeModuleError,
    act_of,
    conv_of,
    last_of,
    norm_of,
    resnet,
    same_frames,
)
from hy3d_rocm.decode.layers import Engine, Handle, Local, Norm, Shuffle

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
        self.timestep = getattr(vae, "decode_timestep", None)

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Convolutions that are told whether they are causal, and patches of pixels at the end."""
        return hasattr(vae.decoder.conv_in, "is_causal") and hasattr(vae.decoder, "patch_size_t")

    @property
    def conditioned(self) -> bool:
        """Whether decoding takes a timestep."""
        return self.view.decoder.timestep_scale_multiplier is not None

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

    def beside_layers(self) -> list[Tensor]:
        """What turns the timestep into scales and shifts."""
        return [
            p for name, p in self.decoder.named_parameters()
            if "time_embedder" in name or name.endswith(_CONDITIONS)
        ]  # fmt: skip

    def _temb(self) -> Tensor | None:
        """The timestep (1,), scaled, in float32 or float64; None for a VAE that takes none."""
        if not self.conditioned:
            return None
        if self.timestep is None:
            raise ValueError(
                "this LTX VAE is conditioned on a timestep: give timestep=0.05, or the decode "
                "timestep that its pipeline uses"
            )
        scale = self.view.decoder.timestep_scale_multiplier.detach()
        scale = scale.to(wide_type(scale.dtype))
        temb: Tensor = (
            torch.full((1,), self.timestep, dtype=scale.dtype, device=scale.device) * scale
        )
        return temb

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode(z, timestep) with framewise decoding, tiling and slicing off."""
        temb = None if isinstance(engine, Survey) else self._temb()  # it changes no size
        d, engine = self.view.decoder, Reflecting(engine)
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
        embedded = _embedded(d, temb)

        def norm(module: Any) -> Norm:
            if embedded is None:
                return norm_of(module)
            return _modulated(norm_of(module), *_table(d, embedded).unbind(0))

        x = engine.conv(x, last_of(d, norm))
        patch = _patch(d)
        return engine.local(x, Local(lambda frames, first: unpacked(frames, patch), same_frames))

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """As vae.encode with framewise encoding, tiling and slicing off."""
        e, engine = self.needed_encoder(), Reflecting(engine)
        x = engine.local(pixels, packed_in_space(_patch(e), order="width first"))
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
        return engine.local(engine.conv(x, last_of(e)), Local(_with_variance, same_frames))

    def _down(self, engine: Engine, down: Any, x: Handle) -> Handle:
        """A convolution with a stride; or, since 0.9.5, one packed, plus means of x packed."""
        if not hasattr(down, "group_size"):
            return engine.conv(x, conv_of(down))
        time, side, width = (int(n) for n in down.stride)
        if side != width or time > 2:
            raise StrangeModuleError(f"a down-sampling is by {time}, {side} and {width}")
        conv, group = conv_of(down.conv), int(down.group_size)
        return self.packed_down(engine, x, conv, group, time, side=side)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit; its authors' takes the timestep as a number."""
        result: Tensor
        if self._temb() is None or self.timestep is None:
            result = self.decoder(z)
        elif self.view is not self.vae:
            result = self.decoder(z, timestep=self.timestep)
        else:
            temb = torch.full((z.shape[0],), self.timestep, dtype=z.dtype, device=z.device)
            result = self.decoder(z, temb)
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


def _beside(linear: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias beside x: a host may have put modules on several devices."""
    weight, bias = (t.detach().to(x.device, x.dtype) for t in (linear.weight, linear.bias))
    return weight, bias


def _table(owner: Any, embedded: Tensor) -> Tensor:
    """The owner's scales and shifts, with the timestep's."""
    own = owner.scale_shift_table.detach().to(embedded.device, embedded.dtype)
    result: Tensor = own + embedded.view(own.shape[0], -1)
    return result


def _modulated(norm: Norm, shift: Tensor, scale: Tensor) -> Norm:
    """The norm times 1 + scale, plus shift. One without parameters of its own takes these as its
    weight and bias, so that whoever reads weights brings them to where it computes."""
    if norm.weight is not None or norm.bias is not None:
        return replace(norm, scale=scale, shift=shift)
    return replace(norm, module=FixedWeight(1 + scale, shift), weight="weight", bias="bias")


def _resnet(engine: Engine, block: Any, x: Handle, embedded: Tensor | None) -> Handle:
    if embedded is None:
        return resnet(engine, block, x)
    table = _table(block, embedded)
    parts = ((block.norm1, table[:2]), (block.norm2, table[2:]))
    norms = [_modulated(norm_of(module), shift, scale) for module, (shift, scale) in parts]
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


def _patch(coder: Any) -> int:
    if int(coder.patch_size_t) != 1:
        raise StrangeModuleError(f"its patches hold {coder.patch_size_t} frames")
    return int(coder.patch_size)


def _with_variance(frames: Tensor, first: int) -> Tensor:
    """The last channel, the log variance of all, as often as there are means."""
    last = frames[:, -1:].expand(-1, frames.shape[1] - 2, -1, -1, -1)
    return torch.cat([frames, last], 1)
