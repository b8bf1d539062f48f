"""What must be ready before other packs are imported: set up before torch is there.

What a hook asks when such an import happens is imported then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hy3d_rocm.diagnose.env.choices import read_patch_choice
from hy3d_rocm.framepack import importing
from hy3d_rocm.raster import finder


def switched_on(name: str, environ: Mapping[str, str]) -> bool:
    """Neither HY3D_ROCM_PATCH=off, nor -NAME in it, nor its switch in ComfyUI's settings."""
    from hy3d_rocm.comfy import settings

    choice = read_patch_choice(environ)
    if choice.mode == "off" or name in choice.left_out:
        return False
    return name not in settings.current(environ).patches_off


def prepare_framepack(environ: Mapping[str, str] = os.environ) -> importing.Hook:
    """Has FramePackWrapper imported where torch.cuda has no current device. No AMD card is asked
    for: nothing is changed where the driver answers."""

    def device() -> str:
        import comfy.model_management as management

        return str(management.get_torch_device())

    return importing.install(lambda: switched_on("framepack-import", environ), device)


def prepare_raster(environ: Mapping[str, str] = os.environ) -> finder.Installed:
    """`import custom_rasterizer` of any pack is served where it cannot be had, unless HY3D_RASTER
    is off. No AMD card is asked for: what cannot be imported is missing on any machine."""
    return finder.install(lambda: switched_on("raster", environ))
