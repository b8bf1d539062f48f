"""LTX's VAE under its authors' names: blocks of any kind in one list."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.parts import StrangeModuleError, absent
from hy3d_rocm.decode.families.views import View, coder_view

if TYPE_CHECKING:
    from torch import Tensor


def ltx_view(vae: Any) -> View:
    """Its decode() begins behind the statistics that the latents are multiplied with, and behind
    the noise that is mixed into them: both belong to the caller."""
    decoder, encoder = vae.decoder, getattr(vae, "encoder", None)
    conditioned = bool(getattr(vae, "timestep_conditioning", False))
    seen = View(
        decoder=_decoder(decoder, conditioned),
        encoder=None if encoder is None else _encoder(encoder),
        config=View(),
        decode_timestep=_timestep(vae) if conditioned else None,
        own_encode=lambda pixels: _own_encode(vae, pixels),
    )
    seen.own_decode = lambda z: _own_decode(vae, z, seen.decode_timestep)
    return seen


def _timestep(vae: Any) -> float:
    """An attribute in newer ComfyUI, an argument's default in older."""
    if hasattr(vae, "decode_timestep"):
        return float(vae.decode_timestep)
    known = inspect.signature(vae.decode).parameters.get("timestep")
    if known is None or not isinstance(known.default, float):
        raise StrangeModuleError("it does not say at which timestep it decodes")
    return known.default


def _own_decode(vae: Any, z: Tensor, timestep: float | None) -> Tensor:
    more = {} if timestep is None else {"timestep": timestep}
    frames: Tensor = vae.decoder(z, **more)
    return frames


def _own_encode(vae: Any, pixels: Tensor) -> Tensor:
    moments: Tensor = vae.encoder(pixels)
    return moments


def _decoder(decoder: Any, conditioned: bool) -> View:
    causal = bool(decoder.causal)
    return coder_view(
        decoder, patch_size=decoder.patch_size, patch_size_t=1,
        conv_in=_conv(decoder.conv_in, causal),
        mid_block=View(resnets=[], time_embedder=None),
        up_blocks=[_up_block(block, causal) for block in decoder.up_blocks],
        norm_out=_norm(decoder.conv_norm_out), conv_act=decoder.conv_act,
        conv_out=_conv(decoder.conv_out, causal),
        timestep_scale_multiplier=decoder.timestep_scale_multiplier if conditioned else None,
        time_embedder=decoder.last_time_embedder if conditioned else None,
        scale_shift_table=getattr(decoder, "last_scale_shift_table", None),
    )  # fmt: skip


def _encoder(encoder: Any) -> View:
    if encoder.latent_log_var != "uniform":
        raise StrangeModuleError(f"its encoder's log variance is {encoder.latent_log_var!r}")
    return coder_view(
        encoder, patch_size=encoder.patch_size, patch_size_t=1,
        conv_in=_conv(encoder.conv_in, True), mid_block=View(resnets=[]),
        down_blocks=[_down_block(block) for block in encoder.down_blocks],
        norm_out=_norm(encoder.conv_norm_out), conv_act=encoder.conv_act,
        conv_out=_conv(encoder.conv_out, True),
    )  # fmt: skip


def _conv(conv: Any, causal: bool) -> View:
    """Whether it is causal is told to it at each call."""
    return View(conv=conv.conv, is_causal=causal)


def _norm(norm: Any) -> Any:
    """A LayerNorm is in a module that moves the channels to the end."""
    return getattr(norm, "norm", norm)


def _resnet(block: Any, causal: bool) -> View:
    return View(
        norm1=_norm(block.norm1), norm2=_norm(block.norm2), nonlinearity=block.non_linearity,
        conv1=_conv(block.conv1, causal), conv2=_conv(block.conv2, causal),
        conv_shortcut=None if absent(block.conv_shortcut) else block.conv_shortcut,
        norm3=None if absent(block.norm3) else _norm(block.norm3),
        scale_shift_table=getattr(block, "scale_shift_table", None),
    )  # fmt: skip


def _up_block(block: Any, causal: bool) -> View:
    seen = View(conv_in=None, upsamplers=None, resnets=[], time_embedder=None)
    if hasattr(block, "res_blocks"):
        seen.resnets = [_resnet(layer, causal) for layer in block.res_blocks]
        seen.time_embedder = getattr(block, "time_embedder", None)
    elif hasattr(block, "norm1"):
        seen.conv_in = _resnet(block, causal)
    else:
        up = View(
            stride=block.stride, conv=_conv(block.conv, causal), residual=block.residual,
            upscale_factor=block.out_channels_reduction_factor,
        )  # fmt: skip
        seen.upsamplers = [up]
    return seen


def _down_block(block: Any) -> View:
    seen = View(resnets=[], downsamplers=None, conv_out=None)
    if hasattr(block, "res_blocks"):
        seen.resnets = [_resnet(layer, True) for layer in block.res_blocks]
    elif hasattr(block, "norm1"):
        seen.conv_out = _resnet(block, True)
    elif hasattr(block, "group_size"):
        conv = _conv(block.conv, True)
        seen.downsamplers = [View(stride=block.stride, group_size=block.group_size, conv=conv)]
    else:
        seen.downsamplers = [_conv(block, True)]
    return seen
