"""One view of a mesh, rasterised: which face each sample shows, and where on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.render.camera import View
from examples.render.meshes import Mesh

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Indices = npt.NDArray[np.int32]

MOST_PIXELS_A_SIDE = 32768  # of the rasteriser
# Samples that NumPy works on at a time: what it makes on the way stays in the cache.
BLOCK = 16384


@dataclass(frozen=True)
class Drawing:
    """What is seen of `mesh` from `view` in a picture of `size` (height, width).

    Every pixel has `supersample` squared samples. Of the K samples that show something: `samples`
    (K,) int64, their numbers in the picture of samples; `faces` (K,) int32, the face + 1;
    `barycentric` (K, 3). raster_seconds: what the rasteriser took.
    """

    mesh: Mesh
    view: View
    size: tuple[int, int]
    supersample: int
    samples: npt.NDArray[np.int64]
    faces: Indices
    barycentric: Floats
    raster_seconds: float
    threads: int | None

    def interpolate(self, attributes: Floats, faces: Indices) -> Floats:
        """(K, C): attributes (V, C), of which the corners of each face (F, 3) have three."""
        from hy3d_rocm.raster import interpolate

        found: Floats = interpolate(
            attributes, faces, self.faces, self.barycentric, threads=self.threads
        )
        return found

    def positions(self) -> Floats:
        """(K, 3): where on the mesh; the mesh fits the ball of radius 1."""
        return self.interpolate(self.mesh.positions, self.mesh.faces)

    @cached_property
    def normals(self) -> Floats:
        """(K, 3) of length 1, in mesh axes, outwards where the faces' corners go
        counter-clockwise seen from outside."""
        normals = self.interpolate(self.mesh.normals, self.mesh.normal_faces)
        length = np.sqrt(np.einsum("ij,ij->i", normals, normals))[:, None]
        np.divide(normals, length, out=normals, where=length > 0)
        return normals

    def distances(self) -> Floats:
        """(K,): from the camera along its axis, in radii of the mesh."""
        away = self.view.distances(self.mesh.positions)
        return self.interpolate(away[:, None], self.mesh.faces)[:, 0]

    def seen_from_behind(self) -> npt.NDArray[np.bool_]:
        """(K,): whether the face shows its back."""
        corner = self.mesh.positions[self.mesh.faces[:, 0]]
        normals, toward = self.mesh.face_normals, self.view.axes[2].astype(np.float32)
        if self.view.fov is None:
            away = normals @ toward < 0
        else:
            camera = toward * np.float32(self.view.camera_distance)
            away = np.einsum("ij,ij->i", normals, camera - corner) < 0
        behind: npt.NDArray[np.bool_] = away[self.faces - 1]
        return behind

    def colors(self) -> Floats:
        """(K, 3) in 0..1: texture times colour, as they are stored; 1 where a face has neither."""
        colors = self.interpolate(self.mesh.colors, self.mesh.faces)
        if not self.mesh.textures:
            return colors
        uvs = self.interpolate(self.mesh.uvs, self.mesh.faces)
        which = self.mesh.face_texture[self.faces - 1]
        for number, texture in enumerate(self.mesh.textures):
            at = np.flatnonzero(which == number)
            for start in range(0, len(at), BLOCK):
                part = at[start : start + BLOCK]
                colors[part] *= sample_texture(texture, uvs[part])
        return colors

    def resolved(self, values: Floats) -> tuple[Floats, Floats]:
        """(means (H, W, C) over the covered samples of each pixel, 0 where none is; coverage
        (H, W) in 0..1) of values (K, C)."""
        (height, width), s = self.size, self.supersample
        plane = np.zeros((height * s * width * s, values.shape[1]), np.float32)
        plane[self.samples] = values
        covered = np.zeros(len(plane), np.float32)
        covered[self.samples] = 1
        if s > 1:
            plane = _sum_of_blocks(plane.reshape(height, s, width, s, -1))
            covered = _sum_of_blocks(covered.reshape(height, s, width, s))
            np.divide(plane, covered[..., None], out=plane, where=covered[..., None] > 0)
            covered /= np.float32(s * s)
        return plane.reshape(height, width, -1), covered.reshape(height, width)

    def face_picture(self) -> Indices:
        """(H, W): the face + 1, 0 where none is; of several samples the first that shows one."""
        (height, width), s = self.size, self.supersample
        plane = np.zeros(height * s * width * s, np.int32)
        plane[self.samples] = self.faces
        if s == 1:
            return plane.reshape(height, width)
        blocks = plane.reshape(height, s, width, s).swapaxes(1, 2).reshape(height, width, s * s)
        first = (blocks > 0).argmax(axis=2)[..., None]
        return np.take_along_axis(blocks, first, axis=2)[..., 0]


def draw(
    mesh: Mesh,
    view: View,
    size: tuple[int, int],
    *,
    rule: str = "topleft",
    supersample: int = 1,
    threads: int | None = None,
) -> Drawing:
    """Rasterises `mesh` as `view` sees it. size: (height, width) in pixels; supersample: samples a
    pixel, along each side; threads: at most, None as in hy3d_rocm.raster. ValueError for a size
    that is too large.
    """
    from hy3d_rocm.raster import rasterize

    height, width = size[0] * supersample, size[1] * supersample
    if supersample < 1 or not 1 <= min(height, width) <= max(height, width) <= MOST_PIXELS_A_SIDE:
        raise ValueError(
            f"{size[1]}x{size[0]} with supersample {supersample} makes {width}x{height} samples; "
            f"give 1 to {MOST_PIXELS_A_SIDE} a side"
        )
    clip = view.clip(mesh.positions, (height, width))
    before = time.perf_counter()
    raster: Any = rasterize(clip, mesh.faces, (height, width), rule=rule, threads=threads)
    seconds = time.perf_counter() - before
    faces = raster.face_index.reshape(-1)
    samples = np.flatnonzero(faces)
    return Drawing(
        mesh, view, size, supersample, samples, faces[samples],
        raster.barycentric.reshape(-1, 3)[samples], seconds, threads,
    )  # fmt: skip


def _sum_of_blocks(plane: Floats) -> Floats:
    """Over axes 1 and 3, which are as long as each other and short: 3 times sum()'s speed."""
    total = np.zeros_like(plane[:, 0, :, 0])
    for i in range(plane.shape[1]):
        for j in range(plane.shape[1]):
            total += plane[:, i, :, j]
    return total


def sample_texture(texture: npt.NDArray[np.uint8], uvs: Floats) -> Floats:
    """(K, 3) in 0..1 of a texture (H, W, 3) at uvs (K, 2): bilinear between the centres of its
    pixels, repeated beyond 0..1; v points up, row 0 is at the top."""
    height, width = texture.shape[:2]
    wrapped = uvs.astype(np.float64) % 1.0
    x = wrapped[:, 0] * width - 0.5
    y = (1.0 - wrapped[:, 1]) * height - 0.5
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    right_share = (x - left).astype(np.float32)[:, None]
    low_share = (y - top).astype(np.float32)[:, None]
    left, right = left % width, (left + 1) % width
    top, low = top % height, (top + 1) % height
    upper = texture[top, left] * (1 - right_share) + texture[top, right] * right_share
    lower = texture[low, left] * (1 - right_share) + texture[low, right] * right_share
    mixed: Floats = (upper * (1 - low_share) + lower * low_share) / np.float32(255)
    return mixed
