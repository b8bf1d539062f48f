"""The node that measures the convolutions of a VAE's decode ahead, as `hy3d-rocm tune`: the VAE's
own shapes, those of the way that decode() would take for this size."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import memory, vaes
from hy3d_rocm.comfy.nodes.common import EachTime, Wanted, latent_shape
from hy3d_rocm.comfy.running import TimeBar, Watcher, current_device, said
from hy3d_rocm.conv import probe as probing
from hy3d_rocm.conv.policy import Memory
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.planning.planner import Plan
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.tune.fused import compile_decode, tune_decode
from hy3d_rocm.tune.measure import Lab
from hy3d_rocm.tune.report import tune_text
from hy3d_rocm.tune.session import Wishes, tune_shapes
from hy3d_rocm.tune.shapes import Shape, collect_decode

logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmTuneVAE(EachTime):
    """`hy3d-rocm tune` for the VAE and size of a workflow."""

    @classmethod
    def execute(
        cls, vae: Any, width: int, height: int, frames: int, seconds: int, samples: Any = None,
        again: bool = False, retry_hung: bool = False,
    ) -> io.NodeOutput:  # fmt: skip
        wishes = Wishes(again=again, retry_hung=retry_hung, limit_s=float(seconds))
        report = tune(vae, Wanted(width, height, frames, samples), wishes)
        return io.NodeOutput(report, ui=ui.PreviewText(report))


def tune(vae: Any, wanted: Wanted, wishes: Wishes) -> str:
    """A report in lines. Cancel goes through; what was measured by then is kept.

    ValueError (a sentence) for a size that is none, and for a VAE whose layers are not known.
    """
    job, plan = _decode_of(vae, wanted)
    if job.device.type == "cpu":
        return (
            "Nothing was measured: ComfyUI computes this VAE on the CPU, where PyTorch's own "
            "convolution is left as it is until it fails. Tuning is for GPUs."
        )
    freed = memory.free_everything().splitlines()[-1]
    began, say = time.monotonic(), functools.partial(logger.info, "[Tune VAE] %s")
    try:
        with Watcher() as watcher, torch.inference_mode(False), current_device(job.device):
            tiles = tune_decode(
                job, plan, say, limit_s=wishes.limit_s, again=wishes.again, look=watcher.throw
            )
    except RuntimeError as error:
        tiles = f"the kernels of its fused decode were not measured: {said(error)}"
    left = max(wishes.limit_s - (time.monotonic() - began), 0.0)
    shapes, whose = collect_decode(job, plan)
    report = measure(shapes, job.device, replace(wishes, limit_s=left))
    try:
        with Watcher() as watcher, current_device(job.device):
            compiled = compile_decode(job, plan, watcher.throw)
    except RuntimeError as error:
        compiled = f"the kernels of its fused decode were not compiled: {said(error)}"
    lines = "\n".join(filter(None, (report, tiles, compiled)))
    return f"{len(shapes)} convolutions {whose}\n{freed}\n\n{lines}".rstrip()


def measure(
    shapes: Sequence[Shape], device: torch.device, wishes: Wishes, *, lab: Lab | None = None,
    known: Memory | None = None,
) -> str:  # fmt: skip
    """The table of `hy3d-rocm tune`. lab, known: others than the device's own (tests)."""
    # Tensors that inference mode makes are none that every operator takes.
    with Watcher() as watcher, torch.inference_mode(False), current_device(device):
        bar = TimeBar(wishes.limit_s, watcher)

        def heard(line: str) -> None:
            logger.info("[Tune VAE] %s", line)
            bar.look()

        report, default = tune_shapes(
            shapes, device, wishes, heard, lab=lab,
            probe=functools.partial(probing.probe, cancel=bar.look), memory=known,
        )  # fmt: skip
        bar.end()
    return tune_text(report, default)


def _decode_of(vae: Any, wanted: Wanted) -> tuple[Job, Plan | None]:
    """What would be decoded, and how it would be, with all of the device's memory."""
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        raise ValueError(
            f"{said(error)}. Its convolutions can't be listed without a decode, so there is "
            "nothing to measure ahead; what they take is noted while it decodes"
        ) from error
    options = DecodeOptions()
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        shape = latent_shape(family, wanted)
        job = vaes.job_of(family, shape, family.dtype, device=place)
        if job.device.type == "cpu":
            return job, None
        try:
            budget = vaes.largest(vae, job.device, None, options)
            return job, plan_job(job, budget)
        except ValueError:
            return job, None
