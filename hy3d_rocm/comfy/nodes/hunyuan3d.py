"""The nodes for Hunyuan3D's pipelines. What they do is in hy3d_rocm.comfy.pipelines."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy import pipelines, settings
from hy3d_rocm.comfy.nodes.common import (
    CATEGORY,
    EitherPipeline,
    Pipeline,
    looked_up,
    schema,
    seed_mode_input,
)

__all__ = ["Hy3DRocmPipeline", "Hy3DRocmSeedMode"]


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
            outputs=[
                Pipeline.Output(
                    "pipeline_out", display_name="pipeline", tooltip="Use it as the loader's."
                )
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        return looked_up(inputs)

    @classmethod
    def execute(
        cls, pipeline: Any, seed_mode: str, offload: str = settings.SETTING
    ) -> io.NodeOutput:
        proxy = pipelines.proxy(pipeline, seed_mode)
        pipelines.offload(pipeline, offload)
        return io.NodeOutput(proxy)


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
            outputs=[
                EitherPipeline.Output(
                    "pipeline_out", display_name="pipeline", tooltip="Use it as the loader's."
                )
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        return looked_up(inputs)

    @classmethod
    def execute(cls, pipeline: Any, seed_mode: str, first_index: int) -> io.NodeOutput:
        return io.NodeOutput(pipelines.proxy(pipeline, seed_mode, first_index))
