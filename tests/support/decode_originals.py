"""The tiny VAEs of decode_doubles, their modules under the names that the authors gave them.

As ComfyUI and the wrappers hold them. The modules are diffusers' own; only the tree around them is
another, and its decode() is diffusers'.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import Module, ModuleList, Sequential


def wan_original(vae: Any, scaled: bool = False) -> Module:
    """AutoencoderKLWan as Wan's own: decode(z), or decode(z, scale) that keeps its cache on self,
    without the clamp."""
    original = (_ScaledWan if scaled else _Wan)(vae)
    for name, coder in (("encoder", vae.encoder), ("decoder", vae.decoder)):
        mid = coder.mid_block
        middle = [_wan_resnet(mid.resnets[0]), mid.attentions[0], _wan_resnet(mid.resnets[1])]
        tree = _module(
            conv1=coder.conv_in,
            middle=Sequential(*middle),
            head=Sequential(coder.norm_out, coder.nonlinearity, coder.conv_out),
        )
        setattr(original, name, tree)
    original.conv1, original.conv2 = vae.quant_conv, vae.post_quant_conv
    original.decoder.upsamples = Sequential(*_wan_ups(vae.decoder.up_blocks))
    original.encoder.downsamples = Sequential(*map(_wan_down, vae.encoder.down_blocks))
    return original


class _Wan(Module):
    def __init__(self, vae: Any) -> None:
        super().__init__()
        self._vae = [vae]  # in a list: no module of this one

    def decode(self, z: Any) -> Any:
        vae = self._vae[0]
        x = vae.post_quant_conv(z)
        cache, out = [None] * 99, []
        residual = {"first_chunk": True} if vae.config.get("is_residual") else {}
        for i in range(z.shape[2]):
            frame = x[:, :, i : i + 1]
            out.append(vae.decoder(frame, feat_cache=cache, feat_idx=[0], **residual))
            residual = {}
        return _unpatched(torch.cat(out, 2), vae.config.get("patch_size") or 1)


class _ScaledWan(_Wan):
    def decode(self, z: Any, scale: Any) -> Any:  # type: ignore[override]
        self.left_behind = True
        scale = [s.view(1, -1, 1, 1, 1) for s in scale]
        return super().decode(z / scale[1] + scale[0])


def _unpatched(frames: Any, patch: int) -> Any:
    b, c, t, h, w = frames.shape
    frames = frames.view(b, c // patch**2, patch, patch, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return frames.reshape(b, c // patch**2, t, h * patch, w * patch)


def _module(**parts: Any) -> Module:
    made = Module()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _wan_resnet(block: Any) -> Module:
    act = block.nonlinearity
    residual = [block.norm1, act, block.conv1, block.norm2, act, block.dropout, block.conv2]
    return _module(residual=Sequential(*residual), shortcut=block.conv_shortcut)


def _wan_ups(blocks: Any) -> list[Module]:
    made: list[Module] = []
    for block in blocks:
        resnets = [_wan_resnet(r) for r in block.resnets]
        if not hasattr(block, "upsampler"):  # Wan 2.1: all in one list
            made += [*resnets, *(block.upsamplers or ())]
            continue
        ups = [block.upsampler] if block.upsampler is not None else []
        layers = Sequential(*resnets, *ups)
        made.append(_module(upsamples=layers, avg_shortcut=block.avg_shortcut))
    return made


def _wan_down(block: Any) -> Module:
    if hasattr(block, "residual") or hasattr(block, "mode"):
        made: Module = block
        return made
    if not hasattr(block, "resnets"):
        return _wan_resnet(block)
    downs = [block.downsampler] if block.downsampler is not None else []
    layers = Sequential(*map(_wan_resnet, block.resnets), *downs)
    return _module(downsamples=layers, avg_shortcut=block.avg_shortcut)


def latent_diffusion_original(vae: Any) -> Module:
    """An image VAE, HunyuanVideo's or HunyuanVideo 1.5's as latent diffusion names them; its
    decoder's forward() is diffusers'."""
    image = getattr(vae.decoder.conv_in, "weight", None) is not None
    original = _module(encoder=_Coder(vae.encoder), decoder=_Coder(vae.decoder))
    for name in ("quant_conv", "post_quant_conv"):
        if getattr(vae, name, None) is not None:
            setattr(original, name, getattr(vae, name))
    wrap = _same if image else _Carried
    for coder, own in ((original.encoder, vae.encoder), (original.decoder, vae.decoder)):
        mid = own.mid_block
        coder.conv_in, coder.conv_out = wrap(own.conv_in), wrap(own.conv_out)
        coder.norm_out = getattr(own, "conv_norm_out", None) or own.norm_out
        coder.mid = _module(
            block_1=_resnet(mid.resnets[0], wrap),
            attn_1=_attention(mid.attentions[0]),
            block_2=_resnet(mid.resnets[1], wrap),
        )
    packs = hasattr(vae.decoder, "repeat")
    ups = [_stage(b, "upsample", b.upsamplers, wrap) for b in vae.decoder.up_blocks]
    downs = [_stage(b, "downsample", b.downsamplers, wrap) for b in vae.encoder.down_blocks]
    original.decoder.up = ModuleList(ups if packs else ups[::-1])
    original.encoder.down = ModuleList(downs)
    if packs:
        for coder in (original.encoder, original.decoder):
            coder.refiner_vae, coder.z_channels = True, vae.config["latent_channels"]
        original.encoder.regul = Module()
    return original


_MASKS = (
    "autoencoder_kl_hunyuan_video.prepare_causal_attention_mask",
    "autoencoder_kl_hunyuanvideo15.HunyuanVideo15AttnBlock.prepare_causal_attention_mask",
)


class _Coder(Module):
    """Diffusers' code with attention to all frames; it splits the frames unless it is told
    otherwise, so that a caller who forgets gets others."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self._own = [own]
        self.carried = True

    def forward(self, x: Any) -> Any:
        parts = torch.split(x, 1, 2) if self.carried and x.ndim == 5 else [x]
        with ExitStack() as stack:
            for name in _MASKS:
                where = f"diffusers.models.autoencoders.{name}"
                stack.enter_context(patch(where, lambda *_, **__: None))
            return torch.cat([self._own[0](part) for part in parts], 2)


def in_pairs(original: Any) -> Any:
    """HunyuanVideo 1.5 whose latents hold two frames, which its decoder takes apart."""
    original.decoder.__class__, original.decoder.conv_in.padding = _InPairs, 0
    return original


class _InPairs(_Coder):
    def forward(self, x: Any) -> Any:
        b, c, t, h, w = x.shape
        x = x.reshape(b, 2, c // 2, t, h, w).permute(0, 2, 3, 1, 4, 5)
        return super().forward(x.reshape(b, c // 2, 2 * t, h, w)[:, :, 1:])


class _Carried(Module):
    """A convolution that whoever holds it pads."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.conv = getattr(own, "conv", own)


def _same(module: Any) -> Any:
    return module


def _resnet(block: Any, wrap: Any) -> Module:
    made = _module(
        norm1=block.norm1, swish=torch.nn.SiLU(), conv1=wrap(block.conv1), norm2=block.norm2,
        conv2=wrap(block.conv2), temb_proj=torch.nn.Linear(2, 2),
    )  # fmt: skip
    if block.conv_shortcut is not None:
        made.nin_shortcut = wrap(block.conv_shortcut)
    return made


def _attention(attn: Any) -> Module:
    norm = getattr(attn, "group_norm", None) or attn.norm
    last = attn.to_out[0] if hasattr(attn, "to_out") else attn.proj_out
    return _module(norm=norm, q=attn.to_q, k=attn.to_k, v=attn.to_v, proj_out=last)


def _stage(block: Any, name: str, resizers: Any, wrap: Any) -> Module:
    made = _module(block=ModuleList(_resnet(r, wrap) for r in block.resnets), attn=ModuleList())
    for resizer in resizers or ():
        setattr(made, name, _resizer(resizer, wrap))
    return made


def _resizer(own: Any, wrap: Any) -> Module:
    made = _module(conv=wrap(own.conv))
    made.with_conv = True
    if hasattr(own, "upsample_factor"):
        made.scale_factor = tuple(float(n) for n in own.upsample_factor)
    if hasattr(own, "repeats"):
        made.tus, made.rp = own.add_temporal_upsample, own.repeats
    if hasattr(own, "group_size"):
        made.tds, made.gs = own.add_temporal_downsample, own.group_size
    return made


def ltx_original(vae: Any, timestep: float | None = None) -> Module:
    """AutoencoderKLLTXVideo as LTX's own: all blocks in one list, told whether they are causal; its
    coders' forward() are diffusers'."""
    original = _module(encoder=_LtxCoder(vae.encoder), decoder=_LtxCoder(vae.decoder))
    original.timestep_conditioning, original.decode_timestep = timestep is not None, timestep
    for coder, own in ((original.encoder, vae.encoder), (original.decoder, vae.decoder)):
        coder.conv_in, coder.conv_out = _Carried(own.conv_in), _Carried(own.conv_out)
        coder.conv_norm_out, coder.conv_act = own.norm_out, own.conv_act
        coder.patch_size = own.patch_size
    original.encoder.latent_log_var = "uniform"
    original.encoder.down_blocks = ModuleList(_ltx_downs(vae.encoder))
    decoder = original.decoder
    decoder.causal = vae.decoder.conv_in.is_causal
    decoder.up_blocks = ModuleList(_ltx_ups(vae.decoder))
    if timestep is not None:
        decoder.timestep_scale_multiplier = vae.decoder.timestep_scale_multiplier
        decoder.last_time_embedder = vae.decoder.time_embedder
        decoder.last_scale_shift_table = vae.decoder.scale_shift_table
    return original


class _LtxCoder(Module):
    def __init__(self, own: Any) -> None:
        super().__init__()
        self._own = [own]

    def forward(self, x: Any, timestep: float | None = None) -> Any:
        return self._own[0](x) if timestep is None else self._own[0](x, torch.tensor([timestep]))


def _ltx_ups(decoder: Any) -> list[Module]:
    made = [_ltx_group(decoder.mid_block)]
    for block in decoder.up_blocks:
        if block.conv_in is not None:
            made.append(_ltx_resnet(block.conv_in))
        for up in block.upsamplers or ():
            own = _module(conv=_Carried(up.conv))
            own.stride, own.residual = up.stride, up.residual
            own.out_channels_reduction_factor = up.upscale_factor
            made.append(own)
        made.append(_ltx_group(block))
    return made


def _ltx_downs(encoder: Any) -> list[Module]:
    made = []
    for block in encoder.down_blocks:
        made.append(_ltx_group(block))
        for down in block.downsamplers or ():
            if not hasattr(down, "group_size"):
                made.append(_Carried(down))
                continue
            own = _module(conv=_Carried(down.conv))
            own.stride, own.group_size = down.stride, down.group_size
            made.append(own)
        if getattr(block, "conv_out", None) is not None:
            made.append(_ltx_resnet(block.conv_out))
    return [*made, _ltx_group(encoder.mid_block)]


def _ltx_group(block: Any) -> Module:
    made = _module(res_blocks=ModuleList(map(_ltx_resnet, block.resnets)))
    if getattr(block, "time_embedder", None) is not None:
        made.time_embedder = block.time_embedder
    return made


def _ltx_resnet(block: Any) -> Module:
    made = _module(
        norm1=block.norm1, norm2=block.norm2, non_linearity=block.nonlinearity,
        conv1=_Carried(block.conv1), conv2=_Carried(block.conv2),
        conv_shortcut=torch.nn.Identity(), norm3=torch.nn.Identity(),
    )  # fmt: skip
    if block.conv_shortcut is not None:
        made.conv_shortcut = block.conv_shortcut.conv
        made.norm3 = _module(norm=block.norm3)
    if block.scale_shift_table is not None:
        made.scale_shift_table = block.scale_shift_table
    return made
