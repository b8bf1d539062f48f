"""Open3D's ray caster (embree) in `bench raster`: rays and tree are made before."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, Given, Job, MissingError
from tools.dev.bench.raster_scene import Scene

_NONE = 0xFFFFFFFF


def variables(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads)}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    """None that interpolates."""
    if given is not None:
        return []
    try:
        library: Any = importlib.import_module("open3d")
    except (ImportError, OSError) as error:
        raise MissingError(str(error)) from error
    tensor = library.core.Tensor
    started = time.perf_counter()
    tree = library.t.geometry.RaycastingScene(nthreads=threads)
    tree.add_triangles(tensor(scene.positions), tensor(scene.faces.astype(np.uint32)))
    rays = tensor(rays_of(scene))
    tree.cast_rays(rays[:1], nthreads=threads)  # builds
    built = 1e3 * (time.perf_counter() - started)
    made: dict[str, Any] = {}
    shape = (scene.size, scene.size)
    face_index, barycentric = np.zeros(shape, np.int32), np.zeros((*shape, 3), np.float32)

    def trace() -> None:
        made["hits"] = tree.cast_rays(rays, nthreads=threads)

    def convert() -> None:
        found = made["hits"]["primitive_ids"].numpy()
        uv = made["hits"]["primitive_uvs"].numpy()
        np.add(found, 1, out=face_index.view(np.uint32))  # no hit is 2^32 - 1
        barycentric[..., 1:] = uv
        np.subtract(1, uv.sum(axis=-1), out=barycentric[..., 0])
        barycentric[face_index == 0] = 0

    return [
        Job(f"Open3D {library.__version__} cast_rays", BOTH, {"trace": trace, "to NumPy": convert},
            lambda: (face_index, barycentric), {"tree": built})
    ]  # fmt: skip


def rays_of(scene: Scene) -> Any:
    """(H, W, 6) f32: origin and direction through each pixel's centre."""
    centres = ((2 * np.arange(scene.size) + 1) / scene.size - 1) * scene.slope
    rays = np.empty((scene.size, scene.size, 6), np.float32)
    rays[..., :3] = scene.eye
    rays[..., 3], rays[..., 4], rays[..., 5] = centres[None, :], centres[:, None], -1
    return rays
