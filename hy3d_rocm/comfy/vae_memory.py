"""Memory for a decode of a VAE that ComfyUI manages: asked for before it loads the weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import torch

from hy3d_rocm import meter
from hy3d_rocm.comfy import memory as comfy_memory
from hy3d_rocm.decoding.black_box import meta_family
from hy3d_rocm.decoding.memory.budget import DEVICE_HEADROOM_BYTES, MEMORY_THRESHOLD, make_budget
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend
from hy3d_rocm.decoding.report import DecodeCancelled
from hy3d_rocm.decoding.stages import asked_to_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from hy3d_rocm.comfy.running import Asked
    from hy3d_rocm.decoding.memory.budget import Budget, Request
    from hy3d_rocm.decoding.planning.planner import Way
    from hy3d_rocm.decoding.report import DecodeOptions

logger = logging.getLogger("hy3d_rocm")


def load(
    vae: Any, family: Any, shape: tuple[int, ...], asked: Asked, cancel: Any = None,
    encode: bool = False,
) -> None:  # fmt: skip
    """Has ComfyUI load the VAE, with room beside its weights for what our plan takes.

    shape: (B, C, T, H, W) of the latents, or for an encode of the pixels. Its own estimate of what
    that takes is asked only where no plan can be made beforehand.
    """
    if family.device.type == "cpu":
        room = 0
    else:
        planned = _planned_bytes(vae, family, shape, asked, cancel, encode)
        room = _estimate(vae, shape, encode) if planned is None else planned
    _load(vae, room)


def load_for_own_code(vae: Any, shape: tuple[int, ...], asked: Asked) -> None:
    """Has ComfyUI load a VAE whose module runs itself: what that takes can be told only when the
    weights are there. Room for ComfyUI's estimate, within the budget where one is given."""
    room = 0
    if torch.device(vae.device).type != "cpu":
        room = _estimate(vae, shape, encode=False)
        if isinstance(asked.budget, int):
            room = min(room, asked.budget)
    _load(vae, room)


def _load(vae: Any, room: int) -> None:
    comfy_memory.give_way(vae)
    management.load_models_gpu(
        [vae.patcher], memory_required=room, force_full_load=getattr(vae, "disable_offload", False)
    )


def _estimate(vae: Any, shape: tuple[int, ...], encode: bool) -> int:
    """ComfyUI's own."""
    of = vae.memory_used_encode if encode else vae.memory_used_decode
    if getattr(vae, "latent_dim", 3) == 2 and len(shape) == 5:
        shape = (*shape[:2], *shape[3:])
    return int(of(shape, vae.vae_dtype))


def _planned_bytes(
    vae: Any, family: Any, shape: tuple[int, ...], asked: Asked, cancel: Any, encode: bool
) -> int | None:
    """Free bytes that the work needs once the weights are there, if it may take all the rest."""
    request, options = asked.budget, asked.options
    try:
        budget = largest(vae, family.device, request, options)
        job = job_of(family, shape, family.dtype, encode)
        plan = plan_job(job, budget, asked.strategy, options, _until(cancel))
    except management.InterruptProcessingException:
        raise
    except DecodeCancelled:
        raise
    except Exception as error:  # noqa: BLE001  (ComfyUI's estimate serves as well)
        logger.debug("hy3d_rocm: no plan before the VAE is loaded: %s", error)
        return None
    if request is not None:
        return plan.need.device_bytes
    return int(plan.need.device_bytes / options.memory_threshold) + headroom_bytes()


def _until(cancel: Any) -> Callable[[Way], bool]:
    """Asked of each way before it is priced: raises after a cancel."""

    def go_on(way: Way) -> bool:
        if asked_to_stop(cancel):
            raise DecodeCancelled("cancelled while it was planned")
        return True

    return go_on


def job_of(
    family: Any, shape: tuple[int, ...], dtype: torch.dtype, encode: bool = False,
    device: torch.device | None = None,
) -> Job:  # fmt: skip
    """A decode (or encode) that is only to be planned: the VAE's parameters on "meta". device:
    where it would compute, None for where the family says."""
    place = family.device if device is None else device
    backend = best_backend(place, dtype)
    return Job(meta_family(family, dtype), shape, place, dtype, dtype, backend, encode=encode)


def largest(vae: Any, device: torch.device, request: Request, options: DecodeOptions) -> Budget:
    """The budget if nothing but the VAE were on the device."""
    _, total = comfy_memory.free_and_total(device)
    weights = int(vae.model_size()) if hasattr(vae, "model_size") else 0
    machine = meter.machine_of(device)
    free = max(total - weights - int(management.extra_reserved_memory()), 0)
    return make_budget(
        request,
        replace(machine, device_free=free),
        memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )


def headroom_bytes() -> int:
    """What is left to others: ComfyUI's reserve, at least our own headroom."""
    return max(int(management.extra_reserved_memory()), DEVICE_HEADROOM_BYTES)


def budget_for(asked: Asked, device: torch.device) -> Request:
    """The budget that was given, or "auto" in bytes (see automatic)."""
    if asked.budget is not None:
        return asked.budget
    return automatic(device, asked.options.memory_threshold)


def automatic(device: torch.device, threshold: float = MEMORY_THRESHOLD) -> int | None:
    """Bytes for the budget "auto" on a GPU: `threshold` of what ComfyUI finds free there less the
    headroom; None on the CPU, where decode() looks itself."""
    if device.type == "cpu":
        return None
    free, _ = comfy_memory.free_and_total(device)
    free = min(free, int(management.get_free_memory(device)))
    return int(max(free - headroom_bytes(), 0) * threshold)
