"""Random scenes for the rasteriser, each small enough for brute force: `scene_of(seed, index)`.

The kinds are what a texture stage meets and what breaks rasterisers; see KINDS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Scene:
    kind: str
    clip: Array  # (V, 4) f32
    faces: Array  # (F, 3) i32
    size: tuple[int, int]  # height, width
    prior: Array | None  # (height, width) f32

    def say(self) -> str:
        """Enough to rebuild it."""
        prior = None if self.prior is None else self.prior.tolist()
        return (f"{self.kind}: size {self.size}, clip {self.clip.tolist()}, "
                f"faces {self.faces.tolist()}, prior {prior}")  # fmt: skip


Made = tuple[Array, Array]  # clip, faces


def soup(rng: Rng, count: int | None = None, spread: float = 1.3) -> Made:
    """Triangles all over the place, in front of the camera."""
    n = int(rng.integers(1, 24)) if count is None else count
    w = rng.uniform(0.2, 3.0, (n * 3, 1))
    centre = rng.uniform(-spread, spread, (n, 1, 3))
    reach = rng.choice([0.05, 0.3, 1.0], (n, 1, 1))
    ndc = (centre + rng.normal(size=(n, 3, 3)) * reach).reshape(-1, 3)
    ndc[:, 2] = np.clip(ndc[:, 2], -0.999, 0.999)
    return np.hstack([ndc * w, w]), np.arange(n * 3).reshape(-1, 3)


def _grid(rows: int, columns: int) -> tuple[Array, Array]:
    """Parameters (u, v) in 0..1 and faces of a sheet."""
    v, u = np.meshgrid(np.linspace(0, 1, rows + 1), np.linspace(0, 1, columns + 1), indexing="ij")
    corner = (np.arange(rows)[:, None] * (columns + 1) + np.arange(columns)).reshape(-1)
    a, b, c, d = corner, corner + 1, corner + columns + 1, corner + columns + 2
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([c, b, d], 1)])
    return np.stack([u.ravel(), v.ravel()], 1), faces


def sphere(rows: int, columns: int) -> Made:
    uv, faces = _grid(rows, columns)
    around, down = uv[:, 0] * 2 * np.pi, uv[:, 1] * np.pi
    points = np.stack([np.cos(around) * np.sin(down), np.sin(around) * np.sin(down),
                       np.cos(down)], 1)  # fmt: skip
    return _welded(points, faces)


def torus(rows: int, columns: int) -> Made:
    uv, faces = _grid(rows, columns)
    around, tube = uv[:, 0] * 2 * np.pi, uv[:, 1] * 2 * np.pi
    out = 1 + 0.4 * np.cos(tube)
    return _welded(np.stack([out * np.cos(around), out * np.sin(around), 0.4 * np.sin(tube)], 1),
                   faces)  # fmt: skip


def cube() -> Made:
    points = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return points, np.array([t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))])


def _welded(points: Array, faces: Array) -> Made:
    """Seams and poles made one; faces that lose their area by it go."""
    _, first, number = np.unique(np.round(points, 9), axis=0, return_index=True,
                                 return_inverse=True)  # fmt: skip
    faces = number.reshape(-1)[faces]
    whole = (faces != np.roll(faces, 1, 1)).all(1)
    return points[first], faces[whole]


def closed(rng: Rng) -> Made:
    """A closed mesh before a camera, sometimes with the camera in it."""
    pick = rng.integers(3)
    rows, columns = int(rng.integers(3, 9)), int(rng.integers(3, 12))
    points, faces = (sphere(rows, columns), torus(rows, columns), cube())[pick]
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    points = points @ turn * rng.uniform(0.3, 1.2) + rng.normal(size=3) * 0.2
    if rng.random() < 0.5:  # orthographic
        return np.hstack([points * 0.7, np.ones((len(points), 1))]), faces
    points[:, 2] += rng.choice([-3.0, -2.0, -1.0, 0.0])
    near, far = 0.1, 10.0
    z = points[:, 2] * (far + near) / (near - far) + 2 * far * near / (near - far)
    return np.stack([points[:, 0] * 1.7, points[:, 1] * 1.7, z, -points[:, 2]], 1), faces


def degenerate(rng: Rng) -> Made:
    """Repeated vertices, points, lines, and sound faces between them."""
    clip, faces = soup(rng)
    for face in faces:
        way = rng.integers(6)
        a, b, c = face
        if way == 0:
            clip[c] = clip[b]
        elif way == 1:
            clip[b] = clip[c] = clip[a]
        elif way == 2:
            clip[c] = clip[a] / 2 + clip[b] / 2
        elif way == 3:
            face[1] = a
        elif way == 4:
            clip[c] = clip[a] * 2  # one place on the screen
    return clip, faces


def slivers(rng: Rng) -> Made:
    """1e-3 to 1e-7 pixels wide, or as thin as f32 allows."""
    n = int(rng.integers(1, 40))
    ends = rng.uniform(-1.1, 1.1, (n, 2, 2))
    if rng.random() < 0.7:  # along lines through pixel centres, else few pixels are in them
        ends = np.round(ends * 8) / 8
    between = ends[:, 0] + (ends[:, 1] - ends[:, 0]) * rng.uniform(-0.2, 1.2, (n, 1))
    wide = 10.0 ** rng.uniform(-9, -4, (n, 1))
    between += rng.normal(size=(n, 2)) * wide
    xy = np.concatenate([ends, between[:, None]], 1).reshape(-1, 2)
    w = np.ones((3 * n, 1)) if rng.random() < 0.5 else rng.uniform(0.5, 2, (3 * n, 1))
    z = rng.uniform(-0.9, 0.9, (3 * n, 1))
    return np.hstack([xy * w, z * w, w]), np.arange(3 * n).reshape(-1, 3)


def needles(rng: Rng) -> Made:
    """Slivers whose corners are near and far: W from 1e-9 to 1, sometimes behind the eye."""
    clip, faces = slivers(rng)
    w = 10.0 ** rng.uniform(rng.choice([-9.0, -5.0, -2.0]), 0, (len(clip), 1))
    if rng.random() < 0.3:
        w *= rng.choice([-1, 1], w.shape)
    xy, depth = clip[:, :2] / clip[:, 3:], clip[:, 2:3] / clip[:, 3:]
    if rng.random() < 0.5:  # powers of two keep places where they were
        w = np.exp2(np.round(np.log2(np.abs(w)))) * np.sign(w)
    if rng.random() < 0.3:  # Z does not follow W
        return np.hstack([xy * w, depth, w]), faces
    return np.hstack([xy * w, depth * w, w]), faces


def hairlines(rng: Rng) -> Made:
    """Edges that miss a pixel's centre by some 2^-36 of the picture; the corner opposite may be
    next to the eye, and that pixel's barycentrics then have an edge's relative error in full."""
    n, tries = int(rng.integers(1, 6)), 4096
    clip = np.ones((n, 3, 4))
    for face in clip:
        at = rng.integers(-24, 25, 2) / 32
        a = (at - rng.uniform(0.2, 0.8, 2) * rng.choice([-1, 1], 2)).astype(np.float32)
        b = (at + (at - a) * rng.uniform(0.5, 0.9, (tries, 1))).astype(np.float32).astype(float)
        miss = (b[:, 0] - a[0]) * (at[1] - a[1]) - (b[:, 1] - a[1]) * (at[0] - a[0])
        k = np.argsort(np.abs(miss))[rng.integers(4)]
        along = b[k] - a
        across = np.array([-along[1], along[0]]) / np.hypot(*along) * np.sign(miss[k])
        face[0, :2], face[1, :2] = a, b[k]
        face[2, :2] = at + 2.0 ** -rng.integers(4, 22) * across + rng.uniform(-0.2, 0.2) * along
        face[:, 2] = rng.uniform(-0.5, 0.5, 3)
        face[2] *= 2.0 ** -rng.integers(0, 40)
    return clip.reshape(-1, 4), np.arange(3 * n).reshape(-1, 3)


def behind(rng: Rng) -> Made:
    """Some vertices behind the camera, beside it (W = 0) or next to it."""
    clip, faces = soup(rng)
    n = len(clip)
    kind = rng.integers(6, size=n)
    clip[kind == 0] *= -1
    for face in faces[rng.random(len(faces)) < 0.2]:  # a whole face
        clip[face] = np.abs(clip[face, 3:]) * clip[face] / clip[face, 3:] * -1
    clip[kind == 1, 3] *= -1
    tiny = 10.0 ** rng.uniform(-30, -3, n) * rng.choice([-1, 1], n)
    clip[kind == 2, 3] = tiny[kind == 2]
    zero = (kind == 3) & (rng.random(n) < 0.5)
    clip[zero, 3] = 0
    clip[zero & (rng.random(n) < 0.5), 2] = 0
    return clip, faces


def stacks(rng: Rng) -> Made:
    """Faces of one plane, faces of equal depth, and the same face over and over."""
    n = int(rng.integers(2, 24))
    clip, faces = soup(rng, n, 0.5)
    corners = clip.reshape(n, 3, 4)
    way = rng.integers(4)
    if way == 0:  # one depth
        corners[..., 2] = corners[..., 3] * rng.choice([0.0, 0.5, -1.0, 1.0, 0.3])
    elif way == 1:  # one plane
        slope = rng.uniform(-0.4, 0.4, 3)
        corners[..., 2] = corners[..., 0] * slope[0] + corners[..., 1] * slope[1] + (
            corners[..., 3] * slope[2])  # fmt: skip
    elif way == 2:  # few faces, many times
        corners[:] = corners[rng.integers(0, 2, n)]
        for face in corners:
            face[:] = face[rng.permutation(3)]
    else:  # depths that differ by less than a step
        corners[..., 2] = corners[..., 3] * (0.25 + rng.normal(size=(n, 1)) * 1e-6)
    return clip, faces


def subpixel(rng: Rng) -> Made:
    """Many in a pixel."""
    n = int(rng.integers(50, 400))
    centre = rng.uniform(-1, 1, (n, 1, 3)) * [rng.choice([0.2, 1.0]), 1.0, 0.9]
    ndc = (centre + rng.normal(size=(n, 3, 3)) * rng.choice([1e-3, 1e-2, 5e-2])).reshape(-1, 3)
    w = rng.uniform(0.5, 2, (n, 1, 1)).repeat(3, 1).reshape(-1, 1)
    return np.hstack([ndc * w, w]), np.arange(3 * n).reshape(-1, 3)


def huge(rng: Rng) -> Made:
    """Triangles of 1e3 to 1e7 pixels."""
    clip, faces = soup(rng, int(rng.integers(1, 12)))
    reach = 10.0 ** rng.uniform(1, 6, (len(clip), 1)) * rng.choice([0, 1, 1], (len(clip), 1))
    clip[:, :2] += rng.normal(size=(len(clip), 2)) * reach
    if rng.random() < 0.3:
        clip[:, 2] += rng.normal(size=len(clip)) * reach[:, 0]
    return clip, faces


def lattice(rng: Rng) -> Made:
    """Small whole numbers: edges through pixel centres, vertices on them, shared everywhere."""
    n = int(rng.integers(4, 12))
    m = int(rng.integers(1, 24))
    xy = rng.integers(-8, 9, (n, 2)) / rng.choice([4.0, 8.0])
    w = rng.choice([1.0, 1.0, 2.0, 4.0, -1.0] if rng.random() < 0.3 else [1.0], (n, 1))
    if rng.random() < 0.4:  # still exact in f32, no longer so in products of three
        w *= rng.integers(1, 2**16, (n, 1))
    z = rng.integers(-4, 5, (n, 1)) / 4.0
    clip = np.hstack([xy * w, z * w, w])
    if rng.random() < 0.3:  # where corners behind the eye cancelled, they nearly do
        clip *= 1 + 2.0 ** -rng.integers(4, 24, (n, 1))
    return clip, rng.integers(0, n, (m, 3))


def sheet(rng: Rng) -> Made:
    """A grid whose edges are shared, its inner vertices moved or on pixel centres."""
    uv, faces = _grid(int(rng.integers(1, 9)), int(rng.integers(1, 9)))
    inner = ((uv > 0) & (uv < 1)).all(1)
    xy = uv * 2 - 1
    if rng.random() < 0.6:
        xy[inner] += rng.normal(size=(inner.sum(), 2)) * 0.05
    z = rng.normal(size=(len(xy), 1)) * 0.1
    w = np.ones((len(xy), 1)) if rng.random() < 0.5 else rng.uniform(0.5, 2, (len(xy), 1))
    return np.hstack([xy * rng.choice([0.8, 1.0, 1.5]) * w, z * w, w]), faces


def fan(rng: Rng) -> Made:
    """Around a vertex on a pixel's centre, out beyond the picture."""
    n = int(rng.integers(3, 14))
    angle = np.sort(rng.uniform(0, 2 * np.pi, n))
    if rng.random() < 0.5:
        angle = np.round(angle / (np.pi / 4)) * (np.pi / 4)
    rim = np.stack([np.cos(angle), np.sin(angle)], 1) * rng.choice([0.5, 1.0, 3.0])
    if rng.random() < 0.5:
        rim = np.round(rim * 8) / 8
    xy = np.concatenate([np.zeros((1, 2)), rim])
    k = np.arange(n)
    faces = np.stack([np.zeros(n, int), k + 1, (k + 1) % n + 1], 1)
    z = rng.uniform(-0.5, 0.5, (n + 1, 1))
    return np.hstack([xy, z, np.ones((n + 1, 1))]), faces


def texture_space(rng: Rng) -> Made:
    """As a texture's bake draws: Z = 0, W = 1, corners of charts on a grid of texels."""
    uv, faces = _grid(int(rng.integers(1, 7)), int(rng.integers(1, 7)))
    uv = np.round(uv * 64) / 64 if rng.random() < 0.5 else uv
    xy = uv * 2 - 1
    return np.hstack([xy, np.zeros((len(xy), 1)), np.ones((len(xy), 1))]), faces


def extreme(rng: Rng) -> Made:
    """Magnitudes of f32's ends: 1e30, subnormal, mixed."""
    clip, faces = soup(rng, int(rng.integers(1, 12)))
    way = rng.integers(4)
    if way == 0:  # each vertex by a power of its own
        clip *= 2.0 ** rng.integers(-120, 110, (len(clip), 1))
    elif way == 1:  # all by one
        clip *= rng.choice([1e-38, 1e-42, 1e30, 1e36])
    elif way == 2:  # some numbers only
        hit = rng.random(clip.shape) < 0.2
        clip[hit] *= (10.0 ** rng.uniform(-44, 30, clip.shape))[hit]
    else:
        hit = rng.random(clip.shape) < 0.2
        clip[hit] = rng.choice([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.2e-38], clip.shape)[hit]
    return clip, faces


def planes(rng: Rng) -> Made:
    """Depths at, through and beyond the near and the far plane."""
    clip, faces = soup(rng)
    way = rng.integers(3, size=len(clip))
    clip[:, 2] = np.where(way == 0, clip[:, 2] * 3, np.where(way == 1, clip[:, 3], -clip[:, 3]))
    return clip, faces


KINDS: dict[str, Callable[[Rng], Made]] = {
    "soup": soup, "closed": closed, "degenerate": degenerate, "slivers": slivers,
    "needles": needles, "hairlines": hairlines, "behind": behind, "stacks": stacks,
    "subpixel": subpixel, "huge": huge, "lattice": lattice, "sheet": sheet, "fan": fan,
    "texture": texture_space, "extreme": extreme, "planes": planes,
}  # fmt: skip
# Sides on which whole and half numbers of the lattice meet pixel centres, of either rule.
SIDES = (8, 9, 16, 17, 32, 33, 64, 65)


def size_of(rng: Rng) -> tuple[int, int]:
    pick = rng.random()
    if pick < 0.3:
        return int(rng.choice(SIDES[:6])), int(rng.choice(SIDES[:6]))
    if pick < 0.4:
        sides = [int(rng.integers(1, 4)), int(rng.integers(1, 97))]
        rng.shuffle(sides)
        return sides[0], sides[1]
    if pick < 0.45:
        return int(rng.integers(60, 97)), int(rng.integers(60, 97))
    if pick < 0.47:
        return int(rng.integers(120, 140)), int(rng.integers(120, 140))
    return int(rng.integers(8, 49)), int(rng.integers(8, 49))


def prior_of(rng: Rng, size: tuple[int, int]) -> Array:
    """Of what was there before: somewhere in the scene, nowhere, or nonsense in places."""
    prior = rng.uniform(-1, 1, size) if rng.random() < 0.7 else np.full(size, rng.uniform(-1, 1))
    odd = rng.random(size) < rng.choice([0.0, 0.1])
    prior[odd] = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30], size)[odd]
    return prior.astype(np.float32)


def scene_of(seed: int, index: int, kind: str | None = None) -> Scene:
    """The index-th scene of a seed, independent of all others; kinds take turns."""
    rng = np.random.default_rng([seed, index])
    names = list(KINDS)
    kind = kind or names[index % len(names)]
    # Of hairlines' 1/32 centres of pixels are the even ones under compat, the odd under topleft.
    size = size_of(rng) if kind != "hairlines" else ((32, 32), (33, 33))[index // 3 % 2]
    clip, faces = KINDS[kind](rng)
    if rng.random() < 0.2:
        faces = faces[rng.permutation(len(faces))]
    prior = prior_of(rng, size) if rng.random() < 0.2 else None
    with np.errstate(over="ignore"):
        clip = np.ascontiguousarray(clip, np.float32)
    limit = np.finfo(np.float32).max
    clip = np.clip(clip, -limit, limit)
    return Scene(kind, clip, np.ascontiguousarray(faces, np.int32).reshape(-1, 3), size, prior)
