"""The module `custom_rasterizer` of the texture packs, on hy3d_rocm's rasteriser.

Written from what the packs pass and take; `hy3d_rocm.raster.install()` serves it where the real
one cannot be imported. Torch tensors on any device, or NumPy arrays; results are of the same kind.
Errors are those of hy3d_rocm.raster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hy3d_rocm.raster import functional
from hy3d_rocm.raster.arrays import check_shape, door_of, plain

__all__ = ["interpolate", "rasterize"]


def rasterize(
    pos: Any, tri: Any, resolution: Sequence[int], clamp_depth: Any = None, use_depth_prior: Any = 0
) -> tuple[Any, Any]:
    """Which face is seen in each pixel, and where on it.

    pos: (1, V, 4) clip space.  tri: (F, 3).  resolution: (height, width), integers or floats
        that are whole.
    clamp_depth: (height, width) Z/W of what was drawn before, looked at if use_depth_prior is not
        0: what is nearer is left out.

    Returns findices (height, width) int32, 0 where nothing was drawn, else the face's number + 1;
    and barycentric (height, width, 3) float32, perspective-correct.
    """
    prior = clamp_depth if use_depth_prior else None
    door_of({"pos": pos, "tri": tri}, clamp_depth=prior)
    check_shape(pos, "pos", (1, "V", 4))
    if use_depth_prior and prior is None:
        raise ValueError("use_depth_prior is set and there is no clamp_depth: give (height, width)")
    picture = functional.drawn(
        pos[0], tri, _size(resolution), "compat", prior=prior, with_depth=False
    )
    return picture.face_index, picture.barycentric


def interpolate(col: Any, findices: Any, barycentric: Any, tri: Any) -> Any:
    """Attributes of vertices at the pixels of a picture: (1, H, W, C), 0 where nothing was drawn.

    col: (1, V, C).  findices: (H, W), of integers, or of floats as they are after a concatenation
    with barycentric; ValueError where one is no whole number.  barycentric: (H, W, 3).
    tri: (F, 3).
    """
    door_of({"col": col, "findices": findices, "barycentric": barycentric, "tri": tri})
    check_shape(col, "col", (1, "V", "C"))
    found = functional.interpolate(col[0], tri, _whole(findices), barycentric)
    return found[None]


def _size(resolution: Any) -> Any:
    """(height, width) with whole floats as integers. What can be no size stays as it is, for
    `checked_size` to say so."""
    try:
        return [_side(side) for side in resolution]
    except TypeError:  # nothing to go through
        return resolution


def _side(side: Any) -> Any:
    if isinstance(side, (str, bytes, int)):
        return side
    try:
        return int(side) if float(side).is_integer() else side
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several numbers
        return side


def _whole(findices: Any) -> Any:
    """Face indices as integers. What is no whole number, or none that fits in int32, becomes -1
    (float32's 2^31 on some GPUs 2^31 - 1), which is no face's; a plain conversion makes 0 of a NaN
    on some devices."""
    if hasattr(findices, "is_floating_point"):
        if not findices.is_floating_point():
            return findices
        values = findices.detach().contiguous()
        values = values.float() if values.element_size() < 4 else values
        whole = values.int()
        strange = whole != values  # NaN, infinities, fractions, beyond int32
        if strange.device.type == "cpu" and not strange.any():
            return whole
        return whole.masked_fill(strange, -1)
    values = plain(findices, "findices")
    if values.dtype.kind != "f":
        return values
    values = values.astype(np.float64)
    fits = (values == np.floor(values)) & (np.abs(values) < 2.0**31)  # false for NaN, infinities
    return np.where(fits, values, -1).astype(np.int32)
