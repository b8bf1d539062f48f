"""What the pipeline nodes do: a PipelineProxy with the mode that was chosen, and the offload."""

from __future__ import annotations

import logging
from typing import Any

from hy3d_rocm.comfy import memory, settings, status
from hy3d_rocm.pipeline import PipelineProxy

logger = logging.getLogger("hy3d_rocm")


def proxy(pipeline: Any, seed_mode: str, first_index: int = 0) -> PipelineProxy:
    """`pipeline` behind a proxy; "setting" is looked up.

    Raises ValueError, in a sentence, for a first_index that the mode cannot use.
    """
    mode = settings.seed_mode_for(seed_mode)
    if first_index and mode != "per_image":
        raise ValueError(
            f"first_index is {first_index} with seed_mode {mode!r}, where images have no numbers "
            "of their own; give 0, or choose per_image"
        )
    status.know(pipeline)
    numbered: dict[str, Any] = {"first_index": first_index} if first_index else {}
    device = memory.comfy_device()
    return PipelineProxy(pipeline, default_device=device, seed_mode=mode, **numbered)


def offload(pipeline: Any, asked: str) -> str:
    """Puts the offload policy into force on `pipeline`; returns the reason, a sentence.

    "setting" is looked up. Never raises for a pipeline that cannot be offloaded: that is the
    reason then.
    """
    apply = status.optional("hy3d_rocm.offload", "apply")
    if apply is None:
        return "this version cannot offload: the pipeline is left as it is"
    device = memory.comfy_device()
    free, total = memory.free_and_total(device)
    policy = settings.offload_for(asked)
    decision = apply(status.unwrapped(pipeline), policy, device, free, total)
    logger.info("Hy3DRocmPipeline: offload %s: %s", policy, decision.reason)
    return str(decision.reason)
