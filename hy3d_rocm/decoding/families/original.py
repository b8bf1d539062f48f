"""VAEs with the names that their authors gave the parts, seen with the names of diffusers.

ComfyUI's own VAEs and the wrappers' have them: Wan's (conv1, middle, upsamples, head), LTX's
(up_blocks of any kind), and those that come from latent diffusion (mid.block_1, up[i].block,
norm_out): images, HunyuanVideo and HunyuanVideo 1.5. A View holds the same modules under other
names and nothing else, so whatever casts or moves them does so here, too. What such a VAE's own
decode() does beside its decoder is the Processing, functions of single frames: statistics that
latents are multiplied with (LTX, the WanVideoWrapper), latents that hold two frames or a square of
positions (HunyuanVideo 1.5 in ComfyUI of 2025-10, Flux 2).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.backends.torch_ops import shuffled
from hy3d_rocm.decoding.families.parts import absent, framewise
from hy3d_rocm.decoding.layers import Local, Shuffle, StrangeModuleError

_CAUSAL = (1, 1, 1, 1, 2, 0)  # left, right, top, bottom, before, after


@dataclass(frozen=True)
class Processing:
    """enter: latents to what the decoder takes. leave: what it gives to frames. encoded: moments of
    the encoder to those of the latent. packed: how many times more channels a latent has than the
    decoder takes. noise: share of noise that is mixed into latents, None without. no_encode: a
    sentence where the encoder is not known. gives_mean: whether the VAE's own encode gives no
    variance.
    """

    enter: Local | None = None
    leave: Local | None = None
    encoded: Local | None = None
    packed: int = 1
    noise: float | None = None
    no_encode: str = ""
    gives_mean: bool = False


class View:
    """A VAE, or a part of it, under diffusers' names: `parts`, and what the module has itself.
    Called, it is `call`, or the module.

    Of a VAE: decoder, encoder, post_quant_conv, quant_conv, config, own_decode, processing;
    attention_span, clamps and decode_timestep where they differ from diffusers' VAE of the kind.
    """

    processing = Processing()

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


def inner_vae(vae: Any) -> Any:
    """The module with encoder and decoder of a VAE that only scales around it."""
    model = getattr(vae, "model", None)
    scales = hasattr(vae, "scale") or hasattr(vae, "inv_std")
    if scales and not hasattr(vae, "decoder") and hasattr(model, "decoder"):
        return model
    return vae


def view_of(vae: Any) -> View | None:
    """`vae` under diffusers' names, None where its layout is none of these.

    StrangeModuleError or AttributeError where it has a layout's marks and not its parts.
    """
    modules = inner_vae(vae)
    for marks, layout in _LAYOUTS:
        if all(hasattr(modules.decoder, name) for name in marks):
            view = layout(modules)
            if modules is not vae:
                view.processing = _wan_wrapper(vae)
            return view
    return None


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(device=like.device, dtype=like.dtype).view(1, -1, 1, 1, 1)


def _scaled(read: Callable[[], Sequence[Tensor]], divides: bool, **more: Any) -> Processing:
    """read: the mean and a scale of each channel. Latents are divided by it, or multiplied with it,
    and the mean is added."""

    def enter(latents: Tensor) -> Tensor:
        mean, scale = (_column(t, latents) for t in read())
        return (latents / scale if divides else latents * scale) + mean

    def encoded(moments: Tensor) -> Tensor:
        mean, scale = (_column(t, moments) for t in read())
        inverse = scale if divides else 1 / scale
        means, variances = moments.chunk(2, 1)
        return torch.cat([(means - mean) * inverse, variances + 2 * inverse.log()], 1)

    return Processing(enter=framewise(enter), encoded=framewise(encoded), **more)


# Wan


def _wan(vae: Any) -> View:
    """Wan 2.1 (layers in one list) or 2.2 (blocks with a shortcut, pixels in squares of 2)."""
    encoder, ups = getattr(vae, "encoder", None), vae.decoder.upsamples
    if encoder is not None:
        encoder = _wan_coder(encoder, down_blocks=[_wan_block(b) for b in encoder.downsamples])
    return View(
        vae,
        decoder=_wan_coder(vae.decoder, up_blocks=[_wan_block(b) for b in ups]),
        encoder=encoder,
        post_quant_conv=vae.conv2,
        quant_conv=getattr(vae, "conv1", None),
        config=View(patch_size=2 if any(hasattr(b, "avg_shortcut") for b in ups) else None),
        clamps=False,
        own_decode=partial(_wan_own, vae),
        processing=Processing(gives_mean=True),
    )  # fmt: skip


def _wan_wrapper(vae: Any) -> Processing:
    """The WanVideoWrapper: `scale` holds mean and 1 / spread, and frames are clamped (2025-03); or
    `mean` and `inv_std` do, and they are not (2026)."""
    if not hasattr(vae, "scale"):
        return _scaled(lambda: (vae.mean, vae.inv_std), True, gives_mean=True)
    clamped = framewise(lambda frames: frames.clamp(-1.0, 1.0))
    return _scaled(lambda: vae.scale, True, gives_mean=True, leave=clamped)


def _wan_coder(coder: Any, **blocks: Any) -> View:
    first, attention, second = map(_wan_block, coder.middle)
    norm, act, conv = coder.head
    return View(
        coder, conv_in=coder.conv1, norm_out=norm, nonlinearity=act, conv_out=conv,
        mid_block=View(resnets=[first, second], attentions=[attention]), **blocks,
    )  # fmt: skip


def _wan_block(block: Any) -> Any:
    """A residual block, blocks of them, or as it is what has no other names: attention, and what
    changes sizes."""
    if hasattr(block, "residual"):
        norm1, act, conv1, norm2, _, _, conv2 = block.residual
        return View(
            norm1=norm1, nonlinearity=act, conv1=conv1, norm2=norm2, conv2=conv2,
            conv_shortcut=block.shortcut,
        )  # fmt: skip
    layers = list(getattr(block, "upsamples", None) or getattr(block, "downsamples", None) or ())
    if not layers:
        return block
    resizer = layers.pop() if hasattr(layers[-1], "mode") else None
    return View(
        block, resnets=[_wan_block(b) for b in layers], upsampler=resizer, downsampler=resizer
    )


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
    if encoder is not None:
        blocks = [_ltx_block(block, True) for block in encoder.down_blocks]
        encoder = _ltx_coder(encoder, True, down_blocks=blocks)
    processing = Processing()
    if hasattr(vae, "per_channel_statistics"):
        read = vae.per_channel_statistics.get_buffer
        processing = _scaled(
            lambda: (read("mean-of-means"), read("std-of-means")), False,
            noise=_ltx_default(vae, "noise_scale") if conditioned else None,
        )  # fmt: skip
    return View(
        vae,
        decoder=_ltx_coder(
            decoder, causal, up_blocks=[_ltx_block(block, causal) for block in decoder.up_blocks],
            timestep_scale_multiplier=decoder.timestep_scale_multiplier if conditioned else None,
            time_embedder=decoder.last_time_embedder if conditioned else None,
            scale_shift_table=getattr(decoder, "last_scale_shift_table", None),
        ),
        encoder=encoder,
        decode_timestep=_ltx_default(vae, "timestep") if conditioned else None,
        processing=processing,
    )  # fmt: skip


def _ltx_default(vae: Any, name: str) -> float:
    """An attribute in newer ComfyUI, an argument's default in older."""
    if getattr(vae, f"decode_{name}", None) is not None:
        return float(getattr(vae, f"decode_{name}"))
    known = inspect.signature(vae.decode).parameters.get(name)
    if known is None or not isinstance(known.default, float):
        raise StrangeModuleError(f"it does not say at which {name} it decodes")
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
    resnets = [_ltx_resnet(layer, causal) for layer in getattr(block, "res_blocks", ())]
    single, resizers = None, []
    if hasattr(block, "norm1"):
        single = _ltx_resnet(block, causal)
    elif not hasattr(block, "res_blocks"):
        resizers = [_ltx_conv(block, causal)]
        if hasattr(block.conv, "conv"):
            more = {"upscale_factor": getattr(block, "out_channels_reduction_factor", None)}
            resizers = [View(block, conv=_ltx_conv(block.conv, causal), **more)]
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
    if getattr(vae, "bn", None) is not None:
        processing = _batch_norm(vae)
    elif _takes_pairs(decoder):
        processing = Processing(
            enter=Local(_two_frames, lambda n: 2 * n - 1),
            packed=2,
            no_encode="this HunyuanVideo 1.5 VAE's latents hold two frames, which is not known of "
            "its encoder",
        )
    else:
        processing = Processing(gives_mean=hasattr(encoder, "regul"))
    return View(vae, attention_span="video", processing=processing, **parts)


def _takes_pairs(coder: Any) -> bool:
    """Whether it takes latents of two frames apart itself: HunyuanVideo 1.5's decoder in ComfyUI of
    2025-10."""
    return getattr(coder, "refiner_vae", False) and hasattr(coder.conv_in, "padding")


def _two_frames(latents: Tensor, first: int) -> Tensor:
    """(1, 2 C, t, H, W) -> (1, C, 2 t, H, W), less the first of the video."""
    x = shuffled(latents, Shuffle((2, 1, 1), "time first"))
    return x[:, :, 1:] if first == 0 else x


def _batch_norm(vae: Any) -> Processing:
    """Flux 2: squares of positions in the channels, scaled by a batch norm's moments."""
    if not hasattr(vae, "ps") or not hasattr(vae, "bn_eps"):
        raise TypeError(
            f"the {type(vae).__name__} normalises and packs its latents before it decodes, but "
            "does not say how: call the VAE's own decode under hy3d_rocm.protect()"
        )
    height, width = (int(n) for n in vae.ps)

    def enter(latents: Tensor) -> Tensor:
        mean, variance = (_column(t, latents) for t in (vae.bn.running_mean, vae.bn.running_var))
        scaled = latents * (variance + vae.bn_eps).sqrt() + mean
        return shuffled(scaled, Shuffle((1, height, width), "channel first"))

    return Processing(
        enter=framewise(enter),
        packed=height * width,
        no_encode="this VAE packs and normalises its latents, which is not known of its encoder",
    )


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
    if decodes and _takes_pairs(own):  # two frames to the channels of one, zeros before the first
        x = torch.cat([torch.zeros_like(x[:, :, :1]), x], 2)
        b, c, t, h, w = x.shape
        x = x.reshape(b, c, t // 2, 2, h, w).permute(0, 3, 1, 2, 4, 5)
        x = x.reshape(b, 2 * c, t // 2, h, w)
    made: Tensor = own(x)
    return made


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


# By kind: its up-samplings and down-samplings under diffusers' names.
_image = (lambda module: View(use_conv=module.with_conv, conv=module.conv),) * 2
_video = (
    lambda up: View(conv=_causal(up.conv), upsample_factor=up.scale_factor),
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
