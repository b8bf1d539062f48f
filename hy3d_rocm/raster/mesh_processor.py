"""The texture packs' mesh processor, `mesh_inpaint_processor` or `mesh_processor`, on hy3d_rocm's.

Written from what the packs pass and take; `hy3d_rocm.raster.install()` serves it where the real
one cannot be imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hy3d_rocm.raster import functional
from hy3d_rocm.raster.arrays import door_of, plain
from hy3d_rocm.units import brief

__all__ = ["meshVerticeInpaint"]


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
