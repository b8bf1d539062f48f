"""Memory for a decode of a VAE that ComfyUI manages: asked for before it loads the weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import comfy.model_management as management

from hy3d_rocm.comfy import memory as comfy_memory
from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.memory.budget import DEVICE_HEADROOM_BYTES, MEMORY_THRESHOLD, make_budget
from hy3d_rocm.decode.planning import planner
from hy3d_rocm.decode.planning.prices import Prices, meta_family
from hy3d_rocm.decode.planning.ways import Job, best_backend, list_ways, torch_backend

if TYPE_CHECKING:
    import torch

    from hy3d_rocm.decode.memory.budget import Budget, Request

logger = logging.getLogger("hy3d_rocm")


def load(vae: Any, family: Any, shape: tuple[int, ...], budget: Request, strategy: str) -> None:
    """Has ComfyUI load the VAE, with room beside its weights for what our plan takes.

    Its own estimate of what a decode takes is asked only where no plan can be made beforehand.
    """
    device = family.device
    if device.type == "cpu":
        room = 0
    else:
        planned = _planned_bytes(vae, family, shape, budget, strategy)
        room = int(vae.memory_used_decode(shape, vae.vae_dtype)) if planned is None else planned
    management.load_models_gpu(
        [vae.patcher], memory_required=room, force_full_load=getattr(vae, "disable_offload", False)
    )


def _planned_bytes(
    vae: Any, family: Any, shape: tuple[int, ...], request: Request, strategy: str
) -> int | None:
    """Free bytes that the decode needs once the weights are there, if it may take all the rest."""
    try:
        budget = _largest(vae, family.device, request)
        dtype = family.dtype
        make_backend = best_backend(family.device, dtype)
        job = Job(
            meta_family(family, dtype), shape, family.device, dtype, dtype, make_backend,
            is_fused=make_backend is not torch_backend,
        )  # fmt: skip
        plan = planner.choose(list_ways(job), budget, strategy, Prices(job))
    except management.InterruptProcessingException:
        raise
    except Exception as error:  # noqa: BLE001  (ComfyUI's estimate serves as well)
        logger.debug("hy3d_rocm: no plan before the VAE is loaded: %s", error)
        return None
    if request is not None:
        return plan.need.device_bytes
    return int(plan.need.device_bytes / MEMORY_THRESHOLD) + headroom_bytes()


def _largest(vae: Any, device: torch.device, request: Request) -> Budget:
    """The budget if nothing but the VAE were on the device."""
    _, total = comfy_memory.free_and_total(device)
    weights = int(vae.model_size()) if hasattr(vae, "model_size") else 0
    machine = meter.machine_of(device)
    free = max(total - weights - int(management.extra_reserved_memory()), 0)
    return make_budget(request, replace(machine, device_free=free))


def headroom_bytes() -> int:
    """What is left to others: ComfyUI's reserve, at least our own headroom."""
    return max(int(management.extra_reserved_memory()), DEVICE_HEADROOM_BYTES)


def automatic(device: torch.device) -> int | None:
    """Bytes for the budget "auto" on a GPU: MEMORY_THRESHOLD of what ComfyUI finds free there less
    the headroom; None on the CPU, where decode() looks itself."""
    if device.type == "cpu":
        return None
    free, _ = comfy_memory.free_and_total(device)
    free = min(free, int(management.get_free_memory(device)))
    return int(max(free - headroom_bytes(), 0) * MEMORY_THRESHOLD)
