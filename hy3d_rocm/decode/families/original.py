"""VAEs with the names that their authors gave the parts, seen with the names of diffusers.

ComfyUI's own VAEs and the wrappers' have them: Wan's (conv1, middle, upsamples, head), LTX's
(up_blocks of any kind), and those that come from latent diffusion (mid.block_1, up[i].block,
norm_out): images, HunyuanVideo and HunyuanVideo 1.5. A View holds the same modules under other
names and nothing else, so whatever casts or moves them does so here, too.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.parts import StrangeModuleError, absent

if TYPE_CHECKING:
    from torch import Tensor

_CAUSAL = (1, 1, 1, 1, 2, 0)  # left, right, top, bottom, before, after


class View:
    """A VAE, or a part of it, under diffusers' names: `parts`, and what the module has itself.
    Called, it is `call`, or the module.

    Of a VAE: decoder, encoder, post_quant_conv, quant_conv, config, own_decode, own_encode;
    attention_span, clamps and decode_timestep where they differ from diffusers' VAE of the kind.
    """

    def __init__(self, module: Any = None, /, **parts: Any) -> None:
        self.__dict__.update(parts, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_module"), name)

    def __call__(self, *args: Any) -> Any:
        return self.__dict__.get("call", self._module)(*args)

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Less those of time embeddings, which blocks shared with diffusion models hold and no VAE
        uses."""
        return [(n, p) for n, p in self._module.named_parameters() if ".temb_proj." not in n]


def view_of(vae: Any) -> View | None:
    """`vae` under diffusers' names, None where its layout is none of these.

    StrangeModuleError or AttributeError where it has a layout's marks and not its parts.
    """
    for marks, view in _LAYOUTS:
        if all(hasattr(vae.decoder, name) for name in marks):
            return view(vae)
    return None


def _only_the_mean(name: str, _: Tensor) -> Tensor:
    raise TypeError(
        f"this {name} VAE's own encode gives the latent's mean only: encode with a strategy other "
        'than "whole"'
    )


# Wan


def _wan(vae: Any) -> View:
    """Wan 2.1 (layers in one list) or 2.2 (blocks with a shortcut, pixels in squares of 2)."""
    encoder, ups = getattr(vae, "encoder", None), vae.decoder.upsamples
    return View(
        vae,
        decoder=_wan_coder(vae.decoder, up_blocks=[_wan_up(b) for b in _wan_grouped(ups)]),
        encoder=None if encoder is None else _wan_coder(
            encoder, down_blocks=[_wan_down(b) for b in encoder.downsamples]
        ),
        post_quant_conv=vae.conv2,
        quant_conv=getattr(vae, "conv1", None),
        config=View(patch_size=2 if any(hasattr(b, "avg_shortcut") for b in ups) else None),
        clamps=False,
        own_decode=partial(_wan_own, vae),
        own_encode=partial(_only_the_mean, "Wan"),
    )  # fmt: skip


def _wan_coder(coder: Any, **blocks: Any) -> View:
    first, attention, second = coder.middle
    middle = View(resnets=[_wan_resnet(first), _wan_resnet(second)], attentions=[attention])
    norm, act, conv = coder.head
    return View(
        coder, conv_in=coder.conv1, mid_block=middle, norm_out=norm, nonlinearity=act,
        conv_out=conv, **blocks,
    )  # fmt: skip


def _wan_resnet(block: Any) -> View:
    norm1, act, conv1, norm2, _, _, conv2 = block.residual
    return View(
        norm1=norm1, nonlinearity=act, conv1=conv1, norm2=norm2, conv2=conv2,
        conv_shortcut=block.shortcut,
    )  # fmt: skip


def _wan_grouped(layers: Iterable[Any]) -> list[Any]:
    """Wan 2.1's layers in one list as Wan 2.2's blocks: up to and with each up-sampling."""
    if all(hasattr(layer, "upsamples") for layer in layers):
        return list(layers)
    blocks: list[Any] = [View(upsamples=[])]
    for layer in layers:
        blocks[-1].upsamples.append(layer)
        if hasattr(layer, "mode"):
            blocks.append(View(upsamples=[]))
    return blocks


def _wan_up(block: Any) -> View:
    ups = [layer for layer in block.upsamples if hasattr(layer, "mode")]
    if any(hasattr(layer, "to_qkv") for layer in block.upsamples):
        raise StrangeModuleError("there is attention between the up-samplings")
    resnets = [_wan_resnet(layer) for layer in block.upsamples if layer not in ups]
    shortcut = getattr(block, "avg_shortcut", None)
    return View(resnets=resnets, upsamplers=ups, avg_shortcut=shortcut)


def _wan_down(block: Any) -> Any:
    if hasattr(block, "residual"):
        return _wan_resnet(block)
    if not hasattr(block, "downsamples"):
        return block  # attention, or a down-sampling
    layers, down = list(block.downsamples), None
    if hasattr(layers[-1], "mode"):
        down = layers.pop()
    return View(block, resnets=[_wan_resnet(layer) for layer in layers], downsampler=down)


def _wan_own(vae: Any, z: Tensor) -> Tensor:
    """The VAE's own decode; where it takes the scales of latents, or has them, without any. On a
    shallow copy, since some keep their caches as attributes."""
    shadow: Any = copy.copy(vae)
    more: dict[str, Any] = {}
    none = z.new_zeros(z.shape[1])
    if "scale" in inspect.signature(vae.decode).parameters:
        more = {"scale": [none, none + 1]}
    elif hasattr(vae, "inv_std"):
        shadow.mean, shadow.inv_std = (n.view(1, -1, 1, 1, 1) for n in (none, none + 1))
        shadow.clear_cache()
    frames: Tensor = shadow.decode(z, **more)
    return frames


# LTX


def _ltx(vae: Any) -> View:
    """Its decode() begins behind the statistics that the latents are multiplied with, and behind
    the noise that is mixed into them: both belong to the caller."""
    decoder, encoder = vae.decoder, getattr(vae, "encoder", None)
    causal, conditioned = bool(decoder.causal), bool(getattr(vae, "timestep_conditioning", False))
    if encoder is not None and encoder.latent_log_var != "uniform":
        raise StrangeModuleError(f"its encoder's log variance is {encoder.latent_log_var!r}")
    return View(
        vae,
        decoder=_ltx_coder(
            decoder, causal, up_blocks=[_ltx_block(block, causal) for block in decoder.up_blocks],
            timestep_scale_multiplier=decoder.timestep_scale_multiplier if conditioned else None,
            time_embedder=decoder.last_time_embedder if conditioned else None,
            scale_shift_table=getattr(decoder, "last_scale_shift_table", None),
        ),
        encoder=None if encoder is None else _ltx_coder(
            encoder, True, down_blocks=[_ltx_block(block, True) for block in encoder.down_blocks]
        ),
        decode_timestep=_ltx_timestep(vae) if conditioned else None,
    )  # fmt: skip


def _ltx_timestep(vae: Any) -> float:
    """An attribute in newer ComfyUI, an argument's default in older."""
    if hasattr(vae, "decode_timestep"):
        return float(vae.decode_timestep)
    known = inspect.signature(vae.decode).parameters.get("timestep")
    if known is None or not isinstance(known.default, float):
        raise StrangeModuleError("it does not say at which timestep it decodes")
    return known.default


def _ltx_coder(coder: Any, causal: bool, **parts: Any) -> View:
    return View(
        coder, patch_size_t=1, mid_block=View(resnets=[], time_embedder=None),
        conv_in=_ltx_conv(coder.conv_in, causal), conv_out=_ltx_conv(coder.conv_out, causal),
        conv_norm_out=_ltx_norm(coder.conv_norm_out), **parts,
    )  # fmt: skip


def _ltx_conv(conv: Any, causal: bool) -> View:
    """Whether it is causal is told to it at each call."""
    return View(conv=conv.conv, is_causal=causal)


def _ltx_norm(norm: Any) -> Any:
    """A LayerNorm is in a module that moves the channels to the end."""
    return getattr(norm, "norm", norm)


def _ltx_resnet(block: Any, causal: bool) -> View:
    return View(
        norm1=_ltx_norm(block.norm1), norm2=_ltx_norm(block.norm2),
        conv1=_ltx_conv(block.conv1, causal), conv2=_ltx_conv(block.conv2, causal),
        norm3=None if absent(block.norm3) else _ltx_norm(block.norm3),
        conv_shortcut=block.conv_shortcut, nonlinearity=block.non_linearity,
        scale_shift_table=getattr(block, "scale_shift_table", None),
    )  # fmt: skip


def _ltx_block(block: Any, causal: bool) -> View:
    """Residual blocks, a single one, or what changes sizes: a block of diffusers' has all three."""
    resnets: list[View] = []
    single, resizers = None, []
    if hasattr(block, "res_blocks"):
        resnets = [_ltx_resnet(layer, causal) for layer in block.res_blocks]
    elif hasattr(block, "norm1"):
        single = _ltx_resnet(block, causal)
    elif hasattr(block.conv, "conv"):
        packs = hasattr(block, "group_size")
        more = {} if packs else {"upscale_factor": block.out_channels_reduction_factor}
        resizers = [View(block, conv=_ltx_conv(block.conv, causal), **more)]
    else:
        resizers = [_ltx_conv(block, causal)]
    return View(
        resnets=resnets, conv_in=single, conv_out=single, upsamplers=resizers,
        downsamplers=resizers, time_embedder=getattr(block, "time_embedder", None),
    )  # fmt: skip


# Latent diffusion


def _latent_diffusion(vae: Any) -> View:
    """Images, HunyuanVideo or HunyuanVideo 1.5, by the convolutions and the up-samplings."""
    decoder, encoder = vae.decoder, getattr(vae, "encoder", None)
    if getattr(decoder, "tanh_out", False):
        raise StrangeModuleError("it ends in a tanh")
    packs = any(hasattr(getattr(stage, "upsample", None), "tus") for stage in decoder.up)
    conv = _causal if hasattr(decoder.conv_in, "conv") else lambda module: module
    ups, downs = _packing if packs else _video if conv is _causal else _image
    blocks = [_stage(stage, "upsample", ups, conv) for stage in decoder.up]
    parts: dict[str, Any] = {
        "decoder": _coder(decoder, conv, packs, up_blocks=blocks[:: 1 if packs else -1])
    }
    if encoder is not None:
        blocks = [_stage(stage, "downsample", downs, conv) for stage in encoder.down]
        parts["encoder"] = _coder(encoder, conv, packs, down_blocks=blocks)
        if hasattr(encoder, "regul"):
            parts["own_encode"] = partial(_only_the_mean, "HunyuanVideo 1.5")
    return View(vae, attention_span="video", **parts)


def _coder(coder: Any, conv: Callable[[Any], Any], packs: bool, **blocks: Any) -> View:
    mid, more = coder.mid, {"conv_norm_out": coder.norm_out}
    if packs:
        if not coder.refiner_vae:
            raise StrangeModuleError("its convolutions are not causal")
        times = mid.block_1.conv1.conv.weight.shape[0] // coder.z_channels
        more = {"repeat": times, "group_size": times // 2}
    attention = View(mid.attn_1, to_q=mid.attn_1.q, to_k=mid.attn_1.k, to_v=mid.attn_1.v)
    resnets = [_resnet(block, conv) for block in (mid.block_1, mid.block_2)]
    return View(
        coder, conv_in=conv(coder.conv_in), conv_out=conv(coder.conv_out),
        conv_act=torch.nn.SiLU(), mid_block=View(resnets=resnets, attentions=[attention]),
        call=partial(_at_once, coder, "up_blocks" in blocks), **blocks, **more,
    )  # fmt: skip


def _at_once(coder: Any, decodes: bool, x: Tensor) -> Tensor:
    """A coder's own code on all frames at once: ComfyUI's coders of HunyuanVideo split them and
    take GroupNorm per part, unless they are not "carried"."""
    own = copy.copy(coder)
    if hasattr(own, "carried"):
        own.carried = False
    if decodes and hasattr(own, "refiner_vae") and hasattr(own.conv_in, "padding"):
        x = _in_pairs(x)
    made: Tensor = own(x)
    return made


def _in_pairs(z: Tensor) -> Tensor:
    """Two frames to the channels of one, the first with nothing before it: as ComfyUI of 2025-10
    gives HunyuanVideo 1.5's latents to its decoder, which takes them apart again."""
    x = torch.cat([torch.zeros_like(z[:, :, :1]), z], 2)
    b, c, t, h, w = x.shape
    x = x.reshape(b, c, t // 2, 2, h, w).permute(0, 3, 1, 2, 4, 5)
    return x.reshape(b, 2 * c, t // 2, h, w)


def _stage(
    stage: Any, name: str, resized: Callable[[Any], View], conv: Callable[[Any], Any]
) -> View:
    if len(getattr(stage, "attn", ())):
        raise StrangeModuleError("there is attention outside the middle block")
    resizers = [resized(getattr(stage, name))] if hasattr(stage, name) else []
    resnets = [_resnet(block, conv) for block in stage.block]
    return View(resnets=resnets, upsamplers=resizers, downsamplers=resizers)


def _resnet(block: Any, conv: Callable[[Any], Any]) -> View:
    shortcut = getattr(block, "conv_shortcut", None) or getattr(block, "nin_shortcut", None)
    return View(
        norm1=block.norm1, norm2=block.norm2, conv1=conv(block.conv1), conv2=conv(block.conv2),
        conv_shortcut=None if shortcut is None else conv(shortcut),
        nonlinearity=getattr(block, "swish", None) or torch.nn.SiLU(),
    )  # fmt: skip


def _causal(module: Any) -> Any:
    """A convolution that its host pads: before and around, with what is at the border."""
    if tuple(module.conv.weight.shape[2:]) == (1, 1, 1):
        return module.conv
    padding = module.padding if isinstance(getattr(module, "padding", None), tuple) else _CAUSAL
    mode = getattr(module, "padding_mode", "replicate")
    return View(conv=module.conv, time_causal_padding=padding, pad_mode=mode)


def _video_up(up: Any) -> View:
    factor = up.scale_factor
    if isinstance(factor, (int, float)):
        factor = (factor, factor, factor)
    return View(conv=_causal(up.conv), upsample_factor=tuple(int(n) for n in factor))


# By kind: its up-samplings and down-samplings under diffusers' names.
_image = (
    lambda up: View(
        use_conv=up.with_conv, use_conv_transpose=False, norm=None, interpolate=True, conv=up.conv
    ),
    lambda down: View(use_conv=down.with_conv, norm=None, padding=0, conv=down.conv),
)
_video = (
    _video_up,
    # This one is padded by whoever holds it, whatever its own padding says.
    lambda down: View(
        conv=View(conv=down.conv.conv, time_causal_padding=_CAUSAL, pad_mode="replicate")
    ),
)
_packing = (
    lambda up: View(conv=_causal(up.conv), add_temporal_upsample=bool(up.tus), repeats=up.rp),
    lambda down: View(
        conv=_causal(down.conv), add_temporal_downsample=bool(down.tds), group_size=down.gs
    ),
)
# What a decoder has, and how it is seen.
_LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[Any], View]], ...] = (
    (("conv1", "middle", "upsamples", "head"), _wan),
    (("conv_in", "up_blocks", "causal", "conv_norm_out"), _ltx),
    (("conv_in", "mid", "up", "norm_out", "conv_out"), _latent_diffusion),
)
