"""Pictures of meshes on the CPU: normals, positions, depth, faces, shaded (docs/raster.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.render.camera import View as View
    from hy3d_rocm.render.camera import six_views as six_views
    from hy3d_rocm.render.camera import views_around as views_around
    from hy3d_rocm.render.drawing import Drawing as Drawing
    from hy3d_rocm.render.drawing import draw as draw
    from hy3d_rocm.render.made import make_mesh as make_mesh
    from hy3d_rocm.render.maps import color_map as color_map
    from hy3d_rocm.render.maps import depth_map as depth_map
    from hy3d_rocm.render.maps import face_map as face_map
    from hy3d_rocm.render.maps import faces_of_colors as faces_of_colors
    from hy3d_rocm.render.maps import mask_map as mask_map
    from hy3d_rocm.render.maps import normal_map as normal_map
    from hy3d_rocm.render.maps import position_map as position_map
    from hy3d_rocm.render.maps import shaded_map as shaded_map
    from hy3d_rocm.render.meshes import Mesh as Mesh
    from hy3d_rocm.render.meshes import MeshError as MeshError
    from hy3d_rocm.render.meshes import Part as Part
    from hy3d_rocm.render.meshes import mesh_of_parts as mesh_of_parts
    from hy3d_rocm.render.meshes import read_mesh as read_mesh

_HOME = {
    "View": "camera", "six_views": "camera", "views_around": "camera",
    "Drawing": "drawing", "draw": "drawing",
    "make_mesh": "made",
    "color_map": "maps", "depth_map": "maps", "face_map": "maps", "faces_of_colors": "maps",
    "mask_map": "maps", "normal_map": "maps", "position_map": "maps", "shaded_map": "maps",
    "Mesh": "meshes", "MeshError": "meshes", "Part": "meshes", "mesh_of_parts": "meshes",
    "read_mesh": "meshes",
}  # fmt: skip

__all__ = [
    "Drawing", "Mesh", "MeshError", "Part", "View", "color_map", "depth_map", "draw", "face_map",
    "faces_of_colors", "make_mesh", "mask_map", "mesh_of_parts", "normal_map", "position_map",
    "read_mesh", "shaded_map", "six_views", "views_around",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
