"""A mesh in a file, and a look at a textured one: around upstream's nodes of the texture stage."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import folder_paths
import numpy as np
import torch

import nodes as comfy_nodes

MESH_RENDER = "hy3dgen.texgen.differentiable_renderer.mesh_render"


class HarnessMeshFile:
    """Writes a mesh that trimesh makes into ComfyUI's input folder; its name. No texture."""

    RETURN_TYPES = ("STRING",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"kind": (["knot", "box"],)}}

    def make(self, kind: str) -> tuple[str]:
        import trimesh

        if kind == "box":
            mesh = trimesh.creation.box()
        else:  # hidden parts, holes, slants of all kinds: a ball in a ring
            ring = trimesh.creation.torus(0.8, 0.2, major_sections=48, minor_sections=20)
            ring.apply_transform(trimesh.transformations.rotation_matrix(0.6, [1, 0.3, 0]))
            mesh = trimesh.util.concatenate([ring, trimesh.creation.icosphere(3, 0.45)])
        name = f"harness_{kind}.glb"
        mesh.export(Path(folder_paths.get_input_directory()) / name)
        return (name,)


class HarnessTexturedView:
    """IMAGE (views, size, size, 3) of a textured mesh, through upstream's MeshRender.

    Upstream's own way ends at `raster_texture`, which its rasteriser never had; texels are read by
    torch.
    """

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "look"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"trimesh": ("TRIMESH",), "size": ("INT", {"default": 256})}}

    def look(self, trimesh: Any, size: int) -> tuple[torch.Tensor]:
        package = comfy_nodes.NODE_CLASS_MAPPINGS["Hy3DRenderMultiView"].__module__
        package = package.removesuffix(".nodes")
        module = sys.modules.get(f"{package}.{MESH_RENDER}")
        module = module or importlib.import_module(f"{package}.{MESH_RENDER}")
        renderer = module.MeshRender(default_resolution=size, texture_size=size, device="cpu")
        renderer.load_mesh(trimesh)
        picture = trimesh.visual.material.image.convert("RGB")
        texture = torch.from_numpy(np.array(picture) / 255.0).float()
        views = [_view(module, renderer, texture, elev, azim) for elev, azim in VIEWS]
        return (torch.stack(views),)


class HarnessTextureFits:
    """How far the colours at a mesh's corners are from a linear map of positions, which the texture
    was baked from: the mean, with the texture as it lies and upside down."""

    RETURN_TYPES = ()
    FUNCTION = "look"
    CATEGORY = "harness"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"trimesh": ("TRIMESH",)}}

    def look(self, trimesh: Any) -> dict[str, Any]:
        picture = np.asarray(trimesh.visual.material.image.convert("RGB")) / 255.0
        height, width = picture.shape[:2]
        u, v = np.clip(np.asarray(trimesh.visual.uv, np.float64), 0, 1).T
        places = np.column_stack([trimesh.vertices, np.ones(len(u))])
        misfit = {}
        for name, row in (("as it lies", 1 - v), ("upside down", v)):
            at = np.rint(row * (height - 1)).astype(int), np.rint(u * (width - 1)).astype(int)
            colours = picture[at]
            linear = np.linalg.lstsq(places, colours, rcond=None)[0]
            misfit[name] = float(np.abs(colours - places @ linear).mean())
        return {"ui": {"misfit": [misfit]}}


VIEWS = ((20, 30), (20, 150), (20, 270), (70, 30))


def _view(module: Any, renderer: Any, texture: Any, elev: float, azim: float) -> torch.Tensor:
    _, clip = renderer.get_pos_from_mvp(elev, azim, None, None)
    size = renderer.default_resolution
    drawn, _ = renderer.raster_rasterize(clip, renderer.pos_idx, resolution=size)
    uv, _ = renderer.raster_interpolate(renderer.vtx_uv[None], drawn, renderer.uv_idx)
    seen = torch.nn.functional.grid_sample(
        texture.permute(2, 0, 1)[None], uv * 2 - 1, align_corners=True
    )[0].permute(1, 2, 0)
    return seen * (drawn[0, ..., 3:] > 0)
