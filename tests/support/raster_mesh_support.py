"""What the tests of interpolation, scatter, normals and in-painting share."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hy3d_rocm import _core

Array = np.ndarray[Any, np.dtype[Any]]
THREADS = (1, 2, 3, 8)
LEVELS = ("ref", "avx2", "avx512")  # a level that the machine lacks gives what it has


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def sheet(cells: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """positions (V, 3), uvs (V, 2) and faces (F, 3) of a wavy sheet, its faces shuffled."""
    side = cells + 1
    row, column = np.divmod(np.arange(side * side), side)
    positions = np.stack([column, row, rng.random(side * side)], 1).astype(np.float32)
    uvs = np.stack([column / cells, row / cells], 1).astype(np.float32)
    first = (np.arange(cells)[:, None] * side + np.arange(cells)).ravel()
    lower = np.stack([first, first + 1, first + side], 1)
    upper = np.stack([first + 1, first + side + 1, first + side], 1)
    return positions, uvs, rng.permutation(np.concatenate([lower, upper])).astype(np.int32)


def digests(threads: int) -> dict[str, str]:
    """A digest of what each function makes of the same inputs."""
    rng = np.random.default_rng(20261122)
    positions, uvs, faces = sheet(60, rng)
    made: dict[str, tuple[Array, ...]] = {}
    for channels in (1, 3, 21):
        face_index = rng.integers(0, len(faces) + 1, 60000, dtype=np.int32)
        out = np.empty((60000, channels), np.float32)
        attributes = floats(rng, len(positions), channels)
        barycentric = floats(rng, 60000, 3)
        _core.interpolate(attributes, faces, face_index, barycentric, out, threads)
        made[f"interpolate {channels}"] = (out,)
        values, uv = floats(rng, 50000, channels), rng.random((50000, 2), np.float32)
        for kind in ("linear", "nearest"):
            texture = np.empty((70, 90, channels), np.float32)
            total = np.empty((70, 90), np.float32)
            weights = rng.random(50000, np.float32)
            _core.scatter(values, uv, weights, texture, total, kind, threads)
            made[f"scatter {kind} {channels}"] = (texture, total)
    for weighting in ("area", "angle"):
        normals = np.empty_like(positions)
        _core.vertex_normals(positions, faces, normals, weighting, threads)
        made[f"normals {weighting}"] = (normals,)
    texture = floats(rng, 64, 64, 3)
    mask = (rng.random((64, 64)) < 0.2).astype(np.uint8)
    _core.inpaint_vertices(texture, mask, positions, uvs, faces, faces)
    made["inpaint"] = (texture, mask)
    return {
        name: hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
        for name, arrays in made.items()
    }


def digests_at(level: str) -> list[dict[str, str]]:
    """digests() for every thread count, in a process whose CPU level is lowered."""
    code = "from raster_mesh_support import *; print([digests(t) for t in THREADS])"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HY3D_CPU": level, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    made: list[dict[str, str]] = ast.literal_eval(result.stdout)
    return made
