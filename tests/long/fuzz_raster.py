"""Calls of the rasteriser's functions for fuzz_arguments.py: sound ones, or with wild values."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from hy3d_rocm import _core

Array = Any
FLAG = _core.CancelFlag()


def floats(rng: random.Random, *shape: int) -> Array:
    """Ordinary ones, or any bits, or ordinary ones with something odd among them."""
    made = np.random.default_rng(rng.randrange(2**32))
    values = made.normal(size=shape).astype(np.float32)
    pick = rng.random()
    if pick < 0.15:
        return made.integers(0, 2**32, shape, np.uint32).view(np.float32)
    if pick < 0.4 and values.size:
        odd = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, -0.0, 1e30, 1.0]
        for _ in range(rng.randrange(1, 4)):
            values.flat[rng.randrange(values.size)] = rng.choice(odd)
    return values


def indices(rng: random.Random, limit: int, *shape: int) -> Array:
    """Below limit, but for some."""
    made = np.random.default_rng(rng.randrange(2**32))
    values = made.integers(0, max(limit, 1), shape, np.int32)
    if rng.random() < 0.15 and values.size:
        odd = [-1, limit, limit + 1, -(2**31), 2**31 - 1]
        values.flat[rng.randrange(values.size)] = rng.choice(odd)
    return values


def side(rng: random.Random) -> int:
    return rng.choice([1, 1, 2, 3, 7, 31, 65, 0 if rng.random() < 0.2 else 5])


def tail(rng: random.Random) -> list[Any]:
    """threads and cancel."""
    return [rng.choice([0, 1, 2, 1024]), rng.choice([None, None, FLAG])]


def rasterize(rng: random.Random) -> list[Any]:
    height, width, vertices = side(rng), side(rng), rng.choice([0, 1, 3, 4, 30])
    if rng.random() < 0.01:
        height, width = rng.choice([(32768, 1), (1, 32768), (32769, 1), (1, 40000)])
    clip = floats(rng, vertices, 4)
    if rng.random() < 0.6:
        clip[:, 3] = 1
    faces = indices(rng, vertices, rng.choice([0, 1, 2, 9, 100]), 3)
    picture = (height, width)
    return [
        clip,
        faces,
        rng.choice([None, floats(rng, *picture)]),
        np.zeros(picture, np.int32),
        rng.choice([None, np.zeros((*picture, 3), np.float32)]),
        rng.choice([None, np.zeros(picture, np.float32)]),
        rng.choice(["compat", "topleft"]),
        *tail(rng),
    ]


def interpolate(rng: random.Random) -> list[Any]:
    vertices, faces = rng.choice([1, 3, 30]), rng.choice([0, 1, 9])
    channels, pixels = rng.choice([1, 2, 3, 4, 5, 17, 64]), rng.choice([0, 1, 7, 300])
    return [
        floats(rng, vertices, channels),
        indices(rng, vertices, faces, 3),
        indices(rng, faces + 1, pixels),
        floats(rng, pixels, 3),
        np.zeros((pixels, channels), np.float32),
        *tail(rng),
    ]


def scatter(rng: random.Random) -> list[Any]:
    points, channels = rng.choice([0, 1, 7, 300]), rng.choice([1, 3, 5])
    height, width = side(rng), side(rng)
    uv = floats(rng, points, 2)
    return [
        floats(rng, points, channels),
        np.abs(uv) % 1 if rng.random() < 0.5 else uv,
        rng.choice([None, np.abs(floats(rng, points))]),
        np.zeros((height, width, channels), np.float32),
        np.zeros((height, width), np.float32),
        rng.choice(["linear", "nearest"]),
        *tail(rng),
    ]


def vertex_normals(rng: random.Random) -> list[Any]:
    vertices = rng.choice([0, 1, 3, 30])
    return [
        floats(rng, vertices, 3),
        indices(rng, vertices, rng.choice([0, 1, 9, 100]), 3),
        np.zeros((vertices, 3), np.float32),
        rng.choice(["area", "angle"]),
        *tail(rng),
    ]


def inpaint_vertices(rng: random.Random) -> list[Any]:
    vertices, uvs, faces = rng.choice([1, 3, 30]), rng.choice([1, 3, 30]), rng.choice([0, 1, 9, 60])
    height, width = side(rng), side(rng)
    made = np.random.default_rng(rng.randrange(2**32))
    places = floats(rng, uvs, 2)
    return [
        floats(rng, height, width, rng.choice([1, 3, 4])),
        made.integers(0, 2, (height, width), np.uint8) * rng.choice([1, 255]),
        floats(rng, vertices, 3),
        np.abs(places) % 1 if rng.random() < 0.5 else places,
        indices(rng, vertices, faces, 3),
        indices(rng, uvs, faces, 3),
        "smooth",
        rng.choice([None, FLAG]),
    ]


RASTER_CALLS: dict[str, Callable[[random.Random], list[Any]]] = {
    "rasterize": rasterize,
    "interpolate": interpolate,
    "scatter": scatter,
    "vertex_normals": vertex_normals,
    "inpaint_vertices": inpaint_vertices,
}


def raster_arrays() -> list[Any]:
    """Of the shapes and types that those functions take, for places where they do not belong."""
    found: list[Any] = []
    for shape in ((3, 4), (9, 3), (5, 5), (5, 5, 3), (300,), (7, 2), (0, 3), (0, 0), (1, 40000)):
        for code in ("f4", "i4", "u1", "f8", "i8"):
            found.append(np.ones(shape, code))
        whole = np.ones(shape, "f4")
        frozen = whole.copy()
        frozen.flags.writeable = False
        found += [frozen, whole[::-1], whole.T, memoryview(whole), np.ones(shape, "M8[s]")]
    return found
