"""`import custom_rasterizer` of any pack, served where it cannot be had: set up before torch is
there, since packs may import it as soon as they are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hy3d_rocm.comfy.switches import switched_on
from hy3d_rocm.raster import finder

NAME = "raster"


def prepare(environ: Mapping[str, str] | None = None) -> finder.Installed:
    """Puts the finder in place; again is nothing new.

    HY3D_RASTER=off, HY3D_ROCM_PATCH=off, -raster in that and the switch in the settings have
    nothing served. No AMD card is asked for: what cannot be imported is missing on any machine.
    """
    asked = os.environ if environ is None else environ
    return finder.install(lambda: switched_on(NAME, asked))
