"""Whether something of ours is switched on, asked when it is about to act."""

from __future__ import annotations

from collections.abc import Mapping


def switched_on(name: str, environ: Mapping[str, str]) -> bool:
    """Neither HY3D_ROCM_PATCH=off, nor -NAME in it, nor its switch in ComfyUI's settings."""
    from hy3d_rocm.comfy import settings
    from hy3d_rocm.env.choices import read_patch_choice

    choice = read_patch_choice(environ)
    if choice.mode == "off" or name in choice.left_out:
        return False
    return name not in settings.current(environ).patches_off
