"""The scene of `bench raster`: a bumpy sphere in a tilted bumpy ring, seen in perspective.

Made here from a fixed seed, so that every run and every peer draws the same faces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEED = 9
_EYE = (0.0, 0.0, 3.2)
_VIEW_DEGREES = 46.0
_NEAR, _FAR = 0.5, 10.0
_SPHERE_SHARE = 0.71  # of the faces; the ring has the others
_RING, _TUBE, _TILT = 1.35, 0.33, 0.5
_ICOSAHEDRON_FACES = (
    "0 11 5 0 5 1 0 1 7 0 7 10 0 10 11 1 5 9 5 11 4 11 10 2 10 7 6 7 1 8 "
    "3 9 4 3 4 2 3 2 6 3 6 8 3 8 9 4 9 5 2 4 11 6 2 10 8 6 7 9 8 1"
)


@dataclass(frozen=True)
class Scene:
    """positions (V, 3) f32 in the world; clip (V, 4) f32, as a vertex shader leaves them; faces
    (F, 3) i32; attributes (V, 3) f32; size: pixels a side; eye: the camera, which looks along -z;
    slope: x over -z at the picture's right edge."""

    positions: Any
    clip: Any
    faces: Any
    attributes: Any
    size: int
    eye: tuple[float, float, float]
    slope: float

    @property
    def text(self) -> str:
        return f"{self.size}x{self.size}, {len(self.faces):,} faces"


def make_scene(faces: int, size: int) -> Scene:
    """At least `faces` faces (a few more: whole subdivisions), size x size pixels, 90 % covered."""
    rng = np.random.default_rng(SEED)
    ball, ball_faces = _sphere(max(1, math.ceil(math.sqrt(faces * _SPHERE_SHARE / 20))))
    ball *= (1 + 0.05 * _noise(ball, rng))[:, None]
    across = max(3, math.ceil(math.sqrt(max(faces - len(ball_faces), 0) / 4)))
    ring, ring_faces = _torus(2 * across, across, rng)
    positions = np.concatenate([ball, ring]).astype(np.float32)
    triangles = np.concatenate([ball_faces, ring_faces + len(ball)]).astype(np.int32)
    slope = math.tan(math.radians(_VIEW_DEGREES / 2))
    attributes = rng.random((len(positions), 3), dtype=np.float32)
    return Scene(positions, _clip(positions, slope), triangles, attributes, size, _EYE, slope)


def save_scene(scene: Scene, folder: Path) -> None:
    """For the children; load_scene reads it."""
    for name in ("positions", "clip", "faces", "attributes"):
        np.save(folder / f"{name}.npy", getattr(scene, name))
    np.save(folder / "view.npy", np.array([scene.size, *scene.eye, scene.slope]))


def load_scene(folder: Path) -> Scene:
    size, *eye, slope = np.load(folder / "view.npy").tolist()
    names = ("positions", "clip", "faces", "attributes")
    arrays = {name: np.load(folder / f"{name}.npy") for name in names}
    return Scene(**arrays, size=int(size), eye=(eye[0], eye[1], eye[2]), slope=slope)


def _clip(positions: Any, slope: float) -> Any:
    """A camera at the eye that looks along -z; near and far as OpenGL's."""
    x, y, z = (positions - np.array(_EYE)).astype(np.float64).T
    depth = -z * (_FAR + _NEAR) / (_FAR - _NEAR) - 2 * _FAR * _NEAR / (_FAR - _NEAR)
    return np.stack([x / slope, y / slope, depth, -z], axis=1).astype(np.float32)


def _noise(points: Any, rng: Any) -> Any:
    """A sum of waves, the finer the weaker."""
    scale = np.repeat([2.0, 4.0, 8.0, 16.0], 6)
    waves = rng.normal(size=(24, 3)) * scale[:, None]
    phases = rng.uniform(0, 2 * math.pi, 24)
    return (np.sin(points @ waves.T + phases) / scale).sum(axis=1)


def _sphere(steps: int) -> tuple[Any, Any]:
    """An icosahedron, each side in `steps`, on the unit sphere: 20 steps^2 faces."""
    g = (1 + math.sqrt(5)) / 2
    corners = np.array(
        [(-1, g, 0), (1, g, 0), (-1, -g, 0), (1, -g, 0), (0, -1, g), (0, 1, g),
         (0, -1, -g), (0, 1, -g), (g, 0, -1), (g, 0, 1), (-g, 0, -1), (-g, 0, 1)]
    )  # fmt: skip
    big = np.array(_ICOSAHEDRON_FACES.split(), dtype=np.int64).reshape(-1, 3)
    row, column = (axis.ravel() for axis in np.tril_indices(steps + 1))
    number = np.full((steps + 1, steps + 1), -1)
    number[row, column] = np.arange(len(row))
    weights = np.stack([steps - row, row - column, column], axis=1) / steps
    points = np.einsum("pk,fkx->fpx", weights, corners[big])
    row, column = (axis.ravel() for axis in np.tril_indices(steps))
    up = np.stack([number[row, column], number[row + 1, column], number[row + 1, column + 1]], 1)
    inner = row > column
    row, column = row[inner], column[inner]
    down = np.stack([number[row, column], number[row + 1, column + 1], number[row, column + 1]], 1)
    local = np.concatenate([up, down])
    local = local[np.argsort(local.min(axis=1), kind="stable")]  # neighbours follow each other
    faces = (local + points.shape[1] * np.arange(20)[:, None, None]).reshape(-1, 3)
    return _merged(points.reshape(-1, 3), faces)


def _merged(points: Any, faces: Any) -> tuple[Any, Any]:
    """Points on the unit sphere, those that two sides share once, numbered as faces meet them."""
    points = points / np.linalg.norm(points, axis=1, keepdims=True)
    steps = np.round((points + 1) * 2**19).astype(np.int64)
    keys = (steps[:, 0] << 42) | (steps[:, 1] << 21) | steps[:, 2]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    used = inverse.reshape(-1)[faces.reshape(-1)]
    _, meeting = np.unique(used, return_index=True)
    order = np.argsort(meeting)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return points[first[order]], number[used].reshape(-1, 3)


def _torus(around: int, across: int, rng: Any) -> tuple[Any, Any]:
    """2 x around x across faces."""
    i, j = (axis.ravel() for axis in np.meshgrid(range(around), range(across), indexing="ij"))
    a, b = 2 * math.pi * i / around, 2 * math.pi * j / across
    centre = np.stack([np.cos(a), np.sin(a), 0 * a], axis=1)
    out = centre * np.cos(b)[:, None] + np.stack([0 * b, 0 * b, np.sin(b)], axis=1)
    points = _RING * centre + _TUBE * out * (1 + 0.2 * _noise(_RING * centre + out, rng))[:, None]
    sine, cosine = math.sin(_TILT), math.cos(_TILT)
    points = points @ np.array([[1, 0, 0], [0, cosine, sine], [0, -sine, cosine]])
    k, m = (i + 1) % around, (j + 1) % across
    corners = [i * across + j, k * across + j, k * across + m, i * across + m]
    first, second = ([corners[n] for n in picks] for picks in ((0, 1, 2), (0, 2, 3)))
    return points, np.stack([*first, *second], axis=1).reshape(-1, 3)
