"""What the rasteriser's functions return: NumPy arrays or torch tensors, as their inputs were."""

from __future__ import annotations

from typing import Any, NamedTuple


class Raster(NamedTuple):
    """A picture of triangles.

    face_index: (H, W) int32, 0 where nothing was drawn, else the face's number + 1.
    barycentric: (H, W, 3) float32, perspective-correct, 0 where nothing was drawn.
    depth: (H, W) float32, Z/W; +inf where nothing was drawn.
    """

    face_index: Any
    barycentric: Any
    depth: Any


class Scattered(NamedTuple):
    """Values put into a texture.

    texture: (H, W, C) float32, the weighted mean, 0 where nothing fell.
    total: (H, W) float32, the sum of the weights.
    """

    texture: Any
    total: Any
