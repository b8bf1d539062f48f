"""The texture packs' mesh processor, `mesh_inpaint_processor` or `mesh_processor`, on hy3d_rocm's.

Written from what the packs pass and take; `hy3d_rocm.raster.install()` serves it where the real
one cannot be imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hy3d_rocm.raster import functional

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

    texture: (H, W, C), of any numbers.  mask: (H, W), not 0 where the texture is known.
    vtx_pos: (V, 3).  vtx_uv: (U, 2).  pos_idx, uv_idx: (F, 3) into them.
    Arrays, lists or tensors of any device. Returns NumPy arrays, float32 and uint8; the inputs
    stay as they are.
    """
    return functional.inpaint_vertices(
        _array(texture, np.float32), _array(mask, np.uint8), _array(vtx_pos, np.float32),
        _array(vtx_uv, np.float32), _integers(pos_idx), _integers(uv_idx), method=method,
    )  # fmt: skip


def _array(value: Any, dtype: type) -> Any:
    """What NumPy makes of it, tensors of any device included; no copy where it fits."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=dtype)


def _integers(value: Any) -> Any:
    found = _array(value, None)  # type: ignore[arg-type]
    return found if found.dtype.kind in "iu" else found.astype(np.int64)
