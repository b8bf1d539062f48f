"""The texture packs' MeshRender, unmodified, and meshes whose pictures are known in numbers.

HY3D_WRAPPER names a checkout of ComfyUI-Hunyuan3DWrapper, HY3D_VISUALBRUNO one of
ComfyUI-Hunyuan3d-2-1; nothing of either is kept here, and nothing is fetched. HY3D_PICTURES names
a folder for the pictures, HY3D_PACKS_DEVICE a device in place of "cpu". OpenCV and trimesh must be
there, as the packs need them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

# Pack -> variable, folder of its renderer in there, the renderer's module.
PACKS = {
    "kijai": ("HY3D_WRAPPER", "hy3dgen/texgen/differentiable_renderer", "mesh_render"),
    "visualbruno": ("HY3D_VISUALBRUNO", "hy3dpaint/DifferentiableRenderer", "MeshRender"),
}
DEVICE = os.environ.get("HY3D_PACKS_DEVICE", "cpu")
SCALE = 1.15  # of the packs: a mesh is scaled so that its farthest vertex is at SCALE / 2
RADIUS = SCALE / 2
# What the packs do to a mesh's coordinates, a reflection: so their normals point inwards.
AXES = np.array([[-1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
INWARDS = float(np.linalg.det(AXES))


def renderer_module(pack: str) -> ModuleType:
    """The pack's module with MeshRender; the test is skipped where it is not to be had."""
    variable, folder, module = PACKS[pack]
    root = os.environ.get(variable, "")
    if not (Path(root) / folder / f"{module}.py").is_file() or not root:
        pytest.skip(f"{variable} names no checkout with {folder}/{module}.py")
    pytest.importorskip("cv2")
    pytest.importorskip("trimesh")
    name = f"pack_of_{pack}"
    if name not in sys.modules:  # without the package's __init__, which wants a diffusion model
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(Path(root) / folder)]
    return importlib.import_module(f"{name}.{module}")


def cube() -> Any:
    """Six squares with corners of their own, each with its chart: side 2, in a 3 x 2 atlas."""
    import trimesh

    corners, faces, uvs = [], [], []
    for number in range(6):
        axis, sign = number // 2, 1.0 - 2.0 * (number % 2)
        u, v = np.roll(np.eye(3), 1, axis=0)[[axis, (axis + 1) % 3]]
        normal = np.cross(u, v) * sign
        column, row = number % 3, number // 3
        for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
            corners.append(normal + a * sign * u + b * v)
            uvs.append(((column + 0.5 + 0.42 * a) / 3, (row + 0.5 + 0.42 * b) / 2))
        at = 4 * number
        faces += [(at, at + 1, at + 2), (at, at + 2, at + 3)]
    return _mesh(corners, faces, uvs, trimesh)


def ball() -> Any:
    """An icosphere of radius 1, texture coordinates by longitude and latitude (not one-to-one)."""
    import trimesh

    round_one = trimesh.creation.icosphere(subdivisions=4)
    x, y, z = round_one.vertices.T
    uvs = np.stack([np.arctan2(y, x) / (2 * np.pi) + 0.5, np.arccos(z) / np.pi], axis=1)
    return _mesh(round_one.vertices, round_one.faces, uvs, trimesh)


def _mesh(corners: Any, faces: Any, uvs: Any, trimesh: Any) -> Any:
    mesh = trimesh.Trimesh(np.array(corners, float), np.array(faces), process=False)
    mesh.visual = trimesh.visual.TextureVisuals(uv=np.array(uvs, float))
    return mesh


class Camera:
    """An orthographic view as the packs have it, in float64: where a pixel's ray goes."""

    def __init__(self, module: ModuleType, renderer: Any, elev: float, azim: float) -> None:
        matrix = module.get_mv_matrix(
            elev=elev, azim=azim, camera_distance=renderer.camera_distance, center=None
        )
        self.turn = matrix[:3, :3].astype(np.float64)
        self.pixels = renderer.default_resolution[0]
        self.half = renderer.ortho_scale / 2

    @property
    def towards(self) -> Any:
        """The unit vector from the object to the camera."""
        return self.turn[2]

    def rays(self) -> Any:
        """(H, W, 3): a point of each pixel's ray, in the plane through the origin."""
        steps = (2 * np.arange(self.pixels) / (self.pixels - 1) - 1) * self.half
        x, y = np.meshgrid(steps, steps)
        return x[..., None] * self.turn[0] + y[..., None] * self.turn[1]

    def across(self, points: Any) -> Any:
        """(..., 2): what a camera sees of points, in units of the object."""
        return points @ self.turn[:2].T


def cube_seen(camera: Camera, margin: float) -> tuple[Any, Any, Any]:
    """Of each pixel's ray and the cube in the packs' coordinates: where it enters (H, W, 3), the
    outward normal there (H, W, 3), and 1 for a hit, 0 for a miss, -1 for what is nearer than
    `margin` to an edge or an outline."""
    half = RADIUS / np.sqrt(3)
    origin, along = camera.rays(), -camera.towards
    with np.errstate(divide="ignore", invalid="ignore"):
        enters = (-np.sign(along) * half - origin) / along
        leaves = (np.sign(along) * half - origin) / along
    flat = np.abs(along) < 1e-9
    inside = np.abs(origin) < half
    enters = np.where(flat, np.where(inside, -np.inf, np.inf), enters)
    leaves = np.where(flat, np.where(inside, np.inf, -np.inf), leaves)
    axis = enters.argmax(-1)
    first, last = enters.max(-1), leaves.min(-1)
    ordered = np.sort(enters, -1)
    steepest = np.where(flat, np.inf, np.abs(along))
    with np.errstate(invalid="ignore"):
        near = np.minimum(np.abs(last - first), ordered[..., 2] - ordered[..., 1])
    near = np.nan_to_num(near, nan=np.inf)  # of infinities: a ray between two sides
    near_side = np.abs(np.abs(origin) - half)[..., flat].min(-1, initial=np.inf)
    state = np.where(first < last, 1, 0)
    state[(near * steepest.min() < margin) | (near_side < margin)] = -1
    points = origin + np.where(np.isfinite(first), first, 0.0)[..., None] * along
    normals = -np.sign(along)[axis][..., None] * np.eye(3)[axis]
    return points, normals, state


def host(values: Any) -> Any:
    """A tensor on any device, an array or a PIL picture as float64."""
    return np.asarray(values.cpu() if torch.is_tensor(values) else values, np.float64)


def keep_picture(name: str, picture: Any) -> None:
    """A picture (H, W, 3) of 0..1 as a PNG in HY3D_PICTURES, if that is set."""
    folder = os.environ.get("HY3D_PICTURES", "")
    if folder:
        from PIL import Image

        Path(folder).mkdir(parents=True, exist_ok=True)
        pixels = (np.clip(host(picture), 0, 1) * 255).astype(np.uint8)
        Image.fromarray(pixels.squeeze()).save(Path(folder) / f"{name}.png")


def texture_view(renderer: Any, camera: Sequence[float], texture: Any) -> tuple[Any, Any]:
    """The textured mesh from one side: (H, W, 3), and (H, W, 2) the texture coordinates.

    The packs' own way stops at `raster_texture`, which their rasteriser never had; texels are read
    by torch.
    """
    module = sys.modules[type(renderer).__module__]
    matrix = module.get_mv_matrix(
        elev=camera[0], azim=camera[1], camera_distance=renderer.camera_distance, center=None
    )
    seen = module.transform_pos(matrix, renderer.vtx_pos, keepdim=True)
    clip = module.transform_pos(renderer.camera_proj_mat, seen)
    drawn, _ = renderer.raster_rasterize(
        clip, renderer.pos_idx, resolution=renderer.default_resolution
    )
    uv, _ = renderer.raster_interpolate(renderer.vtx_uv[None], drawn, renderer.uv_idx)
    found = torch.nn.functional.grid_sample(
        texture.permute(2, 0, 1)[None], uv * 2 - 1, align_corners=True
    )[0].permute(1, 2, 0)
    return found * (drawn[0, ..., 3:] > 0), uv[0]
