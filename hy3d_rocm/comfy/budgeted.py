"""A VAE's decode and encode in parts within a budget, as the VAE's own methods would give them.

For code that is patched in place: tensors in, tensors out, in the VAE's own range and layout, and
one kind of exception where the VAE has to be left to its own code.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm.comfy import vae_memory, vaes
from hy3d_rocm.decode.checks import check_latents, check_pixels
from hy3d_rocm.decode.memory.budget import parse_budget
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from hy3d_rocm.decode.report import DecodeReport

__all__ = ["LeftAlone", "decode", "encode"]

logger = logging.getLogger("hy3d_rocm")


class LeftAlone(Exception):  # noqa: N818  (nothing is wrong: the VAE's own code does it)
    """The VAE's own code has to do it. The text says why."""


def decode(vae: Any, latents: torch.Tensor, budget: str) -> tuple[torch.Tensor, str]:
    """Frames on the CPU as the VAE's model gives them, (B, C, T, H, W), or (B, C, H, W) for
    latents with four axes, and a report.

    vae: ComfyUI's VAE object, or a wrapper's. budget: see parse_budget. LeftAlone for any reason;
    interrupts go through.
    """
    return _left_alone_if_failing(lambda: _decode(vae, latents, budget))


def encode(
    vae: Any, pixels: torch.Tensor, budget: str, moments: bool = False
) -> tuple[torch.Tensor, str]:
    """The mean that the VAE's model gives for pixels in its own range, (B, C, T, H, W) or
    (B, C, H, W), and a report. moments: mean and log variance, 2 C channels. Else as decode()."""
    return _left_alone_if_failing(lambda: _encode(vae, pixels, budget, moments))


def _left_alone_if_failing(
    work: Callable[[], tuple[torch.Tensor, str]],
) -> tuple[torch.Tensor, str]:
    try:
        return work()
    except management.InterruptProcessingException:
        raise
    except Exception as error:
        logger.debug("hy3d_rocm: in parts, in place", exc_info=True)
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # After the except block: what failed holds tensors.
    raise LeftAlone(said)


def _decode(vae: Any, latents: torch.Tensor, budget: str) -> tuple[torch.Tensor, str]:
    from hy3d_rocm.decode.executor import decode_with_report

    family = vaes.family_of(vae)
    video = latents.unsqueeze(2) if latents.ndim == 4 else latents
    check_latents(video, family)
    place = vaes.place_of(family)
    request = parse_budget(budget)
    with _current(place), torch.no_grad():
        if vaes.is_managed(vae):
            vae_memory.load(vae, family, tuple(video.shape), request, "auto")
        if not vaes.is_proven(family):
            raise TypeError(f"this {family.name} VAE decodes otherwise than its layers say")
        if request is None:
            request = vae_memory.automatic(place)
        noised = getattr(family, "noised", None)
        if noised is not None:
            video = noised(video.to(place, family.dtype))
        frames, report = decode_with_report(
            family, video, request, "auto", "auto", _Progress(), None
        )
    return frames.squeeze(2) if latents.ndim == 4 else frames, _told(report)


def _encode(vae: Any, pixels: torch.Tensor, budget: str, moments: bool) -> tuple[torch.Tensor, str]:
    from hy3d_rocm.decode import executor

    family = vaes.family_of(vae)
    video = pixels.unsqueeze(2) if pixels.ndim == 4 else pixels
    check_pixels(video, family)
    place = vaes.place_of(family)
    request = parse_budget(budget)
    with _current(place), torch.no_grad():
        if not vaes.is_proven(family):
            raise TypeError(f"this {family.name} VAE decodes otherwise than its layers say")
        if request is None:
            request = vae_memory.automatic(place)
        found = executor.encode(
            family, video, request, "auto", "auto", _Progress(), None, moments=moments
        )
    told = f"{family.name} encoded {tuple(video.shape)} in parts, budget {budget}"
    return found.squeeze(2) if pixels.ndim == 4 else found, told


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
    sizes = {
        "budget": report.budget_bytes,
        "planned peak": report.predicted_peak_bytes,
        "measured peak": report.measured_peak_bytes,
    }
    way = report.plan.get("way", report.strategy)
    return "\n".join(
        [
            f"{report.vae} on {report.device} in {report.dtype}: {way}",
            ", ".join(f"{name} {size_text(size, 2)}" for name, size in sizes.items()),
        ]
    )
