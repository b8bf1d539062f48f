"""The nodes: what they are called and what they ask for. What they do is in decode and status."""

from __future__ import annotations

from typing import Any

import nodes as core_nodes
from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import decode, status
from hy3d_rocm.pipeline import PipelineProxy
from hy3d_rocm.seed import SEED_MODES

CATEGORY = "advanced/rocm"
Pipeline = io.Custom("HY3DDIFFUSERSPIPE")  # the socket of ComfyUI-Hunyuan3DWrapper


class Hy3DRocmVAEDecode(io.ComfyNode):  # type: ignore[misc]
    """VAEDecode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Hy3DRocmVAEDecode",
            display_name="VAE Decode (ROCm, bounded memory)",
            category=core_nodes.VAEDecode.CATEGORY,
            description="Decodes latents within a memory budget. A convolution that fails or finds "
            "no algorithm on the GPU is computed in another way instead of ending the run.",
            inputs=[
                io.Latent.Input("samples"),
                io.Vae.Input("vae"),
                io.String.Input(
                    "budget",
                    default="auto",
                    tooltip='Memory for the decode: "auto" (from what is free), or a size such as '
                    '"6GB" or "800MB".',
                ),
                io.Combo.Input("strategy", options=list(decode.STRATEGIES), default="auto"),
                io.Combo.Input("precision", options=list(decode.PRECISIONS), default="auto"),
            ],
            outputs=[io.Image.Output("images"), io.String.Output("report")],
        )

    @classmethod
    def execute(
        cls, samples: Any, vae: Any, budget: str, strategy: str, precision: str
    ) -> io.NodeOutput:
        images, report = decode.decode_latent(vae, samples, budget, strategy, precision)
        return io.NodeOutput(images, report)


class Hy3DRocmPipeline(io.ComfyNode):  # type: ignore[misc]
    """Puts Hunyuan3D's diffusers pipelines behind a PipelineProxy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Hy3DRocmPipeline",
            display_name="Hunyuan3D Pipeline (right device, one generator)",
            category=CATEGORY,
            description="Put it between the loader and Hy3DDelightImage or Hy3DSampleMultiView: "
            "inputs go to the device where the pipeline computes, and a batch gets one generator.",
            inputs=[
                Pipeline.Input("pipeline"),
                io.Combo.Input(
                    "seed_mode",
                    options=list(SEED_MODES),
                    default="stream",
                    tooltip="stream: one generator for the batch. per_image: image i has a seed of "
                    "its own, however the batch is split. legacy: every image the same noise.",
                ),
            ],
            outputs=[Pipeline.Output("pipeline_out", display_name="pipeline")],
        )

    @classmethod
    def execute(cls, pipeline: Any, seed_mode: Any) -> io.NodeOutput:
        default = status.comfy_device()
        return io.NodeOutput(PipelineProxy(pipeline, default_device=default, seed_mode=seed_mode))


class Hy3DRocmStatus(io.ComfyNode):  # type: ignore[misc]
    """What this machine is, what was chosen, what has happened."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Hy3DRocmStatus",
            display_name="ROCm Status",
            category=CATEGORY,
            description="Device and why, CPU kernels, BLAS, variables that matter, and what the "
            "decodes of this session met.",
            inputs=[Pipeline.Input("pipeline", optional=True)],
            outputs=[io.String.Output("text")],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return float("nan")  # differs from itself: never taken from the cache

    @classmethod
    def execute(cls, pipeline: Any = None) -> io.NodeOutput:
        text = status.status_text(pipeline)
        return io.NodeOutput(text, ui=ui.PreviewText(text))
