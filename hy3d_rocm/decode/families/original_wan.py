"""Wan's VAEs under their authors' names."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.parts import StrangeModuleError
from hy3d_rocm.decode.families.views import View, coder_view, only_the_mean

if TYPE_CHECKING:
    from torch import Tensor


def wan_view(vae: Any) -> View:
    """Wan 2.1 (layers in one list) or 2.2 (blocks with a shortcut, pixels in squares of 2)."""
    encoder = getattr(vae, "encoder", None)
    decoder, patched = vae.decoder, any(hasattr(b, "avg_shortcut") for b in vae.decoder.upsamples)
    return View(
        decoder=coder_view(
            decoder, conv_in=decoder.conv1, mid_block=_wan_middle(decoder.middle),
            up_blocks=[_wan_up(b) for b in _wan_grouped(decoder.upsamples)], **_wan_head(decoder),
        ),
        encoder=None if encoder is None else coder_view(
            encoder, conv_in=encoder.conv1, mid_block=_wan_middle(encoder.middle),
            down_blocks=[_wan_down(b) for b in encoder.downsamples], **_wan_head(encoder),
        ),
        post_quant_conv=vae.conv2,
        quant_conv=getattr(vae, "conv1", None),
        config=View(patch_size=2 if patched else None),
        clamps=False,
        own_decode=lambda z: _wan_own(vae, z),
        own_encode=lambda pixels: only_the_mean("Wan"),
    )  # fmt: skip


def _wan_head(coder: Any) -> dict[str, Any]:
    norm, act, conv = coder.head
    return {"norm_out": norm, "nonlinearity": act, "conv_out": conv}


def _wan_resnet(block: Any) -> View:
    norm1, act, conv1, norm2, _, _, conv2 = block.residual
    return View(
        norm1=norm1, nonlinearity=act, conv1=conv1, norm2=norm2, conv2=conv2,
        conv_shortcut=block.shortcut,
    )  # fmt: skip


def _wan_middle(middle: Iterable[Any]) -> View:
    first, attention, second = middle
    return View(resnets=[_wan_resnet(first), _wan_resnet(second)], attentions=[attention])


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
    layers = list(block.upsamples)
    ups = [layer for layer in layers if hasattr(layer, "mode")]
    if any(hasattr(layer, "to_qkv") for layer in layers):
        raise StrangeModuleError("there is attention between the up-samplings")
    return View(
        resnets=[_wan_resnet(layer) for layer in layers if layer not in ups],
        upsamplers=ups,
        avg_shortcut=getattr(block, "avg_shortcut", None),
    )


def _wan_down(block: Any) -> Any:
    if hasattr(block, "residual"):
        return _wan_resnet(block)
    if not hasattr(block, "downsamples"):
        return block  # attention, or a down-sampling
    *layers, last = block.downsamples
    down = last if hasattr(last, "mode") else None
    if down is None:
        layers.append(last)
    resnets = [_wan_resnet(layer) for layer in layers]
    return View(resnets=resnets, downsampler=down, avg_shortcut=block.avg_shortcut)


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
