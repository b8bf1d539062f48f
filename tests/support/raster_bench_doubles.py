"""A peer of `bench raster` that misbehaves as its environment says; for bench/test_raster.py."""

from __future__ import annotations

import os
import time

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, Given, Job, MissingError
from tools.dev.bench.raster_scene import Scene


def variables(threads: int) -> dict[str, str]:
    return {"DOUBLE_THREADS": str(threads)}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    if os.environ["DOUBLE_THREADS"] != str(threads):
        raise ValueError("the environment was not set before this loaded")
    print("a library talks on stdout")
    how = os.environ.get("DOUBLE", "")
    if how == "missing":
        raise MissingError("no such library")
    if given is not None:
        return []
    shape = (scene.size, scene.size)

    def work() -> None:
        print("and again")
        if how == "fails":
            raise RuntimeError("no picture today")
        if how == "ends":
            os._exit(7)
        if how == "hangs":
            time.sleep(60)

    empty = (np.zeros(shape, np.int32), np.zeros((*shape, 3), np.float32))
    stages = {"draw": work, "read-back": lambda: time.sleep(0.002)}
    return [Job("double", BOTH, stages, lambda: empty, {"tree": 5.0})]
