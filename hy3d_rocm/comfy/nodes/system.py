"""The nodes about the machine: memory given back, and what is known of it."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import memory, status
from hy3d_rocm.comfy.nodes.common import (
    CATEGORY,
    Anything,
    EitherPipeline,
    never_the_same,
    schema,
)

__all__ = ["Hy3DRocmFreeMemory", "Hy3DRocmStatus"]


class Hy3DRocmFreeMemory(io.ComfyNode):  # type: ignore[misc]
    """Gives memory back between two nodes, and says how much."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmFreeMemory",
            display_name="Free Memory (ROCm)",
            category=CATEGORY,
            search_aliases=["unload models", "clear vram", "purge vram", "empty cache"],
            description="Unloads all of ComfyUI's models, collects garbage and empties the "
            "allocator once, then passes its input on. Runs each time, and so does what follows.",
            inputs=[
                Anything.Input(
                    "anything", optional=True, tooltip="Passed on as it is, when all is freed."
                )
            ],
            outputs=[
                Anything.Output("anything_out", display_name="anything", tooltip="The input."),
                io.String.Output(
                    "report", display_name="report", tooltip="Memory before and after, in lines."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()

    @classmethod
    def execute(cls, anything: Any = None) -> io.NodeOutput:
        report = memory.free_everything()
        return io.NodeOutput(anything, report, ui=ui.PreviewText(report))


class Hy3DRocmStatus(io.ComfyNode):  # type: ignore[misc]
    """What this machine is, what was chosen, what has happened."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmStatus",
            display_name="ROCm Status",
            category=CATEGORY,
            search_aliases=["device info", "gpu info", "vram", "diagnose", "hy3d doctor"],
            description="Device and why, memory, modes, patches in place, pipelines, CPU kernels, "
            "variables that matter, and what the decodes of this session met.",
            inputs=[
                EitherPipeline.Input(
                    "pipeline", optional=True, tooltip="A pipeline to say more about."
                )
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The status in lines."),
                io.Image.Output(
                    "picture", display_name="picture", tooltip="The status as a picture."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()

    @classmethod
    def execute(cls, pipeline: Any = None) -> io.NodeOutput:
        sections = status.report(pipeline)
        text, image = status.as_text(sections), status.status_picture(sections)
        shown = {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(text, image, ui=shown)
