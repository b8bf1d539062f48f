"""The nodes around a decode: what it got, as files, and how good its strategies are."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import captures, validation
from hy3d_rocm.comfy.nodes.common import CATEGORY, EitherVae, schema
from hy3d_rocm.comfy.option_values import DEFAULTS

__all__ = ["Hy3DRocmCaptureLatent", "Hy3DRocmValidateDecode"]


class Hy3DRocmCaptureLatent(io.ComfyNode):  # type: ignore[misc]
    """Writes the files of `hy3d-rocm capture`, and passes the latents on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmCaptureLatent",
            display_name="Capture Latent (for an issue)",
            category=CATEGORY,
            search_aliases=["save latent", "bug report", "debug decode", "reproduce", "issue"],
            description="Writes what a decode gets into two files that can be sent with an issue: "
            "the latents, and facts about the VAE and this machine. No weights, names or paths. "
            "Put it before the decode, so that one that hangs leaves the files, too.",
            inputs=[
                io.Latent.Input("samples", tooltip="What the decode gets. Passed on as it is."),
                EitherVae.Input(
                    "vae",
                    tooltip="The VAE that decodes it. Described by class, type and a fingerprint "
                    "of its weights, about a second a gigabyte.",
                ),
                io.Image.Input(
                    "frames",
                    optional=True,
                    tooltip="Frames that were decoded and look wrong; stored with 8 bits a "
                    "channel, and how many values were NaN or infinite.",
                ),
                io.String.Input(
                    "folder",
                    default="hy3d_rocm/captures",
                    tooltip="A folder inside ComfyUI's output directory; made where it is missing.",
                ),
            ],
            outputs=[
                io.Latent.Output(
                    "samples_out",
                    display_name="samples",
                    tooltip="The input, once both files are written: decode this one.",
                ),
                io.String.Output(
                    "path",
                    display_name="path",
                    tooltip="The capture's JSON file; the latents lie beside it.",
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="What was written, and where."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, samples: Any, vae: Any, folder: str, frames: Any = None) -> io.NodeOutput:
        path, said = captures.capture_latent(samples, vae, frames, folder)
        return io.NodeOutput(samples, str(path), said, ui=ui.PreviewText(said))


class Hy3DRocmValidateDecode(io.ComfyNode):  # type: ignore[misc]
    """`hy3d-rocm validate` on a LATENT: PSNR, SSIM, seams, flicker and a heat map."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="Hy3DRocmValidateDecode",
            display_name="Validate Decode (quality of each strategy)",
            category=CATEGORY,
            search_aliases=["psnr", "ssim", "tile seams", "flicker", "heat map", "compare vae"],
            description="Decodes one LATENT exactly (unsplit, in float32) and then with each "
            "strategy, and says how far they are off: PSNR, SSIM, seams between tiles, flicker "
            "between chunks, and where. It takes as long as all these decodes together.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents of a real prompt, a short one."),
                EitherVae.Input("vae", tooltip="The VAE that belongs to the model."),
                *_strategies(),
                io.String.Input(
                    "budget",
                    default="auto",
                    tooltip='Memory for each decode, such as "6GB". auto: what is free, and for '
                    "tiled the share below.",
                ),
                io.Float.Input(
                    "share",
                    default=0.25,
                    min=0.01,
                    max=1.0,
                    step=0.01,
                    tooltip="Budget auto: what tiled gets, of the memory that the unsplit decode "
                    "takes. Less means more tiles.",
                ),
                io.Int.Input(
                    "statistic_passes",
                    default=DEFAULTS["statistic_passes"],
                    min=0,
                    max=4,
                    tooltip="tiled of a VAE with GroupNorm: passes that correct the estimated "
                    "statistics; each takes as long as one more decode.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    "picture",
                    display_name="picture",
                    tooltip="Mean error of each pixel, one panel a strategy, one scale for all.",
                ),
                io.String.Output(
                    "table",
                    display_name="table",
                    tooltip="Time, memory, PSNR, SSIM, seams and flicker of each, and what holds.",
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls,
        samples: Any,
        vae: Any,
        whole: bool,
        streamed: bool,
        tiled: bool,
        cpu: bool,
        budget: str,
        share: float,
        statistic_passes: int,
    ) -> io.NodeOutput:
        switches = zip(validation.STRATEGIES, (whole, streamed, tiled, cpu), strict=True)
        chosen = [name for name, is_on in switches if is_on]
        picture, table = validation.validate_decode(
            vae, samples, chosen, budget, share, statistic_passes
        )
        shown = {**ui.PreviewImage(picture).as_dict(), **ui.PreviewText(table).as_dict()}
        return io.NodeOutput(picture, table, ui=shown)


def _strategies() -> list[Any]:
    """A switch for each; the host is off, since it takes many times as long as a GPU."""
    said = {
        "whole": "The VAE's own decode, unsplit: what its own type costs.",
        "streamed": "The same layers on parts of the video: exact up to rounding.",
        "tiled": "Tiles and chunks in little memory: an approximation where norms see it all.",
        "cpu": "streamed on the host. On a machine with a GPU this takes long.",
    }
    return [
        io.Boolean.Input(name, default=name != "cpu", tooltip=said[name])
        for name in validation.STRATEGIES
    ]
