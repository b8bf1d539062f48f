"""What decode() accepts; everything else gets a sentence that says what to pass instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.aliasing import overlaps, shares_memory
from hy3d_rocm.decoding.planning.planner import STRATEGIES as STRATEGIES
from hy3d_rocm.units import brief


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """ValueError unless `value` is one of `choices`."""
    if value not in list(choices):
        raise ValueError(f"{name} is {value!r}: give one of {', '.join(map(repr, choices))}")


def check_count(name: str, value: object, low: int, most: int, other: str = "") -> None:
    """ValueError unless `value` is a whole number from `low` to `most`; other: ', or ...'."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
        beyond = isinstance(value, int) and value > most
        limits = f"from {low} to {most}" if beyond else f"of {low} or more"
        raise ValueError(f"{name} is {brief(value)}; give a whole number {limits}{other}")


def check_latents(latents: Any, family: Any) -> None:
    """TypeError or ValueError (sentences) where `latents` are none that `family` decodes."""
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
    if latents.shape[1] != family.latent_channels:
        raise ValueError(
            f"latents have {latents.shape[1]} channels (shape {tuple(latents.shape)}), but this "
            f"{family.name} VAE decodes {family.latent_channels}: they come from another model, "
            "or the axes are not (B, C, T, H, W)"
        )
    if 0 in latents.shape:
        raise ValueError(f"latents have shape {tuple(latents.shape)}: there is nothing to decode")
    _check_content(latents, "latents", family, "decodes")


def _check_content(x: Tensor, what: str, family: Any, does: str) -> None:
    """One frame for an image VAE (unknown VAEs are given frame by frame), and finite values."""
    # A known VAE runs its own code where the C core is missing; its rules are the same.
    is_known = not getattr(family, "is_opaque", False) or hasattr(family, "check_pixels")
    if is_known and getattr(family, "is_image", False) and x.shape[2] != 1:
        raise ValueError(
            f"{what} have {x.shape[2]} frames (shape {tuple(x.shape)}), but this {family.name} VAE "
            f"{does} images: put the frames into the batch axis, "
            f"{what}.movedim(2, 1).flatten(0, 1)"
        )
    if does == "encodes" and is_known:
        family.check_pixels(tuple(x.shape))
    if not x.is_meta and not bool(torch.isfinite(x).all()):
        nan, infinite = int(torch.isnan(x).sum()), int(torch.isinf(x).sum())
        raise ValueError(
            f"{what} hold {nan} NaN and {infinite} infinite of {x.numel()} values: the "
            "sampler went wrong before the decode (fp16 overflow, or a broken attention kernel); "
            "decoding them would give black frames"
        )


def check_is_there(x: Tensor, is_needed: bool, encode: bool) -> None:
    """ValueError (a sentence) where latents (or pixels) that are needed are a shape alone."""
    if x.is_meta and is_needed:
        raise ValueError(
            f'{"pixels" if encode else "latents"} are on "meta", which holds no values: only ranks '
            "of a group other than rank 0 may give them so, to be sent what they need"
        )


def check_pixels(pixels: Any, family: Any) -> None:
    """TypeError or ValueError (sentences) where `pixels` are no video that `family` encodes."""
    if not isinstance(pixels, torch.Tensor) or not pixels.is_floating_point():
        kind = pixels.dtype if isinstance(pixels, torch.Tensor) else type(pixels).__name__
        raise TypeError(
            f"encode() takes a floating point tensor (B, C, T, H, W) in -1..1, not a {kind}"
        )
    if pixels.ndim != 5 or 0 in pixels.shape:
        raise ValueError(
            f"pixels have shape {tuple(pixels.shape)}, but a video has five axes (B, C, T, H, W), "
            "none of them empty: a single image needs its time axis, pixels.unsqueeze(2)"
        )
    _check_content(pixels, "pixels", family, "encodes")


_FRAME_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_result(
    out: Any, shape: tuple[int, ...], latents: Iterable[Tensor], weights: Iterable[Tensor]
) -> None:
    """TypeError or ValueError (sentences) where `out` can't take the frames, or lies in the memory
    of what is read while they are made."""
    if not isinstance(out, torch.Tensor) or out.dtype not in _FRAME_TYPES:
        found = out.dtype if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise TypeError(
            f"out is {found}: give a torch tensor of float16, bfloat16, float32 or float64 (of a "
            "NumPy array torch.from_numpy(array))"
        )
    if tuple(out.shape) != shape or out.device.type != "cpu" or out.layout is not torch.strided:
        kind = "" if out.layout is torch.strided else f", {out.layout}"
        raise ValueError(
            f"out is {tuple(out.shape)} on {out.device}{kind}; the frames are {shape} on the CPU: "
            "give such a tensor, or none"
        )
    if out.is_neg() or overlaps(out):
        raise ValueError(
            "out is a view with its sign in a flag or several elements at one address: frames "
            "can't be written there, give an ordinary tensor"
        )
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "out was made under torch.inference_mode(), and outside of it nothing may be written "
            "there: decode under torch.inference_mode(), or give another tensor"
        )
    for name, tensors in (("the latents", latents), ("the VAE's weights", weights)):
        if shares_memory(out, tensors):
            raise ValueError(
                f"out lies in the memory of {name}, which are read while frames are written: give "
                "a tensor of its own, or none"
            )


def check_parameters(family: Any) -> None:
    """ValueError if the weights are not there (sequential offload keeps them on "meta"), or no
    numbers that can be computed with."""
    if family.device.type == "meta":
        raise ValueError(
            'the VAE\'s weights are on "meta" (sequential CPU offload): use '
            "enable_model_cpu_offload() instead, or vae.to(device) before decode()"
        )
    if not family.dtype.is_floating_point:
        raise ValueError(
            f"the VAE's weights are {family.dtype} (quantised): decode with the VAE as it was "
            "before it was quantised, or call its own decode under hy3d_rocm.protect()"
        )
