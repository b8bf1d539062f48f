"""A rasteriser on the CPU for the texture stage, and the modules that it replaces.

Names are loaded on first use: `install` costs neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.raster.finder import Installed as Installed
    from hy3d_rocm.raster.finder import install as install
    from hy3d_rocm.raster.finder import status as status
    from hy3d_rocm.raster.finder import uninstall as uninstall
    from hy3d_rocm.raster.functional import inpaint_vertices as inpaint_vertices
    from hy3d_rocm.raster.functional import interpolate as interpolate
    from hy3d_rocm.raster.functional import rasterize as rasterize
    from hy3d_rocm.raster.functional import scatter as scatter
    from hy3d_rocm.raster.functional import vertex_normals as vertex_normals
    from hy3d_rocm.raster.results import Raster as Raster
    from hy3d_rocm.raster.results import Scattered as Scattered

_HOME = {
    "Installed": "finder",
    "Raster": "results",
    "Scattered": "results",
    "inpaint_vertices": "functional",
    "install": "finder",
    "interpolate": "functional",
    "rasterize": "functional",
    "scatter": "functional",
    "status": "finder",
    "uninstall": "finder",
    "vertex_normals": "functional",
}

__all__ = [
    "Installed", "Raster", "Scattered", "inpaint_vertices", "install", "interpolate", "rasterize",
    "scatter", "status", "uninstall", "vertex_normals",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
