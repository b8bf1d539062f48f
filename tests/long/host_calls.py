"""Calls of the C core with known bits, small ones and long ones, for check_host.py.

Each sample computes into fresh arrays and gives them back; data are fixed by the sample's name, so
that any process and any thread can compare with any other.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from hy3d_rocm import _core  # noqa: E402

ONE, NONE = (1, 1, 1), (0, 0, 0)
Arrays = list[Any]
# run(threads, cancel, prepared) -> results; `inputs` are what it must leave alone.
Run = Callable[..., Arrays]


class Sample:
    """A call: its inputs, how to run it, and (in `restored`) what a cancel leaves as it was."""

    def __init__(self, run: Run, inputs: Arrays, weight: Any = None, number: int = 0) -> None:
        self.run = run
        self.inputs = inputs
        self.weight, self.number = weight, number  # of prepared weights, where it takes them

    def prepare(self, threads: int = 1) -> Any:
        return _core.conv3d_prepare(self.weight, self.number, threads) if self.number else None


def digest(arrays: Arrays) -> str:
    made = hashlib.sha256()
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def _floats(rng: np.random.Generator, *shape: int, code: str = "f4") -> Any:
    return rng.standard_normal(shape).astype(code)


def _conv(rng: np.random.Generator, code: str, size: int, channels: int, accuracy: str) -> Sample:
    x = _floats(rng, 1, channels, 3, size, size, code=code)
    weight = _floats(rng, channels, channels, 3, 3, 3, code=code)
    bias = _floats(rng, channels, code=code)
    word = {"f4": "f32", "f8": "f64", "f2": "f16"}[code]
    number = _core.conv3d_format((3, size, size), channels, channels, (3, 3, 3), ONE, ONE, ONE, ONE,
                                 "zeros", 1, word, accuracy)[0]  # fmt: skip

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        out = np.full((1, channels, 3, size, size), np.nan, code)
        _core.conv3d(x, weight, bias, out, ONE, ONE, ONE, ONE, "zeros", 1, threads, None, cancel,
                     accuracy, prepared)  # fmt: skip
        return [out]

    return Sample(run, [x, weight, bias], weight, number)


def _moments(rng: np.random.Generator, scale: int) -> Sample:
    x = _floats(rng, 1, 16 * scale, 4, 8 * scale, 8 * scale)

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        mean, squares = np.full((2, x.shape[1]), np.nan)
        _core.channel_moments(x, mean, squares, threads, cancel)
        return [mean, squares]

    return Sample(run, [x])


def _mesh(rng: np.random.Generator, cells: int) -> tuple[Any, Any]:
    """Vertices (V, 3) and faces (F, 3) of a bent sheet."""
    place = np.linspace(-0.9, 0.9, cells + 1, dtype="f4")
    u, v = np.meshgrid(place, place)
    points = np.stack([u, v, 0.2 * np.sin(3 * u) * np.cos(2 * v)], -1).reshape(-1, 3).astype("f4")
    points += _floats(rng, *points.shape) * np.float32(0.1 / cells)
    corner = np.arange(cells * (cells + 1)).reshape(cells, cells + 1)[:, :-1].ravel()
    row = cells + 1
    first = np.stack([corner, corner + 1, corner + row], -1)
    second = np.stack([corner + 1, corner + row + 1, corner + row], -1)
    return points, np.concatenate([first, second]).astype("i4")


def _rasterize(rng: np.random.Generator, scale: int) -> tuple[Sample, Sample]:
    points, faces = _mesh(rng, 12 * scale)
    clip = np.concatenate([points, np.ones((len(points), 1), "f4")], 1)
    side = 48 * scale

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        index = np.full((side, side), -1, "i4")
        barycentric = np.full((side, side, 3), np.nan, "f4")
        depth = np.full((side, side), np.nan, "f4")
        _core.rasterize(clip, faces, None, index, barycentric, depth, "topleft", threads, cancel)
        return [index, barycentric, depth]

    index, barycentric, _ = run()
    index, barycentric = index.ravel(), barycentric.reshape(-1, 3)
    colours = _floats(rng, len(points), 8)

    def interpolate(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        out = np.full((len(index), 8), np.nan, "f4")
        _core.interpolate(colours, faces, index, barycentric, out, threads, cancel)
        return [out]

    return Sample(run, [clip, faces]), Sample(interpolate, [colours, faces, index, barycentric])


def _scatter(rng: np.random.Generator, scale: int) -> Sample:
    count, side = 2000 * scale * scale, 40 * scale
    values, uv = _floats(rng, count, 4), rng.random((count, 2), np.float32)

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        texture, total = np.full((side, side, 4), np.nan, "f4"), np.full((side, side), np.nan, "f4")
        _core.scatter(values, uv, None, texture, total, "linear", threads, cancel)
        return [texture, total]

    return Sample(run, [values, uv])


def _normals(rng: np.random.Generator, scale: int) -> Sample:
    points, faces = _mesh(rng, 20 * scale)

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        normals = np.full(points.shape, np.nan, "f4")
        _core.vertex_normals(points, faces, normals, "angle", threads, cancel)
        return [normals]

    return Sample(run, [points, faces])


def _inpaint(rng: np.random.Generator, scale: int) -> Sample:
    points, faces = _mesh(rng, 8 * scale)
    uv, side = (points[:, :2] * np.float32(0.5) + np.float32(0.5)).clip(0, 1), 32 * scale
    texture, mask = rng.random((side, side, 3), np.float32), np.zeros((side, side), "u1")
    mask[: side // 8] = 255

    def run(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        colours, known = texture.copy(), mask.copy()
        try:
            _core.inpaint_vertices(colours, known, points, uv, faces, faces, "smooth", cancel)
        except _core.Hy3dError:
            # The header's words: a cancel leaves texture and mask as they were.
            assert np.array_equal(colours, texture), "a cancelled call changed the texture"
            assert np.array_equal(known, mask), "a cancelled call changed the mask"
            raise
        return [colours, known]

    return Sample(run, [points, uv, faces, texture, mask])


def samples(*, long: bool = False) -> dict[str, Sample]:
    """By name. Short ones take some hundred microseconds, long ones some ten milliseconds."""

    def rng(name: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(name.encode()))

    size, channels, scale = (48, 48, 8) if long else (12, 16, 1)
    rasterize, interpolate = _rasterize(rng("rasterize"), 2 * scale if long else 1)
    wide = 32 if not long else channels
    fast = _conv(rng("fast"), "f4", (4 if long else 2) * size, wide, "fast")

    def prepare(threads: int = 1, cancel: Any = None, prepared: Any = None) -> Arrays:
        return fast.run(1, None, _core.conv3d_prepare(fast.weight, fast.number, threads, cancel))

    made = {
        "conv3d exact f32": _conv(rng("f32"), "f4", size, channels, "exact"),
        "conv3d f64": _conv(rng("f64"), "f8", size, channels, "exact"),
        "conv3d f16": _conv(rng("f16"), "f2", size, channels, "exact"),
        "conv3d fast": fast,
        "channel_moments": _moments(rng("moments"), 12 if long else 1),
        "rasterize": rasterize,
        "interpolate": interpolate,
        "scatter": _scatter(rng("scatter"), scale),
        "vertex_normals": _normals(rng("normals"), scale),
        "inpaint_vertices": _inpaint(rng("inpaint"), scale),
    }
    if fast.number and not long:
        made["conv3d_prepare"] = Sample(prepare, fast.inputs)
    return made
