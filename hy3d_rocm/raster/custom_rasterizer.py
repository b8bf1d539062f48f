"""The module `custom_rasterizer` of the texture packs, on hy3d_rocm's rasteriser.

Written from what the packs pass and take; `hy3d_rocm.raster.install()` serves it where the real
one cannot be imported. Torch tensors on any device, or NumPy arrays; results are of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hy3d_rocm.raster import functional
from hy3d_rocm.raster.arrays import check_shape

__all__ = ["interpolate", "rasterize"]


def rasterize(
    pos: Any,
    tri: Any,
    resolution: Sequence[int],
    clamp_depth: Any = None,
    use_depth_prior: Any = 0,
) -> tuple[Any, Any]:
    """Which face is seen in each pixel, and where on it.

    pos: (1, V, 4) clip space.  tri: (F, 3).  resolution: (height, width).
    clamp_depth: (height, width) Z/W of what was drawn before, looked at if use_depth_prior is not
        0: what is nearer is left out.

    Returns findices (height, width) int32, 0 where nothing was drawn, else the face's number + 1;
    and barycentric (height, width, 3) float32, perspective-correct.
    """
    check_shape(pos, "pos", (1, "V", 4))
    prior = clamp_depth if use_depth_prior else None
    if use_depth_prior and prior is None:
        raise ValueError("use_depth_prior is set and there is no clamp_depth: give (height, width)")
    size = [int(side) if float(side).is_integer() else side for side in resolution]
    picture = functional.drawn(pos[0], tri, size, "compat", prior=prior, with_depth=False)
    return picture.face_index, picture.barycentric


def interpolate(col: Any, findices: Any, barycentric: Any, tri: Any) -> Any:
    """Attributes of vertices at the pixels of a picture: (1, H, W, C), 0 where nothing was drawn.

    col: (1, V, C).  findices: (H, W), of integers, or of floats as they are after a concatenation
    with barycentric.  barycentric: (H, W, 3).  tri: (F, 3).
    """
    check_shape(col, "col", (1, "V", "C"))
    found = functional.interpolate(col[0], tri, _whole(findices), barycentric)
    return found[None]


def _whole(findices: Any) -> Any:
    """Face indices as integers. A NaN or infinity becomes one that is out of range."""
    if hasattr(findices, "is_floating_point"):
        return findices.int() if findices.is_floating_point() else findices
    with np.errstate(invalid="ignore"):
        return findices.astype(np.int32) if findices.dtype.kind == "f" else findices
