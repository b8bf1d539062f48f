"""The inputs that decode, encode and plan have in common: what DecodeOptions can be told.

All of them are optional, so that prompts saved without them still run, and folded away where the
front end knows advanced inputs.
"""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy.nodes.common import advanced
from hy3d_rocm.comfy.option_values import DEFAULTS
from hy3d_rocm.decoding.checks import STRATEGIES
from hy3d_rocm.decoding.precision import PRECISIONS

BUDGET_TOOLTIP = (
    '"auto": from what is free now. Or a size such as "6GB" or "800MB", or a share of the card\'s '
    'memory such as "80%".'
)
STRATEGY_TOOLTIP = (
    "whole: the VAE's own code. streamed: the same layers on parts of the video, exact. tiled: "
    "tiles, an approximation. cpu: streamed on the host. auto: the first that fits."
)
ENCODE_STRATEGIES = tuple(name for name in STRATEGIES if name != "tiled")


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
        _float(
            "memory_threshold",
            0.05,
            1.0,
            'The share of the free memory that the budget "auto" takes.',
        ),
        _float(
            "memory_fraction",
            0.0,
            1.0,
            "At most this share of the card's whole memory for all "
            "that this process holds there. 0: no such cap.",
        ),
        advanced(
            io.Boolean.Input(
                "cpu_offload",
                default=DEFAULTS["cpu_offload"],
                optional=True,
                tooltip="Whether activations that do not fit may lie in the host's memory.",
            )
        ),
        _int(
            "chunk_size",
            0,
            256,
            "Latent frames that go through all layers at a time (Wan, "
            "HunyuanVideo 1.5, LTX, and tiles). 0: chosen by size. Where it means nothing "
            "(HunyuanVideo layer by layer, whole, image VAEs) the report says that it is ignored.",
        ),
    ]


def running_inputs() -> list[Any]:
    """What is done between grains, and after NaN."""
    return [
        _int(
            "cleanup_frequency",
            -1,
            4096,
            "After how many grains the allocators give back what "
            "they hold unused. -1: when it is needed. 0: never.",
        ),
        advanced(
            io.Boolean.Input(
                "synchronization",
                default=DEFAULTS["synchronization"],
                optional=True,
                tooltip="Waits for the GPU after each grain, so that the log's last line tells "
                "where it stopped. Costs time.",
            )
        ),
        advanced(
            io.Combo.Input(
                "fallback_precision",
                options=list(PRECISIONS),
                default=DEFAULTS["fallback_precision"],
                optional=True,
                tooltip="The type to start again in where the first one gives NaN. auto: fp32.",
            )
        ),
    ]


def tile_inputs() -> list[Any]:
    """Sizes of slices and tiles."""
    return [
        _int(
            "slice_mb",
            0,
            65536,
            "streamed, HunyuanVideo and image VAEs: at most so many MB of a "
            "layer's result are computed at a time. 0: chosen by device.",
        ),
        _int(
            "statistic_passes",
            0,
            8,
            "tiled, VAEs with GroupNorm: runs over all tiles that "
            "correct the norms' statistics. Each costs one more decode.",
        ),
        _int(
            "halo_pixels",
            -1,
            1024,
            "tiled: pixels that are decoded beyond a tile and dropped. "
            "-1: as many as the VAE looks far, which is exact without GroupNorm.",
        ),
        _int("overlap_pixels", 0, 1024, "tiled: pixels that neighbouring tiles share and blend."),
        _int("min_tile_pixels", 8, 4096, "tiled: no tile is smaller than that."),
    ]


def _int(name: str, low: int, high: int, tooltip: str) -> Any:
    return advanced(
        io.Int.Input(
            name,
            default=DEFAULTS[name],
            min=low,
            max=high,
            optional=True,
            tooltip=tooltip,
        )
    )


def _float(name: str, low: float, high: float, tooltip: str) -> Any:
    return advanced(
        io.Float.Input(
            name,
            default=DEFAULTS[name],
            min=low,
            max=high,
            step=0.01,
            optional=True,
            tooltip=tooltip,
        )
    )
