"""Room on the GPU for a node's models, which ComfyUI's own models may hold."""

from __future__ import annotations

import logging
from typing import Any

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory
from hy3d_rocm.comfy.patches.common import Call
from hy3d_rocm.device import resolve_device
from hy3d_rocm.offload import components
from hy3d_rocm.pipeline import unwrap

logger = logging.getLogger("hy3d_rocm")


def make_room(call: Call, model: Any, size: tuple[int, int] | None = None) -> None:
    """Has ComfyUI free what `model` will need for this call, where that is not free already.

    model: a pipeline or a module. size: (height, width) of the picture, for the activations that
    were measured. Nothing is asked for where the model runs on a CPU. Never raises for a strange
    model: what is wrong with it, the node says.
    """
    real = unwrap(model)
    try:
        device = resolve_device(real, call.device).device
        if not components.is_accelerator(device):
            return
        needed = offload.needed_bytes(real, components.indexed(device), size)
    except Exception as error:  # noqa: BLE001  (a strange model's properties may raise anything)
        logger.debug("what %s needs is not known: %s", type(real).__name__, error)
        return
    if needed:
        memory.make_room(needed, device)
