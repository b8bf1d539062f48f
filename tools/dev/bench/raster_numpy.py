"""Interpolation as NumPy does it, in `bench raster`: one thread, whatever it is told."""

from __future__ import annotations

import numpy as np

from tools.dev.bench.raster_jobs import VALUES, Given, Job
from tools.dev.bench.raster_scene import Scene


def variables(threads: int) -> dict[str, str]:
    return {}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    """None that draws."""
    if given is None:
        return []
    # Pixels without a face take the last one's corners, by weights of 0. Made before: a favour.
    face = given.face_index.reshape(-1).astype(np.int64) - 1
    weights, faces = given.barycentric.reshape(-1, 3), scene.faces.astype(np.int64)
    made = {}

    def gather() -> None:
        made["out"] = np.einsum("pk,pkc->pc", weights, scene.attributes[faces[face]])

    return [Job("NumPy gather, einsum", VALUES, {"gather": gather}, lambda: (made["out"],))]
