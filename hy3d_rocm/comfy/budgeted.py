"""A wrapper's VAE in parts within a budget, as its own methods would give it: tensors in its range.

ComfyUI's own VAE objects have decode.decode_samples() and encode.encode_images() for that. One kind
of exception says that the VAE has to be left to its own code.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import torch

from hy3d_rocm.comfy import memory, vae_memory, vaes
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.running import current_device, running, said
from hy3d_rocm.decoding.memory.budget import parse_budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from hy3d_rocm.comfy.running import Run
    from hy3d_rocm.decoding.report import DecodeReport

__all__ = ["LeftAlone", "decode", "encode"]

logger = logging.getLogger("hy3d_rocm")

Made = tuple[torch.Tensor, str]


class LeftAlone(Exception):  # noqa: N818  (nothing is wrong: the VAE's own code does it)
    """The VAE's own code has to do it. The text says why."""


def decode(vae: Any, latents: torch.Tensor, budget: str, strategy: str = "auto") -> Made:
    """Frames (B, C, T, H, W) on the CPU, as the VAE gives them for latents (B, C, T, H, W), and a
    report. budget: see parse_budget. LeftAlone for any reason; interrupts go through."""
    from hy3d_rocm.decoding.executor import decode_with_report

    def work(family: Any, request: Any, run: Run) -> tuple[torch.Tensor, DecodeReport]:
        return decode_with_report(
            family, latents, request, strategy, "auto", run.steps, run.watcher
        )  # fmt: skip

    return _left_alone_if_failing(vae, latents, budget, work, "latents")


def encode(
    vae: Any, pixels: torch.Tensor, budget: str, strategy: str = "auto", moments: bool = False
) -> Made:
    """The mean (B, C, T, H, W) that the VAE gives for pixels in its own range, and a report.
    moments: mean and log variance, 2 C channels. All else as decode()."""
    from hy3d_rocm.decoding.executor import encode_with_report

    def work(family: Any, request: Any, run: Run) -> tuple[torch.Tensor, DecodeReport]:
        return encode_with_report(
            family, pixels, request, strategy, "auto", run.steps, run.watcher, moments=moments
        )

    return _left_alone_if_failing(vae, pixels, budget, work, "pixels")


def _left_alone_if_failing(
    vae: Any,
    given: torch.Tensor,
    budget: str,
    work: Callable[[Any, Any, Run], tuple[torch.Tensor, DecodeReport]],
    kind: str,
) -> Made:
    try:
        family = vaes.family_of(vae, encode=kind != "latents")
        place = vaes.place_of(family)
        with running() as run, current_device(place), torch.no_grad():
            looks_as_told = vaes.is_proven if kind == "latents" else vaes.encodes_as_told
            if not looks_as_told(family):
                raise TypeError(f"this {family.name} VAE does otherwise than its layers say")
            request = parse_budget(budget)
            if request is None:
                request = vae_memory.automatic(place)
            with memory.own_care(vae):
                made, report = work(family, request, run)
        return made, report_text(report, given, made, report.seconds, "", kind)
    except management.InterruptProcessingException:
        raise
    except Exception as error:
        logger.debug("hy3d_rocm: in parts, in place", exc_info=True)
        why = said(error)
    # After the except block: what failed holds tensors.
    raise LeftAlone(why)
