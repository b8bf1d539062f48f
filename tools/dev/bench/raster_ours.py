"""This package's rasteriser in `bench raster`: the C core, into arrays that are there already."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, INDEX, VALUES, Given, Job, MissingError
from tools.dev.bench.raster_scene import Scene

RULES = ("topleft", "compat")


def variables(threads: int) -> dict[str, str]:
    """Nothing: the thread count is an argument."""
    return {}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    core = _core()
    if given is not None:
        return [_interpolating(core, scene, given, threads)]
    found = []
    for rule in RULES:
        found += [_drawing(core, scene, kind, rule, threads) for kind in (BOTH, INDEX)]
    return found


def draw(scene: Scene, threads: int) -> Given:
    """What the others' pictures are held against, by the rule "topleft"."""
    job = _drawing(_core(), scene, BOTH, "topleft", threads)
    job.run()
    return Given(*job.result())


def _core() -> Any:
    from hy3d_rocm import _native

    if not _native.available:
        raise MissingError(f"the C core is not there ({_native.missing}), and this measures it")
    from hy3d_rocm import _core

    return _core


def _drawing(core: Any, scene: Scene, kind: str, rule: str, threads: int) -> Job:
    shape = (scene.size, scene.size)
    face_index = np.zeros(shape, np.int32)
    barycentric = np.zeros((*shape, 3), np.float32) if kind == BOTH else None
    call = partial(core.rasterize, scene.clip, scene.faces, None, face_index, barycentric, None,
                   rule=rule, threads=threads)  # fmt: skip
    what = "" if kind == BOTH else ", face index alone"
    return Job(f"ours, {rule}{what}", kind, {"rasterize": call}, lambda: (face_index, barycentric))


def _interpolating(core: Any, scene: Scene, given: Given, threads: int) -> Job:
    pixels = given.face_index.size
    out = np.zeros((pixels, scene.attributes.shape[1]), np.float32)
    call = partial(core.interpolate, scene.attributes, scene.faces, given.face_index.reshape(-1),
                   given.barycentric.reshape(-1, 3), out, threads=threads)  # fmt: skip
    return Job("ours", VALUES, {"interpolate": call}, lambda: (out,))
