"""A rasteriser on the CPU for the texture stage, and the modules that it replaces.

Names are loaded on first use: `install` costs neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm._lazy import names

if TYPE_CHECKING:
    from hy3d_rocm.raster.arrays import Raster, Scattered
    from hy3d_rocm.raster.finder import Installed, install, status, uninstall
    from hy3d_rocm.raster.functional import (
        inpaint_vertices,
        interpolate,
        rasterize,
        scatter,
        vertex_normals,
    )

__all__ = [
    "Installed", "Raster", "Scattered", "inpaint_vertices", "install", "interpolate", "rasterize",
    "scatter", "status", "uninstall", "vertex_normals",
]  # fmt: skip
_HOME = {
    **dict.fromkeys(__all__, "functional"),
    **dict.fromkeys(("Installed", "install", "status", "uninstall"), "finder"),
    **dict.fromkeys(("Raster", "Scattered"), "arrays"),
}
__getattr__, __dir__ = names(__name__, _HOME)
