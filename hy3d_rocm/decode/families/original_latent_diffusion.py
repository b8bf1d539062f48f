"""Image VAEs, HunyuanVideo's and HunyuanVideo 1.5's under the names of latent diffusion."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.parts import StrangeModuleError
from hy3d_rocm.decode.families.views import View, coder_view, only_the_mean

if TYPE_CHECKING:
    from torch import Tensor

_CAUSAL = (1, 1, 1, 1, 2, 0)  # left, right, top, bottom, before, after


def latent_diffusion_view(vae: Any) -> View:
    """Which of the three by the convolutions and the up-samplings."""
    if getattr(vae.decoder, "tanh_out", False):
        raise StrangeModuleError("it ends in a tanh")
    packs = any(hasattr(getattr(stage, "upsample", None), "tus") for stage in vae.decoder.up)
    video = hasattr(vae.decoder.conv_in, "conv")
    encoder = getattr(vae, "encoder", None)
    parts = _packing_coders if packs else _video_coders if video else _image_coders
    return View(
        decoder=parts(vae.decoder, True),
        encoder=None if encoder is None else parts(encoder, False),
        post_quant_conv=getattr(vae, "post_quant_conv", None),
        quant_conv=getattr(vae, "quant_conv", None),
        config=View(),
        attention_span="video",
        own_decode=lambda z: _own_decode(vae, z, video),
        own_encode=lambda pixels: _own_encode(vae, pixels, video),
    )


def _own_decode(vae: Any, z: Tensor, video: bool) -> Tensor:
    """The decoder's own code on all frames at once: ComfyUI's decoders of HunyuanVideo split them
    and take GroupNorm per part, unless they are not "carried"."""
    decoder = copy.copy(vae.decoder)
    if hasattr(decoder, "carried"):
        decoder.carried = False
    if hasattr(decoder, "refiner_vae") and hasattr(decoder.conv_in, "padding"):
        z = _in_pairs(z)
    x = z if video else z[:, :, 0]
    if getattr(vae, "post_quant_conv", None) is not None:
        x = vae.post_quant_conv(x)
    frames: Tensor = decoder(x)
    return frames if video else frames.unsqueeze(2)


def _in_pairs(z: Tensor) -> Tensor:
    """Two frames to the channels of one, the first with nothing before it: as ComfyUI of 2025-10
    gives HunyuanVideo 1.5's latents to its decoder, which takes them apart again."""
    x = torch.cat([torch.zeros_like(z[:, :, :1]), z], 2)
    b, c, t, h, w = x.shape
    x = x.reshape(b, c, t // 2, 2, h, w).permute(0, 3, 1, 2, 4, 5)
    return x.reshape(b, 2 * c, t // 2, h, w)


def _own_encode(vae: Any, pixels: Tensor, video: bool) -> Tensor:
    """As _own_decode; HunyuanVideo 1.5's encoder gives the mean only."""
    if hasattr(vae.encoder, "regul"):
        return only_the_mean("HunyuanVideo 1.5")
    encoder = copy.copy(vae.encoder)
    if hasattr(encoder, "carried"):
        encoder.carried = False
    moments: Tensor = encoder(pixels if video else pixels[:, :, 0])
    if getattr(vae, "quant_conv", None) is not None:
        moments = vae.quant_conv(moments)
    return moments if video else moments.unsqueeze(2)


def _stages(coder: Any, decoding: bool, reverse: bool) -> list[Any]:
    stages = list(coder.up if decoding else coder.down)
    for stage in stages:
        if len(getattr(stage, "attn", ())):
            raise StrangeModuleError("there is attention outside the middle block")
    return stages[::-1] if reverse else stages


def _resnet(block: Any, conv: Any) -> View:
    shortcut = getattr(block, "conv_shortcut", None) or getattr(block, "nin_shortcut", None)
    return View(
        norm1=block.norm1, nonlinearity=getattr(block, "swish", None) or torch.nn.SiLU(),
        conv1=conv(block.conv1), norm2=block.norm2, conv2=conv(block.conv2),
        conv_shortcut=None if shortcut is None else conv(shortcut),
    )  # fmt: skip


def _middle(mid: Any, conv: Any) -> View:
    attn = mid.attn_1
    attention = View(norm=attn.norm, to_q=attn.q, to_k=attn.k, to_v=attn.v, proj_out=attn.proj_out)
    resnets = [_resnet(block, conv) for block in (mid.block_1, mid.block_2)]
    return View(resnets=resnets, attentions=[attention])


def _plain(module: Any) -> Any:
    return module


def _causal(module: Any) -> Any:
    """A convolution that its host pads: before and around, with what is at the border."""
    if tuple(module.conv.weight.shape[2:]) == (1, 1, 1):
        return module.conv
    padding = module.padding if isinstance(getattr(module, "padding", None), tuple) else _CAUSAL
    mode = getattr(module, "padding_mode", "replicate")
    return View(conv=module.conv, time_causal_padding=padding, pad_mode=mode)


def _image_coders(coder: Any, decoding: bool) -> View:
    stages = _stages(coder, decoding, reverse=decoding)
    blocks = []
    for stage in stages:
        resnets = [_resnet(block, _plain) for block in stage.block]
        if decoding:
            blocks.append(View(resnets=resnets, upsamplers=_resized(stage, "upsample", _image_up)))
        else:
            downs = _resized(stage, "downsample", _image_down)
            blocks.append(View(resnets=resnets, downsamplers=downs))
    return coder_view(
        coder, conv_in=coder.conv_in, mid_block=_middle(coder.mid, _plain),
        conv_norm_out=coder.norm_out, conv_act=torch.nn.SiLU(), conv_out=coder.conv_out,
        **{"up_blocks" if decoding else "down_blocks": blocks},
    )  # fmt: skip


def _resized(stage: Any, name: str, view: Any) -> list[Any]:
    return [view(getattr(stage, name))] if hasattr(stage, name) else []


def _image_up(up: Any) -> View:
    return View(
        use_conv=up.with_conv, use_conv_transpose=False, norm=None, interpolate=True, conv=up.conv
    )


def _image_down(down: Any) -> View:
    return View(use_conv=down.with_conv, norm=None, padding=0, conv=down.conv)


def _video_coders(coder: Any, decoding: bool) -> View:
    blocks = []
    for stage in _stages(coder, decoding, reverse=decoding):
        resnets = [_resnet(block, _causal) for block in stage.block]
        if decoding:
            blocks.append(View(resnets=resnets, upsamplers=_resized(stage, "upsample", _video_up)))
        else:
            downs = _resized(stage, "downsample", _video_down)
            blocks.append(View(resnets=resnets, downsamplers=downs))
    return coder_view(
        coder, conv_in=_causal(coder.conv_in), mid_block=_middle(coder.mid, _causal),
        conv_norm_out=coder.norm_out, conv_act=torch.nn.SiLU(), conv_out=_causal(coder.conv_out),
        **{"up_blocks" if decoding else "down_blocks": blocks},
    )  # fmt: skip


def _video_up(up: Any) -> View:
    factor = up.scale_factor
    if isinstance(factor, (int, float)):
        factor = (factor, factor, factor)
    return View(conv=_causal(up.conv), upsample_factor=tuple(int(n) for n in factor))


def _video_down(down: Any) -> View:
    # This one is padded by whoever holds it, whatever its own padding says.
    padded = View(conv=down.conv.conv, time_causal_padding=_CAUSAL, pad_mode="replicate")
    return View(conv=padded)


def _packing_coders(coder: Any, decoding: bool) -> View:
    if not coder.refiner_vae:
        raise StrangeModuleError("its convolutions are not causal")
    blocks = []
    for stage in _stages(coder, decoding, reverse=False):
        resnets = [_resnet(block, _causal) for block in stage.block]
        if decoding:
            ups = _resized(stage, "upsample", _packing_up)
            blocks.append(View(resnets=resnets, upsamplers=ups))
        else:
            downs = _resized(stage, "downsample", _packing_down)
            blocks.append(View(resnets=resnets, downsamplers=downs))
    width = coder.mid.block_1.conv1.conv.weight.shape[0]
    more = (
        {"up_blocks": blocks, "repeat": width // coder.z_channels}
        if decoding
        else {"down_blocks": blocks, "group_size": width // (2 * coder.z_channels)}
    )
    return coder_view(
        coder, conv_in=_causal(coder.conv_in), mid_block=_middle(coder.mid, _causal),
        norm_out=coder.norm_out, conv_act=torch.nn.SiLU(), conv_out=_causal(coder.conv_out), **more,
    )  # fmt: skip


def _packing_up(up: Any) -> View:
    return View(conv=_causal(up.conv), add_temporal_upsample=bool(up.tus), repeats=up.rp)


def _packing_down(down: Any) -> View:
    return View(conv=_causal(down.conv), add_temporal_downsample=bool(down.tds), group_size=down.gs)
