"""What a child of `bench raster` measures: a job is one way to draw, or to interpolate, the scene.

A peer is a module with `variables(threads)`, what its child's environment has to hold before it
loads, and `jobs(scene, given, threads)`. Modules of peers import what they measure in jobs() only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Kinds of work; only jobs of one kind are compared.
BOTH, INDEX, VALUES = "both", "index", "values"


class MissingError(Exception):
    """A peer is not to be had here; the text says what to install."""


@dataclass(frozen=True)
class Given:
    """What interpolation starts from, so that all start from the same: face_index (H, W) i32,
    barycentric (H, W, 3) f32."""

    face_index: Any
    barycentric: Any


@dataclass(frozen=True)
class Job:
    """One way to do it. kind: BOTH (face index and barycentrics), INDEX (face index alone) or
    VALUES (three channels at every pixel).

    stages: what is timed, one after the other, by name. The first is the work itself; what follows
    (a read-back, an order of pixels) is also needed to have the result in a NumPy array.
    result: the arrays of the last run, as NumPy: (face_index, barycentric or None) or (values,).
    prepared: milliseconds of what was done once before, by name (a tree, an upload).
    """

    name: str
    kind: str
    stages: Mapping[str, Callable[[], Any]]
    result: Callable[[], tuple[Any, ...]]
    prepared: Mapping[str, float] = field(default_factory=dict)

    def run(self) -> dict[str, float]:
        """Seconds of each stage."""
        seconds = {}
        for name, stage in self.stages.items():
            started = time.perf_counter()
            stage()
            seconds[name] = time.perf_counter() - started
        return seconds


@dataclass(frozen=True)
class Peer:
    """module: of jobs() and variables(); install: how to get it."""

    name: str
    module: str
    install: str


OURS = Peer("ours", "tools.dev.bench.raster_ours", "build the C core (make core)")
PEERS: Sequence[Peer] = (
    Peer("NumPy", "tools.dev.bench.raster_numpy", "pip install numpy"),
    Peer("torch", "tools.dev.bench.raster_torch", "pip install torch"),
    Peer(
        "llvmpipe",
        "tools.dev.bench.raster_gl",
        "pip install moderngl; on Debian: apt install libegl1 libgl1-mesa-dri",
    ),
    Peer("Open3D", "tools.dev.bench.raster_open3d", "pip install open3d"),
)


def milliseconds(function: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and how long it took."""
    started = time.perf_counter()
    made = function()
    return made, 1e3 * (time.perf_counter() - started)
