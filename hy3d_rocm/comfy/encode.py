"""What the encode node does: images and a VAE to a LATENT and a report.

Pixels are cropped, put in order and scaled as comfy.sd.VAE.encode does it, by the VAE object's own
methods, and the latent comes back as it gives it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.comfy import memory, status, vae_memory, vaes
from hy3d_rocm.comfy.option_values import decode_options
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.running import (
    Asked,
    Made,
    Run,
    caught,
    current_device,
    own_code,
    own_report,
    parts_or_why,
    running,
)
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.report import DecodeOptions

if TYPE_CHECKING:
    from hy3d_rocm.decoding.report import DecodeReport

__all__ = ["encode_images", "encode_pixels", "prepared"]

logger = logging.getLogger("hy3d_rocm")

Own = Callable[[torch.Tensor], torch.Tensor]


def encode_pixels(
    vae: Any,
    pixels: Any,
    budget: str,
    strategy: str,
    precision: str,
    options: dict[str, Any] | None = None,
) -> tuple[dict[str, torch.Tensor], str]:
    """A LATENT of pixels (frames, H, W, C) in 0..1, and a report. Errors as decode_latent()."""
    check_images(pixels)
    asked = Asked(
        parse_budget(budget.strip() or None), strategy, precision, decode_options(options or {}),
        "VAE Encode (ROCm)",
    )  # fmt: skip
    started = time.perf_counter()
    latents, report, run = _encoded(vae, pixels, asked, vae.encode)
    seconds = time.perf_counter() - started
    text = report_text(report, pixels, latents, seconds, run.guard.stats.table(), "pixels")
    status.remember(text)
    return {"samples": latents}, text


def encode_images(
    vae: Any,
    pixels: torch.Tensor,
    *,
    budget: str | int | float | None = None,
    strategy: str = "auto",
    precision: str = "auto",
    options: DecodeOptions | None = None,
    own: Own | None = None,
    who: str = "VAE.encode",
) -> Made:
    """Latents as VAE.encode gives them, and how they came about. See decode.decode_samples()."""
    check_images(pixels)
    asked = Asked(parse_budget(budget), strategy, precision, options or DecodeOptions(), who)
    return _encoded(vae, pixels, asked, own or vae.encode)[:2]


def check_images(pixels: Any) -> None:
    """ValueError (a sentence) for what is no IMAGE."""
    if not isinstance(pixels, torch.Tensor) or pixels.ndim not in (4, 5) or 0 in pixels.shape:
        got = tuple(pixels.shape) if isinstance(pixels, torch.Tensor) else type(pixels).__name__
        raise ValueError(
            f"pixels is {got}, not an IMAGE (images, height, width, channels): connect an output "
            "of that type"
        )


def prepared(vae: Any, pixels: torch.Tensor, time_step: int) -> torch.Tensor:
    """(B, C, T, H, W) or, for an image VAE, (B, C, H, W) as VAE.encode makes it of an IMAGE: sides
    cropped to what the VAE encodes, frames of one video in order, at most 1 + k * time_step of them
    (the rest is left out, as the VAEs' own encode() does), in the VAE's range and type.
    """
    x = vae.vae_encode_crop_pixels(pixels).movedim(-1, 1)
    if vae.latent_dim == 3 and x.ndim < 5:
        x = x.unsqueeze(2) if getattr(vae, "not_video", False) else x.movedim(1, 0).unsqueeze(0)
    if x.ndim == 5:
        x = x[:, :, : 1 + (x.shape[2] - 1) // time_step * time_step]
    scaled: torch.Tensor = vae.process_input(x).to(vae.vae_dtype)
    return scaled


def _encoded(
    vae: Any, pixels: torch.Tensor, asked: Asked, own: Own
) -> tuple[torch.Tensor, DecodeReport, Run]:
    with memory.stage_lines("VAE Load", "VAE Encode"), running() as run:
        made = _in_parts(vae, pixels, asked, run)
        if isinstance(made, str):
            made = _as_a_whole(vae, pixels, made, run, own, asked.who)
    return *made, run


def _in_parts(vae: Any, pixels: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    """Latents and a report, or why ComfyUI's own encode has to make them."""
    return parts_or_why("encode", lambda: _known(vae, pixels, asked, run), asked, run)


def _known(vae: Any, pixels: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    if not vaes.is_managed(vae) or not hasattr(vae, "vae_encode_crop_pixels"):
        return "it is no VAE of ComfyUI's own"
    family = vaes.family_of(vae, encode=True)
    if family.processing.no_encode:
        return family.processing.no_encode
    x = prepared(vae, pixels, family.pixel_steps[0])
    video = x.unsqueeze(2) if x.ndim == 4 else x
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        vae_memory.load(vae, family, tuple(video.shape), asked, run.watcher, encode=True)
        if not vaes.encodes_as_told(family):
            return f"this {family.name} VAE encodes otherwise than its layers say"
        latents, report = _carried_out(family, video, asked, run, place)
    if x.ndim == 4:
        latents = latents[:, :, 0]
    return _given_back(vae, latents), report


def _carried_out(
    family: Any, video: torch.Tensor, asked: Asked, run: Run, place: torch.device
) -> Made:
    from hy3d_rocm.decoding.executor import encode_with_report

    budget = vae_memory.budget_for(asked, place)
    with run.metered(place):
        made: Made = encode_with_report(
            family, video, budget, asked.strategy, asked.precision, run.steps, run.watcher,
            asked.options,
        )  # fmt: skip
    return made


def _given_back(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Where and in which type VAE.encode gives them."""
    dtype = vae.vae_output_dtype() if hasattr(vae, "vae_output_dtype") else torch.float32
    latents = latents.to(getattr(vae, "output_device", latents.device)).to(dtype)
    shaped = getattr(vae, "format_encoded", None)
    return latents if shaped is None else shaped(latents)


def _as_a_whole(vae: Any, pixels: torch.Tensor, why: str, run: Run, own: Own, who: str) -> Made:
    inner = getattr(vae, "first_stage_model", vae)
    logger.info(
        "%s: %s is not encoded in parts (%s): ComfyUI's own encode runs, %s; "
        "budget, strategy and precision have no effect",
        who, type(inner).__name__, why, caught(),
    )  # fmt: skip
    began = time.perf_counter()
    latents = own_code(vae, lambda: own(pixels), pixels, encode=True)
    seconds = time.perf_counter() - began
    return latents, own_report(vae, tuple(pixels.shape), tuple(latents.shape), why, seconds)
