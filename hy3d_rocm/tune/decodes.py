"""The convolutions of a decode by decode(), of the plan that would be taken, on shapes alone."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import meter
from hy3d_rocm.conv.triton import ahead
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.families import unproven_family
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.budget import make_budget
from hy3d_rocm.decoding.memory.dry_run import predict
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend
from hy3d_rocm.decoding.rehearsal import OnShapes, compile_ahead
from hy3d_rocm.decoding.run import at_once
from hy3d_rocm.tune.shapes import Notes, Shape, sorted_shapes

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvSpec
    from hy3d_rocm.decoding.planning.compiled import Compiled
    from hy3d_rocm.decoding.planning.planner import Plan, Variant

__all__ = ["collect_decode", "compile_decode", "plan_decode"]

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


def plan_decode(
    vae: Any, latent: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Job, Plan | None]:
    """The decode of latents by a VAE on "meta", and how it would be done with all the memory that
    is free; None where nothing fits."""
    backend = best_backend(device, dtype)
    job = Job(unproven_family(vae), latent, device, dtype, dtype, backend)
    try:
        return job, plan_job(job, make_budget(None, meter.machine_of(device)))
    except ValueError:
        return job, None


def compile_decode(job: Job, plan: Plan | None, look: Callable[[], object] = lambda: None) -> str:
    """Has the fused kernels of a decode compiled now, by several processes; a sentence, "" where
    there are none. look: called all along; may raise, after a cancel."""
    if plan is None or plan.compiled is None or job.make_backend.on_gpu != "fused":
        return ""
    if job.device_of(plan.variant).type == "cpu":
        return ""
    began, count = time.monotonic(), compile_ahead(job, plan.compiled)
    ahead.finish(look)
    if not count:
        return f"the GPU kernels of the decode {plan.variant.name} are compiled already"
    took = f"{count} GPU kernels of the decode {plan.variant.name} in"
    return f"compiled {took} {time.monotonic() - began:.0f} s, for its first time"


def _of_program(job: Job, way: Variant, compiled: Compiled) -> list[Shape]:
    """As its steps run, with torch's operators for the layers."""
    device, program = job.device_of(way), compiled.program
    found: Counter[ConvSpec] = Counter()

    def run() -> None:
        backend = TorchBackend(ModuleWeights(job.dtype, "meta"))
        on_shapes = OnShapes(compiled.graph, backend, job.dtype)
        seen: dict[Any, Counter[ConvSpec]] = {}
        for number, section in enumerate(program.sections):
            key = section["kind"], section["size"], program.steps(number)
            if key not in seen:
                with torch.no_grad(), Notes(device) as notes:
                    on_shapes.through(program, number, section)
                seen[key] = notes.specs
            found.update(seen[key])

    predict(run, workspace=OperatorWorkspace(device))
    if not found:
        raise ValueError("no convolution was seen")
    return sorted_shapes(found)


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
