"""What the plan node does: the ways to decode a size, what each takes, which would be taken."""

from __future__ import annotations

from typing import Any

import comfy.utils
import torch

from hy3d_rocm import meter
from hy3d_rocm.comfy import plan_picture, vae_memory, vaes
from hy3d_rocm.comfy.option_values import decode_options
from hy3d_rocm.comfy.running import current_device, said
from hy3d_rocm.comfy.sizes import Wanted, latent_shape
from hy3d_rocm.comfy.watching import Watcher
from hy3d_rocm.decoding.checks import STRATEGIES, check_choice
from hy3d_rocm.decoding.memory.budget import Budget, make_budget, parse_budget
from hy3d_rocm.decoding.precision import PRECISIONS, choose_precision
from hy3d_rocm.tools.planning import explain

__all__ = ["Wanted", "is_steady", "plan"]


def is_steady(budget: str, options: dict[str, Any]) -> bool:
    """Whether the budget is a size, and so the plan the same at any time."""
    try:
        request = parse_budget(budget.strip() or None)
    except (ValueError, AttributeError):
        return False
    return isinstance(request, int) and not options.get("memory_fraction")


def plan(
    vae: Any,
    wanted: Wanted,
    budget: str,
    strategy: str,
    precision: str,
    options: dict[str, Any],
) -> tuple[str, torch.Tensor, str]:
    """Text, picture (1, H, W, 3) and the budget as bytes. Nothing is decoded or loaded.

    ValueError (a sentence) for a size, budget, strategy or option that is none.
    """
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("precision", precision, PRECISIONS)
    request, chosen = parse_budget(budget.strip() or None), decode_options(options)
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        return _of_unknown(vae, said(error), budget)
    shape = latent_shape(family, wanted)
    place = vaes.place_of(family)
    with Watcher() as watcher, current_device(place), torch.no_grad():
        fallback = chosen.fallback_precision
        dtype = choose_precision(precision, family.dtype, place, fallback).dtype
        job = vae_memory.job_of(family, shape, dtype, device=place)
        room = _budget(vae, job.device, request, chosen)
        bar = comfy.utils.ProgressBar(1)
        found = explain(job, room, strategy, chosen, watcher.throw, bar.update_absolute)
    return "\n".join(found.lines()), plan_picture.draw(found), str(room.device_bytes)


def _budget(vae: Any, device: torch.device, request: Any, options: Any) -> Budget:
    """As the decode would have it: ComfyUI gives the room that a plan needs to a VAE of its own."""
    if vaes.is_managed(vae) and device.type != "cpu":
        return vae_memory.largest(vae, device, request, options)
    return make_budget(
        request,
        meter.machine_of(device),
        memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )


def _of_unknown(vae: Any, why: str, budget: str) -> tuple[str, torch.Tensor, str]:
    """A VAE whose layers are not known: only a decode can tell."""
    text = (
        f"{why}\nWhat its decode takes can't be told beforehand. VAE Decode (ROCm) tries it whole "
        "and, where memory runs out, in tiles; failing convolutions are caught."
    )
    request = parse_budget(budget.strip() or None)
    given = str(request) if isinstance(request, int) else budget.strip() or "auto"
    return text, plan_picture.words("Memory plan", text), given
