"""What the decode node does: a LATENT and a VAE to images, a report and a timeline.

Three ways, in this order: the VAE's layers in parts (decode()), the VAE's own module in tiles where
its layers are not known, ComfyUI's own decode. All of them with failing convolutions caught.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import torch

from hy3d_rocm.comfy import memory, status, timeline, vae_memory, vaes
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
    said,
)
from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.decoding.checks import STRATEGIES, check_latents
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.report import DecodeOptions

if TYPE_CHECKING:
    from hy3d_rocm.decoding.report import DecodeReport

__all__ = ["PRECISIONS", "STRATEGIES", "decode_latent", "decode_samples", "latents_of"]

logger = logging.getLogger("hy3d_rocm")

Own = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Decoded:
    """images: as VAE.decode gives them, (B, H, W, C) or (B, T, H, W, C). run: what was recorded."""

    images: torch.Tensor
    report: DecodeReport
    run: Run
    seconds: float


def decode_latent(
    vae: Any,
    samples: Any,
    budget: str,
    strategy: str,
    precision: str,
    options: dict[str, Any] | None = None,
) -> tuple[torch.Tensor, str, torch.Tensor]:
    """Images (frames of all videos in one batch, H, W, C) in 0..1, a report, a timeline.

    options: the node's optional inputs. Interrupts go through. ValueError, in a sentence, for a
    LATENT that is none or of another model, a budget that is none, or one that was given and is too
    small, an option that can't be.
    """
    latents = latents_of(samples)
    asked = Asked(
        parse_budget(budget.strip() or None), strategy, precision, decode_options(options or {}),
        "VAE Decode (ROCm)",
    )  # fmt: skip
    made = _decoded(vae, latents, asked, vae.decode)
    images = made.images
    if images.ndim == 5:
        images = images.flatten(0, 1)
    text = report_text(
        made.report, latents, images, made.seconds, made.run.guard.stats.table()
    )  # fmt: skip
    status.remember(text)
    shown = timeline.of_decode(made.report, made.run, made.seconds, asked.options.synchronization)
    return images, text, shown


def decode_samples(
    vae: Any,
    samples: Any,
    *,
    budget: str | int | float | None = None,
    strategy: str = "auto",
    precision: str = "auto",
    options: DecodeOptions | None = None,
    own: Own | None = None,
    who: str = "VAE.decode",
) -> tuple[torch.Tensor, DecodeReport]:
    """Images as VAE.decode gives them, (B, H, W, C) or (B, T, H, W, C), and how they came about.

    samples: a LATENT or its tensor. own: what is called with the tensor where nothing else can be
    done (report.strategy is then "own"), None for the VAE's own decode: a patch of that gives what
    was there before. who: for the log. Errors as decode_latent() has them.
    """
    latents = samples if isinstance(samples, torch.Tensor) else latents_of(samples)
    asked = Asked(parse_budget(budget), strategy, precision, options or DecodeOptions(), who)
    made = _decoded(vae, latents, asked, own or vae.decode)
    return made.images, made.report


def latents_of(samples: Any) -> torch.Tensor:
    """The tensor of a LATENT, (B, C, H, W) or (B, C, T, H, W)."""
    if not isinstance(samples, dict) or "samples" not in samples:
        raise ValueError(
            f"samples is {type(samples).__name__}, not a LATENT; connect an output of that type"
        )
    latents = samples["samples"]
    if getattr(latents, "is_nested", False):  # several streams, as video with sound: the first
        latents = latents.unbind()[0]
    return latents  # type: ignore[no-any-return]


def as_images(vae: Any, video: torch.Tensor) -> torch.Tensor:
    """(B, C, T, H, W) as the VAE's module gives it to what VAE.decode gives: (B, T, H, W, C).

    By the VAE's own process_output where it has one, else from -1..1 to 0..1. Works in place where
    it can: `video` is given up.
    """
    device = getattr(vae, "output_device", video.device)
    dtype = vae.vae_output_dtype() if hasattr(vae, "vae_output_dtype") else torch.float32
    frames = video.to(device=device, dtype=dtype)
    process = getattr(vae, "process_output", None)
    if process is None:
        frames = frames.add_(1.0).div_(2.0).clamp_(0.0, 1.0)
    else:
        processed = process(frames)
        frames = frames if processed is None else processed
    return frames.movedim(1, -1)


def _decoded(vae: Any, latents: torch.Tensor, asked: Asked, own: Own) -> Decoded:
    started = time.perf_counter()
    with memory.stage_lines("VAE Load", "VAE Decode"), running() as run:
        made = _in_parts(vae, latents, asked, run)
        if isinstance(made, str):
            made = _as_a_whole(vae, latents, made, run, own, asked.who)
    return Decoded(*made, run, time.perf_counter() - started)


def _in_parts(vae: Any, latents: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    """Images and a report, or why ComfyUI's own decode has to make them."""

    def work() -> Made | str:
        try:
            family = vaes.family_of(vae)
        except TypeError as error:
            return _unknown(vae, latents, asked, run, said(error))
        return _known(vae, family, latents, asked, run)

    return parts_or_why("decode", work, asked, run, (vaes.OtherModelError,))


def _known(vae: Any, family: Any, latents: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    if family.is_image and latents.ndim == 5:  # as ComfyUI's decode() does
        latents = latents[:, :, 0]
    video = latents.unsqueeze(2) if latents.ndim == 4 else latents
    vaes.check_channels(video, family)
    check_latents(video, family)
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        if vaes.is_managed(vae):
            vae_memory.load(vae, family, tuple(video.shape), asked, run.watcher)
        why = _doubt(family)
        if why:
            return _unknown(vae, latents, asked, run, why)
        if family.view is not family.vae:  # under its authors' names
            video = family.noised(video.to(place, family.dtype))
        images, report = _carried_out(vae, family, video, asked, run, place)
    return images[:, 0] if latents.ndim == 4 else images, report


def _doubt(family: Any) -> str:
    """Why the VAE's layers are not run, or ""."""
    try:
        if vaes.is_proven(family):
            return ""
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return f"memory was short when this {family.name} VAE was asked what it does"
    return f"this {family.name} VAE decodes otherwise than its layers say"


def _unknown(vae: Any, latents: torch.Tensor, asked: Asked, run: Run, why: str) -> Made | str:
    """By the VAE's own module, whole or in tiles of ours; or why it can't be that."""
    try:
        family = vaes.unknown_family_of(vae, latents, why)
    except TypeError as error:
        return said(error)
    place = torch.device(vae.device)
    with current_device(place), torch.no_grad():
        vae_memory.load_for_own_code(vae, tuple(latents.shape), asked)
        image = latents.ndim == 4 or vae.latent_dim == 2
        if latents.ndim == 5 and vae.latent_dim == 2:
            latents = latents[:, :, 0]
        video = latents.unsqueeze(2) if latents.ndim == 4 else latents
        images, report = _carried_out(vae, family, video, asked, run, place)
    return images[:, 0] if image else images, report


def _carried_out(
    vae: Any, family: Any, video: torch.Tensor, asked: Asked, run: Run, place: torch.device
) -> Made:
    from hy3d_rocm.decoding.executor import decode_with_report

    budget = vae_memory.budget_for(asked, place)
    with run.metered(place), memory.own_care(vae):
        frames, report = decode_with_report(
            family, video, budget, asked.strategy, asked.precision, run.steps, run.watcher,
            asked.options,
        )  # fmt: skip
        images = as_images(vae, frames)
    return images, report


def _as_a_whole(vae: Any, latents: torch.Tensor, why: str, run: Run, own: Own, who: str) -> Made:
    inner = getattr(vae, "first_stage_model", vae)
    logger.info(
        "%s: %s cannot be cut into parts here (%s): ComfyUI's own decode runs, %s; "
        "budget, strategy and precision have no effect",
        who, type(inner).__name__, why, caught(),
    )  # fmt: skip
    began = time.perf_counter()
    place = torch.device(getattr(vae, "device", None) or management.get_torch_device())
    with run.metered(place):
        images = own_code(vae, lambda: own(latents), latents)
    seconds = time.perf_counter() - began
    report = own_report(vae, tuple(latents.shape), tuple(images.shape), why, seconds)
    report.measured_peak_bytes = run.meters[0].peak_bytes
    return images, report
