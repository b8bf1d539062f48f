"""Random scenes that reach each way of the GPU rasteriser, and whether its pictures are the C
core's, bit for bit. Used by check_raster_gpu.py, raster_gpu.py and tests/gpu/test_raster.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

KINDS = (
    "flat", "before the eye", "on the grid", "coarse", "on both sides", "any scale", "slivers",
    "cancelling", "far and near", "in a plane",
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """clip (V, 4) float32, faces (F, 3) int32, prior (H, W) float32 or None: on the CPU."""

    kind: str
    rule: str
    clip: torch.Tensor
    faces: torch.Tensor
    prior: torch.Tensor | None
    size: tuple[int, int]


def _cancelling(clip: Any, size: tuple[int, int], rng: np.random.Generator) -> Any:
    """On both sides of the eye, where weights sum to 0 or nearly."""
    for axis in (0, 1):
        n = size[1 - axis] - 1
        clip[:, axis] = (2 * rng.integers(0, n + 1, len(clip)) / max(n, 1) - 1) * 0.5
    clip[:, 3] = 1.0 + rng.choice([0.0, 0.0, 2.0**-20, 2.0**-13, 2.0**-8], len(clip))
    return clip * rng.choice([-1.0, 1.0, 1.0], (len(clip), 1))


def _clip(kind: str, count: int, size: tuple[int, int], rng: np.random.Generator) -> Any:
    clip = rng.normal(size=(count, 4))
    if kind in ("flat", "on the grid", "slivers"):
        clip = np.column_stack([clip[:, :3] * 0.6, np.ones(count)])
    if kind == "before the eye":
        clip[:, 3] = np.abs(clip[:, 3]) + 0.1
    if kind == "far and near":  # W from 1e-4 to 1e4: weights of very different sizes
        clip[:, :3] *= 0.8
        clip *= 10.0 ** rng.uniform(-4, 4, (count, 1)) / np.abs(clip[:, 3:])
        clip[:, 3] = np.abs(clip[:, 3])
    if kind == "in a plane":  # the near or the far one, also behind the eye
        clip[:, 2] = clip[:, 3] * rng.choice([-1.0, 1.0])
    if kind == "on the grid":  # corners and edges on pixels' centres, equal depths
        for axis in (0, 1):
            n = size[1 - axis]
            clip[:, axis] = (2 * rng.integers(-1, n + 1, count) + 1) / n - 1
        clip[:, 2] = rng.integers(-2, 3, count) / 2
    if kind == "cancelling":
        clip = _cancelling(clip, size, rng)
    if kind == "coarse":  # W of 0, faces without area
        clip = np.round(clip * 2) / 2
    if kind == "on both sides":
        clip[:, 3] = rng.choice([-1.0, 1.0, 2.0], count)
    if kind == "any scale":
        clip *= 10.0 ** rng.integers(-30, 30, (count, 1))
    if kind == "slivers":  # all but on one line
        clip[:, 1] = clip[:, 0] * 0.75 + rng.normal(size=count) * 10.0 ** rng.integers(-9, -1)
    return clip.astype(np.float32)


def scene(seed: int, index: int, *, corners: int = 12, faces: int = 12, side: int = 24) -> Scene:
    """Scene number `index` of a seed; corners, faces and side: at most."""
    rng = np.random.default_rng([seed, index])
    kind = KINDS[index % len(KINDS)]
    rule = ("topleft", "compat")[index // len(KINDS) % 2]
    size = (int(rng.integers(1, side + 1)), int(rng.integers(1, side + 1)))
    count = int(rng.integers(3, corners + 1))
    clip = torch.from_numpy(_clip(kind, count, size, rng))
    triangles = rng.integers(0, count, (int(rng.integers(1, faces + 1)), 3)).astype(np.int32)
    prior = None
    if rng.integers(2):
        values = rng.normal(size=size).astype(np.float32)
        values[rng.random(size) < 0.05] = np.nan
        values[rng.random(size) < 0.05] = np.inf
        prior = torch.from_numpy(values)
    return Scene(kind, rule, clip, torch.from_numpy(triangles), prior, size)


def core(of: Scene) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The C core's picture: face_index, barycentric, depth."""
    from hy3d_rocm import _core

    height, width = of.size
    face_index = torch.zeros((height, width), dtype=torch.int32)
    barycentric, depth = torch.zeros((height, width, 3)), torch.zeros((height, width))
    prior = None if of.prior is None else of.prior.numpy()
    _core.rasterize(
        of.clip.numpy(), of.faces.numpy(), prior, face_index.numpy(), barycentric.numpy(),
        depth.numpy(), rule=of.rule, threads=0,
    )  # fmt: skip
    return face_index, barycentric, depth


def attributes(of: Scene, seed: int, index: int) -> torch.Tensor:
    """Random values of the vertices, (V, C) float32; 1 to 40 channels."""
    rng = np.random.default_rng([seed, index, 1])
    channels = (3, 1, 4, 7, 40)[index % 5]
    return torch.from_numpy(rng.normal(size=(len(of.clip), channels)).astype(np.float32))


def core_interpolate(
    of: Scene, values: torch.Tensor, picture: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """What the C core interpolates over its picture, (H * W, C)."""
    from hy3d_rocm import _core

    face_index, barycentric = picture[0].reshape(-1), picture[1].reshape(-1, 3)
    out = torch.zeros((len(face_index), values.shape[1]))
    _core.interpolate(
        values.numpy(), of.faces.numpy(), face_index.numpy(), barycentric.numpy(), out.numpy()
    )
    return out


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    """Values of which a bit differs: -0.0 is not 0.0, and a NaN is itself."""
    return int((one.cpu().view(torch.int32) != other.cpu().view(torch.int32)).sum())


def mesh(name: str, faces: int, size: tuple[int, int], rule: str) -> Scene:
    """A scene of about so many faces: a "sphere" in perspective, a "grid" whose corners lie on
    pixels' centres under `rule` (all its edges are met exactly), a "soup" of small triangles."""
    rng = np.random.default_rng(9)
    height, width = size
    if name == "soup":
        centres = rng.uniform(-1, 1, (faces, 1, 3))
        edge = 2.5 * (4.0 / faces) ** 0.5 * rng.uniform(0.1, 1, (faces, 1, 1))
        corners = (centres + edge * rng.normal(size=(faces, 3, 3)) * [1, 1, 0.2]).reshape(-1, 3)
        w = rng.uniform(0.8, 1.25, (len(corners), 1))
        clip = np.hstack([corners * w, w])
        triangles = np.arange(3 * faces).reshape(-1, 3)
        return _packed(name, rule, clip, triangles, size)
    n = int((faces / 2) ** 0.5)
    u, v = (a.ravel() for a in np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1)))
    if name == "sphere":
        theta, phi = np.pi * v, 2 * np.pi * u
        x, y, z = np.sin(theta) * np.cos(phi), np.cos(theta), np.sin(theta) * np.sin(phi)
        far = z + 3.0
        clip = np.column_stack([2.6 * x, 2.6 * y, (far - 2) * 0.5 * far, far])
    else:
        less = 1 if rule == "compat" else 0
        column, row = np.rint(u * (width - 1)), np.rint(v * (height - 1))
        x = (2 * column + 1 - width) / (width - less)
        y = (2 * row + 1 - height) / (height - less)
        clip = np.column_stack([x, y, 0 * x, 0 * x + 1])
    first = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()
    a, b, c, d = first, first + 1, first + n + 2, first + n + 1
    return _packed(name, rule, clip, np.vstack([np.c_[a, b, c], np.c_[a, c, d]]), size)


def _packed(name: str, rule: str, clip: Any, triangles: Any, size: tuple[int, int]) -> Scene:
    corners = torch.from_numpy(np.ascontiguousarray(clip, np.float32))
    faces = torch.from_numpy(np.ascontiguousarray(triangles, np.int32))
    return Scene(name, rule, corners, faces, None, size)
