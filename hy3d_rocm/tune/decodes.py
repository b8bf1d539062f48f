"""The convolutions of a decode by decode(), of the plan that would be taken, on shapes alone."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.dry_run import predict
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.run import ProgramStep, Run, at_once
from hy3d_rocm.tune.shapes import Notes, Shape, sorted_shapes

if TYPE_CHECKING:
    from hy3d_rocm._core import Program
    from hy3d_rocm.conv.call import ConvSpec
    from hy3d_rocm.decoding.planning.compiled import Compiled
    from hy3d_rocm.decoding.planning.jobs import Job
    from hy3d_rocm.decoding.planning.planner import Plan, Variant

__all__ = ["collect_decode"]

logger = logging.getLogger("hy3d_rocm")


def collect_decode(job: Job, plan: Plan | None) -> tuple[list[Shape], str]:
    """The convolutions, the most work first, and in words whose they are.

    job: of a family over "meta" parameters. plan: that would be taken; None, and where its layers
    are computed by fused kernels (which call no convolution), or it is no program: the decode of
    all frames at once, as the VAE's own code does it under protect().
    """
    if plan is not None and plan.strategy != "whole" and plan.compiled and not job.is_fused:
        try:
            return _of_program(
                job, plan.variant, plan.compiled
            ), f"of the decode {plan.variant.name}"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            logger.debug("hy3d_rocm: %s on shapes: %s", plan.variant.name, error)
    return _of_whole(job), "of the decode of all frames at once"


class _OnShapes(Run):
    """On shapes nothing has to leave."""

    def _store(self, step: ProgramStep) -> None:
        """And so nothing is dropped or comes back."""

    _drop = _load = _store


def _of_program(job: Job, way: Variant, compiled: Compiled) -> list[Shape]:
    """As its steps run, with torch's operators for the layers."""
    device, meta = job.device_of(way), torch.device("meta")
    program, nodes = compiled.program, compiled.graph.nodes
    found: Counter[ConvSpec] = Counter()

    def run() -> None:
        backend = TorchBackend(ModuleWeights(job.dtype, "meta"))
        on_shapes = _OnShapes(compiled.graph, backend, meta, job.dtype)
        seen: dict[Any, Counter[ConvSpec]] = {}
        for number, section in enumerate(program.sections):
            size, behind = section["size"], section["kind"] > 1
            key = section["kind"], size, program.steps(number)
            channels = nodes[max(program.cut["node"], 0) if behind else 0].channels
            if key not in seen:
                seen[key] = _of_section(on_shapes, program, number, (channels, *size[1:]), device)
            found.update(seen[key])

    predict(run, workspace=OperatorWorkspace(device))
    if not found:
        raise ValueError("no convolution was seen")
    return sorted_shapes(found)


def _of_section(
    run: Run, program: Program, number: int, source: tuple[int, int, int], device: torch.device
) -> Counter[ConvSpec]:
    channels, rows, columns = source

    def fetch(frames: tuple[int, int]) -> torch.Tensor:
        size = 1, channels, frames[1] - frames[0], rows, columns
        return torch.empty(size, dtype=run.dtype, device="meta")

    with torch.no_grad(), Notes(device) as notes:
        for _ in run.section(program, number, fetch):
            pass
    specs: Counter[ConvSpec] = notes.specs
    return specs


def _of_whole(job: Job) -> list[Shape]:
    def run() -> Counter[ConvSpec]:
        z = torch.empty((1, *job.shape[1:]), dtype=job.dtype, device="meta")
        backend = TorchBackend(ModuleWeights(job.dtype, "meta"))
        with torch.no_grad(), Notes(job.device) as notes:
            at_once(record(job.family), backend, z)
        specs: Counter[ConvSpec] = notes.specs
        return specs

    # protect() and autocast of the caller belong to its thread: here the shapes meet neither.
    with ThreadPoolExecutor(1, thread_name_prefix="hy3d-tune-shapes") as worker:
        return sorted_shapes(worker.submit(run).result())
