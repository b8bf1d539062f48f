"""The inputs of nodes that are asked about a decode before there is a latent."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

_LARGEST = 16384


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
