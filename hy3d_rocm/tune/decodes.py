"""The convolutions of a decode by decode(), of the way that would be taken, on shapes alone."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.engines.plain import PlainEngine
from hy3d_rocm.decode.engines.torch_backend import TorchBackend
from hy3d_rocm.decode.memory.predict import MetaWeights, predict
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.decode.planning.prices import ghost_run
from hy3d_rocm.tune.shapes import Notes, Shape, sorted_shapes

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvSpec
    from hy3d_rocm.decode.planning.planner import Way
    from hy3d_rocm.decode.planning.ways import Job

__all__ = ["collect_decode"]

logger = logging.getLogger("hy3d_rocm")


def collect_decode(job: Job, way: Way | None) -> tuple[list[Shape], str]:
    """The convolutions, the most work first, and in words whose they are.

    job: of a family over "meta" parameters. way: that would be taken; None, and where its layers
    are computed by fused kernels (which call no convolution): the decode of all frames at once, as
    the VAE's own code does it under protect().
    """
    if way is not None and way.strategy != "whole" and not job.is_fused:
        try:
            return _of_way(job, way), f"of the decode {way.name}"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            logger.debug("hy3d_rocm: %s on shapes: %s", way.name, error)
    return _of_whole(job), "of the decode of all frames at once"


def _of_way(job: Job, way: Way) -> list[Shape]:
    """As the engine runs it, with torch's operators for the layers."""
    device = job.device_of(way)
    plain = replace(job, make_backend=lambda weights, place: TorchBackend(weights))
    notes = Notes(device)

    def run() -> None:
        with torch.no_grad(), notes:
            ghost_run(plain, way)

    predict(run, workspace=OperatorWorkspace(device, None))
    if not notes.specs:
        raise ValueError("no convolution was seen")
    return sorted_shapes(notes.specs)


def _of_whole(job: Job) -> list[Shape]:
    def run() -> Counter[ConvSpec]:
        z = torch.empty((1, *job.shape[1:]), dtype=job.dtype, device="meta")
        with torch.no_grad(), Notes(job.device) as notes:
            _decoded(job.family, PlainEngine(MetaWeights(job.dtype, torch.device("meta"))), z)
        specs: Counter[ConvSpec] = notes.specs
        return specs

    # protect() and autocast of the caller belong to its thread: here the shapes meet neither.
    with ThreadPoolExecutor(1, thread_name_prefix="hy3d-tune-shapes") as worker:
        return sorted_shapes(worker.submit(run).result())


def _decoded(family: Any, engine: PlainEngine, z: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = family.decode(engine, z)
    return made
