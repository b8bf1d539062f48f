"""Times of interpolation, scatter, vertex normals and in-painting, the best of some runs.

python tests/bench/raster_mesh.py [--threads 2] [--runs 20]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402

from hy3d_rocm import _core  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
SIDE = 1024  # of the picture


def best_ms(call: Callable[[], Any], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def sheet(cells: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """positions, uvs and faces, the two of a cell side by side."""
    side = cells + 1
    row, column = np.divmod(np.arange(side * side), side)
    positions = np.stack([column, row, rng.random(side * side)], 1).astype(np.float32)
    first = (np.arange(cells)[:, None] * side + np.arange(cells)).ravel()
    faces = np.stack([first, first + 1, first + side, first + 1, first + side + 1, first + side], 1)
    return positions, positions[:, :2] / np.float32(cells), faces.reshape(-1, 3).astype(np.int32)


def picture(cells: int) -> tuple[Array, Array]:
    """Which face each pixel of the sheet, seen from above, shows, and where in it."""
    place = (np.arange(SIDE, dtype=np.float32) + np.float32(0.5)) * np.float32(cells / SIDE)
    x, y = np.meshgrid(place, place)
    cell = y.astype(np.int32) * cells + x.astype(np.int32)
    across, down = x % 1, y % 1
    upper = across + down > 1
    weights = np.stack([1 - across - down, across, down], -1)
    other = np.stack([1 - down, across + down - 1, 1 - across], -1)
    return 2 * cell + upper + 1, np.where(upper[..., None], other, weights)


def measure(threads: int, runs: int) -> None:
    rng = np.random.default_rng(1)
    pixels = SIDE * SIDE
    positions, uvs, faces = sheet(224, rng)
    face_index, weights = picture(224)
    face_index = np.ascontiguousarray(face_index.reshape(pixels), np.int32)
    barycentric = np.ascontiguousarray(weights.reshape(pixels, 3), np.float32)
    print(f"{threads} threads, CPU level {_core.cpu_info()['level']}, best of {runs}")
    for channels in (1, 2, 3, 4, 16):
        values = rng.random((len(positions), channels), np.float32)
        out = np.empty((pixels, channels), np.float32)
        args = (values, faces, face_index, barycentric, out, threads)
        took = best_ms(lambda a=args: _core.interpolate(*a), runs)
        print(
            f"interpolate {channels:2} channels, {SIDE} x {SIDE}, {len(faces)} faces: {took:.2f} ms"
        )
    uv = np.empty((pixels, 2), np.float32)
    _core.interpolate(uvs, faces, face_index, barycentric, uv, threads)
    values, share = rng.random((pixels, 3), np.float32), rng.random(pixels, np.float32)
    for side in (1024, 2048, 4096):
        texture, total = np.empty((side, side, 3), np.float32), np.empty((side, side), np.float32)
        for kind in ("linear", "nearest"):
            put = (values, uv, share, texture, total, kind, threads)
            took = best_ms(lambda a=put: _core.scatter(*a), max(runs // 4, 1))
            print(f"scatter {kind} {pixels} points into {side} x {side}: {took:.1f} ms")
    positions, uvs, faces = sheet(500, rng)
    for weighting in ("area", "angle"):
        around = (positions, faces, np.empty_like(positions), weighting, threads)
        took = best_ms(lambda a=around: _core.vertex_normals(*a), max(runs // 4, 1))
        print(f"normals by {weighting}, {len(faces)} faces: {took:.1f} ms")
    for covered in (0.95, 0.7, 0.1):
        mask = (rng.random((SIDE, SIDE)) < covered).astype(np.uint8)
        texture = rng.random((SIDE, SIDE, 3), np.float32)
        start = time.perf_counter()
        filled = _core.inpaint_vertices(texture, mask, positions, uvs, faces, faces)
        took = (time.perf_counter() - start) * 1e3
        print(f"in-painting of {filled} vertices of {len(positions)}: {took:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    measure(options.threads, options.runs)
