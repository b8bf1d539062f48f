"""The nodes that decode and encode. What they do is in hy3d_rocm.comfy.{decode,encode,guarded}."""

from __future__ import annotations

from typing import Any

import nodes as core_nodes
from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy import decode, encode, guarded
from hy3d_rocm.comfy.nodes.common import EitherVae, schema
from hy3d_rocm.comfy.nodes.options import (
    ENCODE_STRATEGIES,
    STRATEGY_TOOLTIP,
    budget_input,
    memory_inputs,
    precision_input,
    running_inputs,
    strategy_input,
    tile_inputs,
)

__all__ = ["Hy3DRocmProtectVAE", "Hy3DRocmVAEDecode", "Hy3DRocmVAEEncode"]


class Hy3DRocmVAEDecode(io.ComfyNode):  # type: ignore[misc]
    """VAEDecode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmVAEDecode",
            display_name="VAE Decode (ROCm, bounded memory)",
            category=core_nodes.VAEDecode.CATEGORY,
            search_aliases=["vae decode tiled", "low vram decode", "out of memory", "miopen"],
            description="Decodes latents within a memory budget. A convolution that fails or finds "
            "no algorithm on the GPU is computed in another way instead of ending the run.",
            inputs=[
                io.Latent.Input("samples", tooltip="What the sampler made."),
                EitherVae.Input("vae", tooltip="The VAE that belongs to the model."),
                budget_input("Memory for the decode. "),
                strategy_input(),
                precision_input(),
                *memory_inputs(),
                *running_inputs(),
                *tile_inputs(),
            ],
            outputs=[
                io.Image.Output(
                    "images",
                    display_name="images",
                    tooltip="The frames of all videos in one batch.",
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="What was done, in how much memory."
                ),
                io.Image.Output(
                    "timeline",
                    display_name="timeline",
                    tooltip="Memory over time against the budget, with the steps marked.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, samples: Any, vae: Any, budget: str, strategy: str, precision: str, **options: Any
    ) -> io.NodeOutput:
        return io.NodeOutput(
            *decode.decode_latent(vae, samples, budget, strategy, precision, options)
        )


class Hy3DRocmVAEEncode(io.ComfyNode):  # type: ignore[misc]
    """VAEEncode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmVAEEncode",
            display_name="VAE Encode (ROCm, bounded memory)",
            category=core_nodes.VAEEncode.CATEGORY,
            search_aliases=["vae encode tiled", "low vram encode", "image to latent", "miopen"],
            description="Encodes images or a video to a latent within a memory budget, cropped and "
            "scaled as the core's VAE Encode does it. A convolution that fails on the GPU is "
            "computed in another way instead of ending the run.",
            inputs=[
                io.Image.Input(
                    "pixels",
                    tooltip="The images; for a video VAE the frames of one video, in order.",
                ),
                io.Vae.Input("vae", tooltip="The VAE that belongs to the model."),
                budget_input("Memory for the encode. "),
                io.Combo.Input(
                    "strategy",
                    options=list(ENCODE_STRATEGIES),
                    default="auto",
                    tooltip=STRATEGY_TOOLTIP.replace("tiled: tiles, an approximation. ", ""),
                ),
                precision_input(),
                *memory_inputs(),
            ],
            outputs=[
                io.Latent.Output(
                    "samples", display_name="samples", tooltip="As the core's VAE Encode gives it."
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="What was done, in how much memory."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, pixels: Any, vae: Any, budget: str, strategy: str, precision: str, **options: Any
    ) -> io.NodeOutput:
        return io.NodeOutput(
            *encode.encode_pixels(vae, pixels, budget, strategy, precision, options)
        )


class Hy3DRocmProtectVAE(io.ComfyNode):  # type: ignore[misc]
    """A VAE for other nodes, whose decode and encode finish."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmProtectVAE",
            display_name="Protect VAE (ROCm)",
            category=core_nodes.VAEDecode.CATEGORY,
            search_aliases=["safe vae", "miopen", "no suitable algorithm", "vae out of memory"],
            description="Gives a VAE for any other node: its decode, decode_tiled and encode are "
            "protected against failing convolutions, and run under a memory budget if you like. "
            "The VAE that comes in is not changed.",
            inputs=[
                EitherVae.Input("vae", tooltip="Any VAE."),
                io.Combo.Input(
                    "mode",
                    options=list(guarded.MODES),
                    default="protect",
                    tooltip="protect: the VAE's own code, with failing convolutions computed in "
                    "another way. full: also within the budget, as VAE Decode (ROCm) does it.",
                ),
                budget_input("full: memory for each decode or encode. "),
                strategy_input(),
                precision_input(),
            ],
            outputs=[
                EitherVae.Output(
                    "vae_out", display_name="vae", tooltip="Use it wherever a VAE is asked for."
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="What is protected, and how."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, vae: Any, mode: str, budget: str, strategy: str, precision: str
    ) -> io.NodeOutput:
        return io.NodeOutput(*guarded.guard(vae, mode, budget, strategy, precision))
