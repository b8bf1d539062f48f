"""Hy3DMeshVerticeInpaintTexture and MeshRender.uv_inpaint: the same bits from the C core.

Upstream's meshVerticeInpaint is plain Python, minutes for what takes the C core a tenth of a
second. Both have the same bits (tests/unit/raster/test_inpaint.py calls upstream's); what was not
compared is left to upstream.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from hy3d_rocm import _native
from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Upstream, parameters_missing
from hy3d_rocm.comfy.patches.render import MESH_RENDER
from hy3d_rocm.raster import functional

logger = logging.getLogger("hy3d_rocm")

PROCESSOR = "hy3dgen.texgen.differentiable_renderer.mesh_processor"
FUNCTION = "meshVerticeInpaint"
PARAMETERS = ("texture", "mask", "vtx_pos", "vtx_uv", "pos_idx", "uv_idx", "method")


def _in_c(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's function, computed by the C core where that has been compared with it."""

    @functools.wraps(original)
    def inpaint(
        texture: Any, mask: Any, vtx_pos: Any, vtx_uv: Any, pos_idx: Any, uv_idx: Any,
        method: str = "smooth",
    ) -> Any:  # fmt: skip
        given = (texture, mask, vtx_pos, vtx_uv, pos_idx, uv_idx)
        switched_off = "inpaint" in settings.current().patches_off
        if not switched_off and method == "smooth" and _native.available and _as_compared(*given):
            try:
                return functional.inpaint_vertices(*given)
            except (ValueError, TypeError, _native.Hy3dError) as error:
                logger.debug("%s is left to upstream: %s", FUNCTION, error)
        return original(*given, method)

    return inpaint


def _as_compared(texture: Any, mask: Any, *mesh: Any) -> bool:
    """Whether these are arrays of the kinds that upstream's nodes pass, inside the texture."""
    if not all(isinstance(array, np.ndarray) for array in (texture, mask, *mesh)):
        return False
    positions, uv, *indices = mesh
    floats = all(array.dtype == np.float32 for array in (texture, positions, uv))
    integers = all(array.dtype.kind == "i" for array in indices)
    return bool(
        floats and integers and mask.dtype == np.uint8
        and uv.size and uv.min() >= 0.0 and uv.max() <= 1.0
    )  # fmt: skip


def _expects(upstream: Upstream) -> str | None:
    for name in (MESH_RENDER, PROCESSOR):
        found = getattr(upstream.module(name), FUNCTION, None)
        different = (
            f"{name} has no {FUNCTION}" if found is None else parameters_missing(found, PARAMETERS)
        )
        if different is not None:
            return different
    return None


def _changes(upstream: Upstream) -> list[Change]:
    """The node imports it from the one module when it runs, MeshRender has it from its import."""
    return [Change(upstream.module(name), FUNCTION, _in_c) for name in (PROCESSOR, MESH_RENDER)]


SPEC = PatchSpec("inpaint", "in-painting over the mesh by the C core", _expects, _changes)
