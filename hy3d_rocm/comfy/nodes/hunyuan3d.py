"""The nodes for Hunyuan3D's pipelines: a PipelineProxy with the mode that was chosen, and the
offload."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from comfy_api.v0_0_2 import io

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory, reports, settings
from hy3d_rocm.comfy.nodes.common import AsSet
from hy3d_rocm.pipeline import PipelineProxy, unwrap

logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmPipeline(AsSet):
    """Puts Hunyuan3D's diffusers pipelines behind a PipelineProxy."""

    @classmethod
    def execute(
        cls, pipeline: Any, seed_mode: str, offload: str = settings.SETTING
    ) -> io.NodeOutput:
        made = proxy(pipeline, seed_mode)
        offload_as_asked(pipeline, offload)
        return io.NodeOutput(made)


class Hy3DRocmSeedMode(AsSet):
    """Chooses the seed mode of one pipeline, and the number of a batch's first image."""

    @classmethod
    def execute(cls, pipeline: Any, seed_mode: str, first_index: int) -> io.NodeOutput:
        return io.NodeOutput(proxy(pipeline, seed_mode, first_index))


def proxy(pipeline: Any, seed_mode: str, first_index: int = 0) -> PipelineProxy:
    """`pipeline` behind a proxy; "setting" is looked up.

    Raises ValueError, in a sentence, for a first_index that the mode cannot use.
    """
    reports.know(pipeline)
    return PipelineProxy(
        pipeline,
        default_device=memory.comfy_device(),
        seed_mode=settings.seed_mode_for(seed_mode),
        label=type(unwrap(pipeline)).__name__,
        first_index=first_index,
    )


def offload_as_asked(pipeline: Any, asked: str) -> str:
    """Puts the offload policy into force on `pipeline`; returns the reason, a sentence.

    "setting" is looked up. Never raises for a pipeline that cannot be offloaded: that is the
    reason then.
    """
    device = memory.comfy_device()
    free, total = memory.counted_free(device)
    room = partial(memory.make_room, device=device)
    policy = settings.offload_for(asked)
    decision = offload.apply(unwrap(pipeline), policy, device, free, total, room=room)
    logger.info("Hy3DRocmPipeline: offload %s: %s", policy, decision.reason)
    return decision.reason
