"""What the decode node does: a LATENT and a VAE to images and a report."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Any

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm.comfy import status, vae_memory, vaes
from hy3d_rocm.decode.checks import STRATEGIES, check_latents
from hy3d_rocm.decode.memory.budget import Request, parse_budget
from hy3d_rocm.decode.plan import BudgetTooSmallError
from hy3d_rocm.decode.precision import PRECISIONS
from hy3d_rocm.decode.report import DecodeReport
from hy3d_rocm.units import size_text

__all__ = ["PRECISIONS", "STRATEGIES", "decode_latent"]

logger = logging.getLogger("hy3d_rocm")


def decode_latent(
    vae: Any,
    samples: Any,
    budget: str,
    strategy: str,
    precision: str,
    options: dict[str, Any] | None = None,
) -> tuple[torch.Tensor, str]:
    """Images (frames of all videos in one batch, H, W, C) in 0..1, and a report.

    A VAE whose layers are known is decoded in parts under the budget. Any other one, and one that
    can't be prepared for that, by its own `decode`, with failing convolutions caught. Interrupts go
    through. ValueError, in a sentence, for a LATENT that is none, a budget that is none, or one
    that was given and is too small.
    """
    from hy3d_rocm.conv.router import protect
    from hy3d_rocm.conv.triton import jit

    jit.on_compile = _before_compiling
    latents = latents_of(samples)
    wanted = parse_budget(budget.strip() or None)
    started = time.perf_counter()
    with protect(on_event=_look_for_interrupt) as guard:
        made = _in_parts(vae, latents, wanted, strategy, precision)
        images, how = _as_a_whole(vae, latents, made) if isinstance(made, str) else made
    seconds = time.perf_counter() - started
    report = "\n".join(
        [
            f"latents {tuple(latents.shape)} -> images {tuple(images.shape)} in {seconds:.2f} s",
            how,
            guard.stats.table(),
        ]
    )
    status.remember(report)
    return images, report


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
    """(B, C, T, H, W) as the VAE gives it to ComfyUI's IMAGE: (B * T, H, W, C) float32.

    By the VAE's own process_output where it has one, else from -1..1 to 0..1. Works in place where
    it can: `video` is given up.
    """
    device = getattr(vae, "output_device", video.device)
    frames = video.to(device=device, dtype=torch.float32)
    process = getattr(vae, "process_output", None)
    if process is None:
        frames = frames.add_(1.0).div_(2.0).clamp_(0.0, 1.0)
    else:
        processed = process(frames)
        frames = frames if processed is None else processed
    return frames.movedim(1, -1).flatten(0, 1)


def _in_parts(
    vae: Any, latents: torch.Tensor, budget: Request, strategy: str, precision: str
) -> tuple[torch.Tensor, str] | str:
    """Images and how they came about, or why ComfyUI's own decode has to make them."""
    try:
        return _carried_out(vae, latents, budget, strategy, precision)
    except management.InterruptProcessingException:
        raise
    except BudgetTooSmallError as error:
        if budget is not None:
            raise
        return _said(error)
    except Exception as error:
        logger.debug("hy3d_rocm: the decode in parts", exc_info=True)
        return _said(error)


def _carried_out(
    vae: Any, latents: torch.Tensor, budget: Request, strategy: str, precision: str
) -> tuple[torch.Tensor, str]:
    from hy3d_rocm.decode.executor import decode_with_report

    family = vaes.family_of(vae)
    if family.is_image and latents.ndim == 5:  # as ComfyUI's decode() does
        latents = latents[:, :, 0]
    video = latents.unsqueeze(2) if latents.ndim == 4 else latents
    check_latents(video, family)
    place = vaes.place_of(family)
    with _current(place), torch.no_grad():
        if vaes.is_managed(vae):
            vae_memory.load(vae, family, tuple(video.shape), budget, strategy)
        if not vaes.is_proven(family):
            raise TypeError(f"this {family.name} VAE decodes otherwise than its layers say")
        if budget is None:
            budget = vae_memory.automatic(place)
        noised = getattr(family, "noised", None)
        if noised is not None:
            video = noised(video.to(place, family.dtype))
        frames, report = decode_with_report(
            family, video, budget, strategy, precision, _Progress(), None
        )
        images = as_images(vae, frames)
    return images, _told(report)


def _current(device: torch.device) -> Any:
    """ComfyUI's context that makes the VAE's device the current one (not in 2025-10)."""
    context = getattr(management, "cuda_device_context", None)
    return nullcontext() if context is None else context(device)


class _Progress:
    """A bar in the browser; a cancel is seen after each grain."""

    def __init__(self) -> None:
        self.bar = comfy.utils.ProgressBar(1)

    def __call__(self, done: int, total: int, step: object) -> None:
        management.throw_exception_if_processing_interrupted()
        self.bar.update_absolute(done, max(total, done + 1 if not total else done))


def _told(report: DecodeReport) -> str:
    """A decode's report in a few lines."""
    sizes = {
        "budget": report.budget_bytes,
        "planned peak": report.predicted_peak_bytes,
        "measured peak": report.measured_peak_bytes,
    }
    way = report.plan.get("way", report.strategy)
    lines = [
        f"{report.vae} on {report.device} in {report.dtype}: {way}",
        report.reason,
        ", ".join(f"{name} {size_text(size, 2)}" for name, size in sizes.items()),
        f"budget: {report.budget_rule}; {report.steps} grains",
    ]
    for event in report.events:
        then = event.get("next_way") or event.get("next_dtype") or ""
        lines.append(f"{event['event']} in {event['way']}" + (f", then {then}" if then else ""))
    return "\n".join(line for line in lines if line)


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _as_a_whole(vae: Any, latents: torch.Tensor, why: str) -> tuple[torch.Tensor, str]:
    inner = getattr(vae, "first_stage_model", vae)
    how = (
        f"{type(inner).__name__} cannot be cut into parts here: ComfyUI's own decode was run with "
        f"failing convolutions caught; budget, strategy and precision had no effect ({why})"
    )
    logger.info("Hy3DRocmVAEDecode: %s", how)
    images = vae.decode(latents)
    if images.ndim == 5:  # (B, T, H, W, C)
        images = images.flatten(0, 1)
    return images, how


def _before_compiling(kernel: str, number: int) -> None:
    """A first decode compiles for some seconds: a cancel need not wait for the end of that."""
    management.throw_exception_if_processing_interrupted()


def _look_for_interrupt(event: object) -> None:
    management.throw_exception_if_processing_interrupted()
