"""What decode() accepts; everything else gets a sentence that says what to pass instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.vaes import VideoVae

STRATEGIES = ("auto", "whole", "tiled")
PRECISIONS: dict[str, torch.dtype | None] = {
    "auto": None,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def check_choice(name: str, value: object, choices: object) -> None:
    """ValueError unless `value` is one of `choices`."""
    known = list(choices)  # type: ignore[call-overload]
    if value not in known:
        raise ValueError(f"{name} is {value!r}: give one of {', '.join(map(repr, known))}")


def check_latents(latents: Any, adapter: VideoVae) -> Tensor:
    """`latents` as a tensor (B, C, T, H, W); TypeError or ValueError (sentences)."""
    if isinstance(latents, Mapping):
        inner = 'latent["samples"]' if "samples" in latents else "the tensor in it"
        raise TypeError(
            "decode() takes the latent tensor, not a LATENT dict "
            f"(keys {sorted(map(str, latents))}): pass {inner}"
        )
    if not isinstance(latents, torch.Tensor):
        raise TypeError(
            f"decode() takes a torch tensor (B, C, T, H, W), not a {type(latents).__name__}"
        )
    if not latents.is_floating_point():
        raise TypeError(
            f"latents are {latents.dtype}: pass the floating point latents that the model made"
        )
    if latents.ndim != 5:
        hint = ""
        if latents.ndim == 4:
            hint = (
                ": a single image needs its time axis, latents.unsqueeze(2), a single video "
                "its batch axis, latents.unsqueeze(0)"
            )
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}, but a video latent has five "
            f"axes (B, C, T, H, W){hint}"
        )
    if latents.shape[1] != adapter.latent_channels:
        raise ValueError(
            f"latents have {latents.shape[1]} channels (shape {tuple(latents.shape)}), but this "
            f"{adapter.name} VAE decodes {adapter.latent_channels}: they come from another model, "
            "or the axes are not (B, C, T, H, W)"
        )
    if 0 in latents.shape:
        raise ValueError(f"latents have shape {tuple(latents.shape)}: there is nothing to decode")
    _check_finite(latents)
    return latents


def _check_finite(latents: Tensor) -> None:
    if not bool(torch.isfinite(latents).all()):
        nan = int(torch.isnan(latents).sum())
        infinite = int(torch.isinf(latents).sum())
        raise ValueError(
            f"latents hold {nan} NaN and {infinite} infinite of {latents.numel()} values: the "
            "sampler went wrong before the decode (fp16 overflow, or a broken attention kernel); "
            "decoding them would give black frames"
        )


def check_parameters(adapter: VideoVae) -> None:
    """ValueError if the weights are not there (sequential offload keeps them on "meta")."""
    if any(
        p.device.type == "meta"
        for m in (adapter.decoder, adapter.post_quant_conv)
        for p in m.parameters()
    ):
        raise ValueError(
            'the VAE\'s weights are on "meta" (sequential CPU offload): use '
            "enable_model_cpu_offload() instead, or vae.to(device) before decode()"
        )
