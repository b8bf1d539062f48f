"""The nodes that decode and encode. What they do is in hy3d_rocm.comfy.decode."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

import nodes as core_nodes
from hy3d_rocm.comfy import decode
from hy3d_rocm.comfy.nodes.common import EitherVae, schema

__all__ = ["Hy3DRocmVAEDecode"]


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
                io.String.Input(
                    "budget",
                    default="auto",
                    tooltip='Memory for the decode: "auto" (from what is free), or a size such as '
                    '"6GB" or "800MB".',
                ),
                io.Combo.Input(
                    "strategy",
                    options=list(decode.STRATEGIES),
                    default="auto",
                    tooltip="whole: the VAE's own code. streamed: the same layers on parts of the "
                    "video, exact. tiled: tiles, an approximation. cpu: streamed on the host. "
                    "auto: the first that fits.",
                ),
                io.Combo.Input(
                    "precision",
                    options=list(decode.PRECISIONS),
                    default="auto",
                    tooltip="The type to compute in. auto: the VAE's own.",
                ),
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
            ],
        )

    @classmethod
    def execute(
        cls, samples: Any, vae: Any, budget: str, strategy: str, precision: str
    ) -> io.NodeOutput:
        images, report = decode.decode_latent(vae, samples, budget, strategy, precision)
        return io.NodeOutput(images, report)
