"""What the nodes' modules share: sockets, inputs, what the inputs mean, and fingerprints.

A number widget can't be empty, so each option of a decode that may be None has a number that means
it. All options are optional inputs, so that prompts saved without them still run, and folded away
where the front end knows advanced inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.decode import latents_of
from hy3d_rocm.comfy.running import Asked
from hy3d_rocm.decoding.checks import STRATEGIES
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.seed import SEED_MODES
from hy3d_rocm.units import MB

CATEGORY = "advanced/rocm"

SEED_MODE_TOOLTIP = (
    "setting: as ComfyUI's settings say. stream: one generator for the batch. per_image: image i "
    "has a seed of its own, however the batch is split. legacy: every image the same noise."
)


BUDGET_TOOLTIP = (
    '"auto": from what is free now. Or a size such as "6GB" or "800MB", or a share of the card\'s '
    'memory such as "80%".'
)
STRATEGY_TOOLTIP = (
    "whole: the VAE's own code. streamed: the same layers on parts of the video, exact. tiled: "
    "tiles, an approximation. cpu: streamed on the host. auto: the first that fits."
)
_PLAIN = DecodeOptions()
# What the nodes offer, by the names of their inputs.
DEFAULTS: dict[str, Any] = {
    "memory_threshold": _PLAIN.memory_threshold,
    "memory_fraction": 0.0,
    "cpu_offload": _PLAIN.cpu_offload,
    "chunk_size": 0,
    "cleanup_frequency": -1,
    "synchronization": _PLAIN.synchronization,
    "fallback_precision": _PLAIN.fallback_precision,
    "slice_mb": 0,
    "statistic_passes": _PLAIN.statistic_passes,
    "halo_pixels": _PLAIN.halo_pixels,
    "overlap_pixels": _PLAIN.overlap_pixels,
    "min_tile_pixels": _PLAIN.min_tile_pixels,
}
_NONE_AT = {"memory_fraction": 0, "chunk_size": 0, "slice_mb": 0, "cleanup_frequency": -1,
            "halo_pixels": -1}  # fmt: skip
_LARGEST = 16384  # pixels of a side, and frames


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


def schema(**fields: Any) -> io.Schema:
    """A Schema; search_aliases are left out where the core does not know them (2025-10)."""
    if "search_aliases" not in getattr(io.Schema, "__dataclass_fields__", fields):
        fields.pop("search_aliases", None)
    return io.Schema(**fields)


def advanced(given: Any) -> Any:
    """An input that the front end folds away. (The core of 2025-10 has no argument for it, but
    passes extra_dict on.)"""
    given.extra_dict = {**(getattr(given, "extra_dict", None) or {}), "advanced": True}
    return given


class EachTime(io.ComfyNode):  # type: ignore[misc]
    """A node that runs each time, whatever its inputs were the last time."""

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()


def output(kind: Any, name: str, tooltip: str) -> Any:
    """An output, shown by its name. (Inputs and outputs of one node have different ids: of what is
    passed on, the output's ends in "_out".)"""
    return kind.Output(name, display_name=name.removesuffix("_out"), tooltip=tooltip)


def text_and_picture(text: str, image: Any) -> dict[str, Any]:
    """What a node shows of both."""
    return {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}


def never_the_same() -> float:
    """A fingerprint that the cache never finds. A new NaN each time: one and the same object would
    equal itself inside the tuples that are compared."""
    return float("nan")


def looked_up(inputs: dict[str, Any]) -> str:
    """What the settings say for the inputs that are left to them: a change runs the node again."""
    choices = {"seed_mode": settings.SETTING, "offload": settings.SETTING, **inputs}
    names = [name for name in ("seed_mode", "offload") if choices[name] == settings.SETTING]
    return settings.fingerprint(*names) if names else ""


def seed_mode_input() -> Any:
    return io.Combo.Input(
        "seed_mode",
        options=[settings.SETTING, *SEED_MODES],
        default=settings.SETTING,
        tooltip=SEED_MODE_TOOLTIP,
    )


def budget_input(what: str = "Memory for it: ") -> Any:
    """The budget, as decode() takes it."""
    return io.String.Input("budget", default="auto", tooltip=what + BUDGET_TOOLTIP)


def strategy_input() -> Any:
    """The strategies of a decode."""
    return io.Combo.Input(
        "strategy", options=list(STRATEGIES), default="auto", tooltip=STRATEGY_TOOLTIP
    )


def precision_input() -> Any:
    """The types to compute in."""
    return io.Combo.Input(
        "precision",
        options=list(PRECISIONS),
        default="auto",
        tooltip="The type to compute in. auto: the VAE's own.",
    )


def memory_inputs() -> list[Any]:
    """How much "auto" takes, and where what does not fit may go."""
    return [
        _option(
            io.Float,
            "memory_threshold",
            'The share of the free memory that the budget "auto" takes.',
            min=0.05,
            max=1.0,
            step=0.01,
        ),
        _option(
            io.Float,
            "memory_fraction",
            "At most this share of the card's whole memory for all that this process holds there. "
            "0: no such cap.",
            min=0.0,
            max=1.0,
            step=0.01,
        ),
        _option(
            io.Boolean,
            "cpu_offload",
            "Whether activations that do not fit may lie in the host's memory.",
        ),
        _option(
            io.Int,
            "chunk_size",
            "Latent frames that go through all layers at a time (Wan, HunyuanVideo 1.5, LTX, and "
            "tiles). 0: chosen by size. Where it means nothing (HunyuanVideo layer by layer, "
            "whole, image VAEs) the report says that it is ignored.",
            min=0,
            max=256,
        ),
    ]


def running_inputs() -> list[Any]:
    """What is done between steps, and after NaN."""
    return [
        _option(
            io.Int,
            "cleanup_frequency",
            "After how many steps the allocators give back what they hold unused. -1: when it is "
            "needed. 0: never.",
            min=-1,
            max=4096,
        ),
        _option(
            io.Boolean,
            "synchronization",
            "Waits for the GPU after each step, so that the log's last line tells where it "
            "stopped. Costs time.",
        ),
        _option(
            io.Combo,
            "fallback_precision",
            "The type to start again in where the first one gives NaN. auto: fp32.",
            options=list(PRECISIONS),
        ),
    ]


def tile_inputs() -> list[Any]:
    """Sizes of slices and tiles."""
    return [
        _option(
            io.Int,
            "slice_mb",
            "streamed, HunyuanVideo and image VAEs: at most so many MB of a layer's result are "
            "computed at a time. 0: chosen by device.",
            min=0,
            max=65536,
        ),
        _option(
            io.Int,
            "statistic_passes",
            "tiled, VAEs with GroupNorm: runs over all tiles that correct the norms' statistics. "
            "Each costs one more decode.",
            min=0,
            max=8,
        ),
        _option(
            io.Int,
            "halo_pixels",
            "tiled: pixels that are decoded beyond a tile and dropped. -1: as many as the VAE "
            "looks far, which is exact without GroupNorm.",
            min=-1,
            max=1024,
        ),
        _option(
            io.Int,
            "overlap_pixels",
            "tiled: pixels that neighbouring tiles share and blend.",
            min=0,
            max=1024,
        ),
        _option(io.Int, "min_tile_pixels", "tiled: no tile is smaller than that.", min=8, max=4096),
    ]


def _option(kind: Any, name: str, tooltip: str, **more: Any) -> Any:
    return advanced(
        kind.Input(name, default=DEFAULTS[name], optional=True, tooltip=tooltip, **more)
    )


def size_inputs() -> list[Any]:
    """Width, height and frames, and a latent that goes before them."""
    return [
        io.Int.Input(
            "width", default=640, min=8, max=_LARGEST, step=8, tooltip="Of the frames, in pixels."
        ),
        io.Int.Input(
            "height", default=608, min=8, max=_LARGEST, step=8, tooltip="Of the frames, in pixels."
        ),
        io.Int.Input(
            "frames",
            default=33,
            min=1,
            max=_LARGEST,
            tooltip="Of the video. A video VAE makes 4 n + 1 (LTX: 8 n + 1); another number is "
            "rounded up to that. Of an image VAE: images in the batch.",
        ),
        io.Latent.Input(
            "samples",
            optional=True,
            tooltip="A latent: if one is connected, its size counts, not the three above.",
        ),
    ]


def asked(
    budget: str, strategy: str, precision: str, options: dict[str, Any], who: str = "VAE.decode"
) -> Asked:
    """What a node's inputs ask for. options: the optional ones. who: the node, for the log.
    ValueError (a sentence) for a budget or an option that is none."""
    request = parse_budget(budget.strip() or None)
    return Asked(request, strategy, precision, decode_options(options), who)


def decode_options(given: dict[str, Any]) -> DecodeOptions:
    """DecodeOptions of a node's optional inputs; those that are missing have their defaults.

    ValueError (a sentence) for a value that DecodeOptions does not take, and for a name that is
    none of DEFAULTS.
    """
    for name in given:
        if name not in DEFAULTS:
            raise ValueError(f"{name!r} is no option of a decode; known are {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **given}
    for name, none in _NONE_AT.items():
        if values[name] == none and not isinstance(values[name], bool):
            values[name] = None
    slice_mb = values.pop("slice_mb")
    return DecodeOptions(slice_bytes=None if slice_mb is None else slice_mb * MB, **values)


@dataclass(frozen=True)
class Wanted:
    """What the user asks about: frames of width x height pixels, or the size of a LATENT."""

    width: int
    height: int
    frames: int
    samples: Any = None


def latent_shape(family: Any, wanted: Wanted) -> tuple[int, ...]:
    """(B, C, T, H, W). Sides and frames are rounded up to what the VAE makes of whole latents.

    ValueError (a sentence) for a LATENT that is none, or of another model.
    """
    if wanted.samples is not None:
        return _of_latent(family, wanted.samples)
    for name in ("width", "height", "frames"):
        value = getattr(wanted, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more")
    time, space = family.factor
    rows, columns = -(-wanted.height // space), -(-wanted.width // space)
    channels = int(family.latent_channels)
    if family.is_image:
        return wanted.frames, channels, 1, rows, columns
    first = int(family.out_shape((1, channels, 1, rows, columns))[2])
    more = max(wanted.frames - first, 0)
    return 1, channels, 1 + -(-more // time), rows, columns


def _of_latent(family: Any, samples: Any) -> tuple[int, ...]:
    shape = tuple(latents_of(samples).shape)
    if family.is_image and len(shape) == 5:  # as ComfyUI's decode() does
        shape = (shape[0], shape[1], *shape[3:])
    if len(shape) == 4:
        shape = (*shape[:2], 1, *shape[2:])
    if len(shape) != 5 or shape[1] != family.latent_channels:
        raise ValueError(
            f"samples has shape {shape}, but this {family.name} VAE decodes "
            f"{family.latent_channels} channels: connect a latent of its model, or none"
        )
    return shape
