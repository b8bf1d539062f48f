"""A rasteriser on the CPU for the texture stage, and the modules that it replaces.

Names are loaded on first use: `install` costs neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
