"""What is patched in ComfyUI-Hunyuan3DWrapper: one PatchSpec a file, in the order of a workflow.

Each can be switched off by its name, in HY3D_ROCM_PATCH and in ComfyUI's settings.
"""

from __future__ import annotations

from hy3d_rocm.comfy.patch import PatchSpec
from hy3d_rocm.comfy.patches import delight, inpaint, loaders, mesh, multiview, render, vae_decode

SPECS: tuple[PatchSpec, ...] = (
    delight.SPEC,
    multiview.SPEC,
    mesh.SPEC,
    vae_decode.SPEC,
    loaders.SPEC,
    render.SPEC,
    inpaint.SPEC,
)

__all__ = ["SPECS"]
