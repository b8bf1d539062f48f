"""The node that says beforehand how a decode would go. What it does is in hy3d_rocm.comfy.plans."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import plans
from hy3d_rocm.comfy.nodes.common import CATEGORY, EitherVae, never_the_same, schema
from hy3d_rocm.comfy.nodes.options import (
    budget_input,
    memory_inputs,
    precision_input,
    strategy_input,
    tile_inputs,
)
from hy3d_rocm.comfy.nodes.sizes import size_inputs

__all__ = ["Hy3DRocmMemoryPlan"]


class Hy3DRocmMemoryPlan(io.ComfyNode):  # type: ignore[misc]
    """Which ways there are to decode a size, what each takes, and which would be taken."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmMemoryPlan",
            display_name="Memory Plan (ROCm)",
            category=CATEGORY,
            search_aliases=["vram estimate", "will it fit", "decode memory", "budget"],
            description="Says what decoding would take: the ways there are, the planned peak of "
            "each, what fits and which would be taken. Nothing is decoded. Runs each time unless "
            "the budget is a size in bytes, and so does what follows.",
            inputs=[
                EitherVae.Input("vae", tooltip="The VAE that would decode."),
                *size_inputs(),
                budget_input("Memory to plan with. "),
                strategy_input(),
                precision_input(),
                *memory_inputs(),
                *tile_inputs(),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The plan in lines."),
                io.Image.Output(
                    "picture",
                    display_name="picture",
                    tooltip="A bar for each way, its estimated time, and the budget.",
                ),
                io.String.Output(
                    "budget_out",
                    display_name="budget",
                    tooltip="The budget that was planned with, in bytes: for VAE Decode (ROCm), "
                    "which then takes the way that is named here.",
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, budget: str = "auto", **inputs: Any) -> float | str:
        return "" if plans.is_steady(budget, inputs) else never_the_same()

    @classmethod
    def execute(
        cls, vae: Any, width: int, height: int, frames: int, budget: str, strategy: str,
        precision: str, samples: Any = None, **options: Any,
    ) -> io.NodeOutput:  # fmt: skip
        wanted = plans.Wanted(width, height, frames, samples)
        text, image, bytes_text = plans.plan(vae, wanted, budget, strategy, precision, options)
        shown = {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(text, image, bytes_text, ui=shown)
