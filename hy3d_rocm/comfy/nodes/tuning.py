"""The node that measures ahead. What it does is in hy3d_rocm.comfy.tuned."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import tuned
from hy3d_rocm.comfy.nodes.common import CATEGORY, EitherVae, advanced, never_the_same, schema
from hy3d_rocm.comfy.nodes.sizes import size_inputs

__all__ = ["Hy3DRocmTuneVAE"]


class Hy3DRocmTuneVAE(io.ComfyNode):  # type: ignore[misc]
    """`hy3d-rocm tune` for the VAE and size of a workflow."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmTuneVAE",
            display_name="Tune VAE (ROCm)",
            category=CATEGORY,
            search_aliases=["benchmark convolutions", "miopen find", "autotune", "slow vae"],
            description="Measures which way of computing each convolution of this VAE is best on "
            "this card, for one size, and keeps that for all later decodes. Cancel keeps what was "
            "measured. Runs each time; what is known is not measured again.",
            inputs=[
                EitherVae.Input("vae", tooltip="The VAE to measure; it is not loaded for that."),
                *size_inputs(),
                io.Int.Input(
                    "seconds",
                    default=120,
                    min=5,
                    max=36000,
                    tooltip="Nothing is begun after that. Queue it again to go on.",
                ),
                advanced(
                    io.Boolean.Input(
                        "again",
                        default=False,
                        optional=True,
                        tooltip="Measures what is known already, too.",
                    )
                ),
                advanced(
                    io.Boolean.Input(
                        "retry_hung",
                        default=False,
                        optional=True,
                        tooltip="Gives what hung in an earlier run more time, in a child process.",
                    )
                ),
            ],
            outputs=[
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Each convolution's ways by time, and what the decode gains.",
                )
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()

    @classmethod
    def execute(
        cls, vae: Any, width: int, height: int, frames: int, seconds: int, samples: Any = None,
        again: bool = False, retry_hung: bool = False,
    ) -> io.NodeOutput:  # fmt: skip
        wanted = tuned.Wanted(width, height, frames, samples)
        report = tuned.tune(vae, wanted, seconds, again=again, retry_hung=retry_hung)
        return io.NodeOutput(report, ui=ui.PreviewText(report))
