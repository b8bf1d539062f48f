"""The modules `custom_rasterizer` and `mesh_inpaint_processor` or `mesh_processor` of the texture
packs, on hy3d_rocm's rasteriser.

Written from what the packs pass and take; `hy3d_rocm.raster.install()` serves them where the real
ones cannot be imported. Torch tensors on any device, or NumPy arrays; results are of the same kind,
those of the mesh processor NumPy arrays. Errors are those of hy3d_rocm.raster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hy3d_rocm.raster import functional
from hy3d_rocm.raster.arrays import check_shape, door_of, plain
from hy3d_rocm.units import brief


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


def meshVerticeInpaint(  # noqa: N802  (the packs' name)
    texture: Any,
    mask: Any,
    vtx_pos: Any,
    vtx_uv: Any,
    pos_idx: Any,
    uv_idx: Any,
    method: str = "smooth",
) -> tuple[Any, Any]:
    """Colours at vertices that the mask leaves out, from their neighbours over the mesh.

    texture: (H, W, C), of any real numbers.
    mask: (H, W), not 0 where the texture is known, of any real numbers or bool, but no NaN.
    vtx_pos: (V, 3).  vtx_uv: (U, 2).  pos_idx, uv_idx: (F, 3) into them, whole numbers.
    Arrays, lists or tensors of any device. Returns NumPy arrays, float32 and uint8; the inputs
    stay as they are. In the mask returned, what is a whole number up to 255 stays that, other
    numbers that are not 0 become 255, as where a colour was found.

    TypeError for what is no array of numbers and for masked arrays, else as in hy3d_rocm.raster.
    """
    return functional.inpaint_vertices(
        _floats(texture, "texture"), _mask(mask), _floats(vtx_pos, "vtx_pos"),
        _floats(vtx_uv, "vtx_uv"), _integers(pos_idx, "pos_idx"), _integers(uv_idx, "uv_idx"),
        method=method,
    )  # fmt: skip


def _array(value: Any, name: str) -> Any:
    """What NumPy makes of it, tensors of any device included; no copy where none is needed.
    TypeError where that is none of real numbers."""
    if hasattr(value, "detach"):
        value = _of_tensor(value, name)
    value = plain(value, name)
    try:
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is {brief(value)}: give an array of numbers") from error
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} is of {found.dtype}: give an array of real numbers")
    return found


def _of_tensor(tensor: Any, name: str) -> Any:
    door_of({name: tensor})  # it has data
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dense.is_floating_point() and dense.element_size() < 4:
        dense = dense.float()  # NumPy has no bfloat16
    try:
        return dense.numpy()
    except TypeError:
        raise TypeError(f"{name} is {dense.dtype}: give an array of real numbers") from None


def _floats(value: Any, name: str) -> Any:
    with np.errstate(over="ignore"):  # as in hy3d_rocm.raster: an infinity
        return _array(value, name).astype(np.float32, copy=False)


def _mask(value: Any) -> Any:
    mask = _array(value, "mask")
    if mask.dtype.kind == "b" or mask.dtype == np.uint8:
        return mask.astype(np.uint8, copy=False)
    if (unknown := np.isnan(mask)).any():
        raise ValueError(
            f"mask is NaN at {_first(unknown)}: give a number, 0 where the texture is not known"
        )
    kept = (mask >= 0) & (mask <= 255) & (mask == np.floor(mask))
    known = np.full(mask.shape, 255, np.uint8)
    known[kept] = mask[kept]
    return known


def _integers(value: Any, name: str) -> Any:
    found = _array(value, name)
    if found.dtype.kind == "f":
        found = found.astype(np.float64)
        wrong = (found != np.floor(found)) | ~(abs(found) < 2.0**31)  # NaN and infinities too
        if wrong.any():
            at = _first(wrong)
            raise ValueError(f"{name} is {found[at]} at {at}: give indices, whole numbers")
    return found if found.dtype.kind in "iu" else found.astype(np.int64)


def _first(wrong: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])
