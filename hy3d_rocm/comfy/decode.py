"""What the decode node does: a LATENT and a VAE to images and a report."""

from __future__ import annotations

import logging
import time
from typing import Any

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm.comfy import status
from hy3d_rocm.decode.checks import PRECISIONS, STRATEGIES
from hy3d_rocm.decode.plan import format_bytes
from hy3d_rocm.decode.report import DecodeReport
from hy3d_rocm.decode.vaes import adapter_for

__all__ = ["PRECISIONS", "STRATEGIES", "decode_latent"]

logger = logging.getLogger("hy3d_rocm")


def decode_latent(
    vae: Any, samples: Any, budget: str, strategy: str, precision: str
) -> tuple[torch.Tensor, str]:
    """Images (frames of all videos in one batch, H, W, C) in 0..1, and a report.

    A VAE that `hy3d_rocm.decode` can cut into parts is decoded under the budget; any other one by
    its own `decode`, with failing convolutions caught. Interrupts go through. ValueError, in a
    sentence, for a LATENT that is none.
    """
    from hy3d_rocm.conv.router import protect
    from hy3d_rocm.conv.triton import jit

    jit.on_compile = _before_compiling
    latents = latents_of(samples)
    inner = getattr(vae, "first_stage_model", vae)
    started = time.perf_counter()
    with protect(on_event=_look_for_interrupt) as guard:
        if can_be_cut(inner):
            images, how = _in_parts(vae, inner, latents, budget, strategy, precision)
        else:
            images, how = _as_a_whole(vae, inner, latents)
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


def can_be_cut(vae: Any) -> bool:
    """Whether `hy3d_rocm.decode` knows this VAE's class."""
    try:
        adapter_for(vae)
    except TypeError:
        return False
    return True


def as_images(video: torch.Tensor) -> torch.Tensor:
    """(B, C, T, H, W) in -1..1 to ComfyUI's IMAGE: (B * T, H, W, C) float32 in 0..1.

    Works in place where it can: `video` is given up.
    """
    frames = video.float().movedim(1, -1).flatten(0, 1)
    return frames.add_(1.0).div_(2.0).clamp_(0.0, 1.0)


def _in_parts(
    vae: Any, inner: Any, latents: torch.Tensor, budget: str, strategy: str, precision: str
) -> tuple[torch.Tensor, str]:
    from hy3d_rocm.decode.executor import decode_with_report

    if hasattr(vae, "patcher"):  # ComfyUI's own wrapper: it decides what else must leave the GPU
        management.load_models_gpu([vae.patcher])
    bar = comfy.utils.ProgressBar(1)

    def progress(done: int, total: int, step: object) -> None:
        management.throw_exception_if_processing_interrupted()
        bar.update_absolute(done, total)

    asked = None if budget.strip().lower() in ("", "auto") else budget
    video, report = decode_with_report(inner, latents, asked, strategy, precision, progress)
    return as_images(video), _told(report)


def _told(report: DecodeReport) -> str:
    """A decode's report in a few lines."""
    sizes = {
        "budget": report.budget_bytes,
        "whole decode": report.whole_bytes,
        "predicted peak": report.predicted_peak_bytes,
        "measured peak": report.measured_peak_bytes,
    }
    lines = [
        f"{report.vae} on {report.device} in {report.dtype}: {report.strategy}, level "
        f"{report.level}, since {report.reason}",
        ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items()),
        f"budget: {report.budget_rule}; {report.steps} grains",
    ]
    return "\n".join(lines + [f"{e['event']} at level {e['level']}" for e in report.events])


def _as_a_whole(vae: Any, inner: Any, latents: torch.Tensor) -> tuple[torch.Tensor, str]:
    how = (
        f"{type(inner).__name__} cannot be cut into parts here: ComfyUI's own decode was run with "
        "failing convolutions caught; budget, strategy and precision had no effect"
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
