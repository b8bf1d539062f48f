"""The nodes: what they are called and what they ask for. What they do is in their neighbours."""

from __future__ import annotations

from typing import Any

import nodes as core_nodes
from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import decode, memory, pipelines, settings, status
from hy3d_rocm.seed import SEED_MODES

CATEGORY = "advanced/rocm"

SEED_MODE_TOOLTIP = (
    "setting: as ComfyUI's settings say. stream: one generator for the batch. per_image: image i "
    "has a seed of its own, however the batch is split. legacy: every image the same noise."
)


class _Any(str):
    """The type "*". The core of 2025-10 finds types compatible by `!=`: it differs from none."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return False


# The sockets of ComfyUI-Hunyuan3DWrapper: its diffusers pipelines, and those for shapes.
Pipeline = io.Custom("HY3DDIFFUSERSPIPE")
EitherPipeline = io.Custom("HY3DDIFFUSERSPIPE,HY3DMODEL")
# ComfyUI's VAEs, and the WanVideoWrapper's.
EitherVae = io.Custom("VAE,WANVAE")
Anything = io.Custom(_Any("*"))


def _schema(**fields: Any) -> io.Schema:
    """A Schema; search_aliases are left out where the core does not know them (2025-10)."""
    if "search_aliases" not in getattr(io.Schema, "__dataclass_fields__", fields):
        fields.pop("search_aliases")
    return io.Schema(**fields)


def _seed_mode_input() -> Any:
    return io.Combo.Input(
        "seed_mode",
        options=[settings.SETTING, *SEED_MODES],
        default=settings.SETTING,
        tooltip=SEED_MODE_TOOLTIP,
    )


def _never_the_same() -> float:
    """A fingerprint that the cache never finds. A new NaN each time: one and the same object would
    equal itself inside the tuples that are compared."""
    return float("nan")


def _looked_up(inputs: dict[str, Any]) -> str:
    """What the settings say for the inputs that are left to them: a change runs the node again."""
    choices = {"seed_mode": settings.SETTING, "offload": settings.SETTING, **inputs}
    names = [name for name in ("seed_mode", "offload") if choices[name] == settings.SETTING]
    return settings.fingerprint(*names) if names else ""


class Hy3DRocmVAEDecode(io.ComfyNode):  # type: ignore[misc]
    """VAEDecode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema(
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


class Hy3DRocmPipeline(io.ComfyNode):  # type: ignore[misc]
    """Puts Hunyuan3D's diffusers pipelines behind a PipelineProxy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema(
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
                _seed_mode_input(),
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
        return _looked_up(inputs)

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
        return _schema(
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
                _seed_mode_input(),
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
        return _looked_up(inputs)

    @classmethod
    def execute(cls, pipeline: Any, seed_mode: str, first_index: int) -> io.NodeOutput:
        return io.NodeOutput(pipelines.proxy(pipeline, seed_mode, first_index))


class Hy3DRocmFreeMemory(io.ComfyNode):  # type: ignore[misc]
    """Gives memory back between two nodes, and says how much."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema(
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
        return _never_the_same()

    @classmethod
    def execute(cls, anything: Any = None) -> io.NodeOutput:
        report = memory.free_everything()
        return io.NodeOutput(anything, report, ui=ui.PreviewText(report))


class Hy3DRocmStatus(io.ComfyNode):  # type: ignore[misc]
    """What this machine is, what was chosen, what has happened."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema(
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
        return _never_the_same()

    @classmethod
    def execute(cls, pipeline: Any = None) -> io.NodeOutput:
        sections = status.report(pipeline)
        text, image = status.as_text(sections), status.status_picture(sections)
        shown = {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(text, image, ui=shown)


NODES: tuple[type[Any], ...] = (
    Hy3DRocmVAEDecode, Hy3DRocmPipeline, Hy3DRocmSeedMode, Hy3DRocmFreeMemory, Hy3DRocmStatus,
)  # fmt: skip
