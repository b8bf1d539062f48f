"""Pictures of meshes on the CPU: normals, positions, depth, faces, shaded (docs/raster.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.render.camera import View as View
    from examples.render.camera import six_views as six_views
    from examples.render.camera import views_around as views_around
    from examples.render.drawing import Drawing as Drawing
    from examples.render.drawing import draw as draw
    from examples.render.made import make_mesh as make_mesh
    from examples.render.maps import color_map as color_map
    from examples.render.maps import depth_map as depth_map
    from examples.render.maps import face_map as face_map
    from examples.render.maps import faces_of_colors as faces_of_colors
    from examples.render.maps import mask_map as mask_map
    from examples.render.maps import normal_map as normal_map
    from examples.render.maps import position_map as position_map
    from examples.render.maps import shaded_map as shaded_map
    from examples.render.meshes import Mesh as Mesh
    from examples.render.meshes import MeshError as MeshError
    from examples.render.meshes import Part as Part
    from examples.render.meshes import mesh_of_parts as mesh_of_parts
    from examples.render.meshes import read_mesh as read_mesh

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
