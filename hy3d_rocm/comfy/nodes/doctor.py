"""The node that examines the machine, as `hy3d-rocm doctor` does."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import checkup
from hy3d_rocm.comfy.nodes.common import CATEGORY, never_the_same, schema

__all__ = ["Hy3DRocmDoctor"]


class Hy3DRocmDoctor(io.ComfyNode):  # type: ignore[misc]
    """Findings, worst first, each with its evidence and one remedy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmDoctor",
            display_name="Doctor (ROCm)",
            category=CATEGORY,
            search_aliases=["diagnose", "why slow", "gpu not found", "miopen", "rocm version"],
            description="Examines versions, card, variables, MIOpen's files and memory, and tries "
            "each way to convolve. What it finds comes worst first, with its evidence and one "
            "remedy. Runs each time.",
            inputs=[
                io.Boolean.Input(
                    "self_test",
                    default=True,
                    tooltip="Whether each way to convolve is tried, in a process of its own.",
                ),
                io.Int.Input(
                    "seconds",
                    default=60,
                    min=5,
                    max=600,
                    tooltip="Time for all self-tests together; what takes longer is a finding.",
                ),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The report in lines."),
                io.Image.Output(
                    "picture", display_name="picture", tooltip="The findings as a picture."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()

    @classmethod
    def execute(cls, self_test: bool, seconds: int) -> io.NodeOutput:
        text, image = checkup.examine_machine(self_test, seconds)
        shown = {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(text, image, ui=shown)
