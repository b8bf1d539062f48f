"""The nodes for Hunyuan3D's pipelines: a PipelineProxy with the mode that was chosen, and the
offload."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy import memory, reports, settings
from hy3d_rocm.comfy.nodes.common import (
    CATEGORY,
    EitherPipeline,
    Pipeline,
    looked_up,
    output,
    schema,
    seed_mode_input,
)
from hy3d_rocm.pipeline import PipelineProxy, unwrap

logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmPipeline(io.ComfyNode):  # type: ignore[misc]
    """Puts Hunyuan3D's diffusers pipelines behind a PipelineProxy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmPipeline",
            display_name="Hunyuan3D Pipeline (right device, one generator)",
            category=CATEGORY,
            search_aliases=[
                "hunyuan3d offload",
                "same device",
                "delight",
                "multiview",
                "seed mode",
            ],
            description="Put it between the loader and Hy3DDelightImage or Hy3DSampleMultiView: "
            "inputs go to the device where the pipeline computes, a batch gets one generator, and "
            "models are offloaded as chosen.",
            inputs=[
                Pipeline.Input("pipeline", tooltip="The output of a Hunyuan3D pipeline loader."),
                seed_mode_input(),
                io.Combo.Input(
                    "offload",
                    options=[settings.SETTING, *settings.OFFLOADS],
                    default=settings.SETTING,
                    optional=True,  # prompts that were saved without it still run
                    tooltip="setting: as ComfyUI's settings say. off: all models stay on the GPU. "
                    "on: each model is there only while it works. auto: on if they would not fit.",
                ),
            ],
            outputs=[output(Pipeline, "pipeline_out", "Use it as the loader's.")],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        return looked_up(inputs)

    @classmethod
    def execute(
        cls, pipeline: Any, seed_mode: str, offload: str = settings.SETTING
    ) -> io.NodeOutput:
        made = proxy(pipeline, seed_mode)
        offload_as_asked(pipeline, offload)
        return io.NodeOutput(made)


class Hy3DRocmSeedMode(io.ComfyNode):  # type: ignore[misc]
    """Chooses the seed mode of one pipeline, and the number of a batch's first image."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmSeedMode",
            display_name="Hunyuan3D Seed Mode",
            category=CATEGORY,
            search_aliases=["hunyuan3d seed", "same noise", "batch noise", "generator"],
            description="How the images of a batch get their noise, for the node behind this one. "
            "With per_image and first_index a batch that is split over several nodes gives the "
            "pictures of the whole batch.",
            inputs=[
                EitherPipeline.Input(
                    "pipeline", tooltip="A Hunyuan3D pipeline: delight, multiview or shape."
                ),
                seed_mode_input(),
                io.Int.Input(
                    "first_index",
                    default=0,
                    min=0,
                    max=2**31 - 1,
                    tooltip="per_image only: the number of the first image or view of this batch "
                    "in the whole one, counted from 0.",
                ),
            ],
            outputs=[output(EitherPipeline, "pipeline_out", "Use it as the loader's.")],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        return looked_up(inputs)

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
    from hy3d_rocm.offload import apply

    device = memory.comfy_device()
    free, total = memory.counted_free(device)
    room = partial(memory.make_room, device=device)
    policy = settings.offload_for(asked)
    decision = apply(unwrap(pipeline), policy, device, free, total, room=room)
    logger.info("Hy3DRocmPipeline: offload %s: %s", policy, decision.reason)
    return decision.reason
