"""decode(): a video latent to frames within a memory budget. See docs/decode.md."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode import memory
from hy3d_rocm.decode.checks import (
    PRECISIONS,
    STRATEGIES,
    check_choice,
    check_latents,
    check_parameters,
)
from hy3d_rocm.decode.faults import is_out_of_memory
from hy3d_rocm.decode.footprint import Footprint
from hy3d_rocm.decode.ladder import Ladder, Rung
from hy3d_rocm.decode.plan import Budget, BudgetTooSmallError, format_bytes, parse_budget
from hy3d_rocm.decode.report import DecodeOptions, DecodeReport, Step
from hy3d_rocm.decode.runner import Counter, Progress, TiledRun
from hy3d_rocm.decode.vaes import VideoVae, adapter_for
from hy3d_rocm.device import resolve_device

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

# Share of the free memory that a decode without a budget takes (the specification's threshold).
FREE_SHARE = 0.8


def decode(
    vae: Any,
    latents: Any,
    budget: Budget = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
) -> Tensor:
    """Frames (B, C, T, H, W) on the CPU: what `vae.decode(latents).sample` holds.

    vae: diffusers' AutoencoderKLHunyuanVideo or AutoencoderKLWan; nothing of it is changed.
    latents: (B, C, T, H, W) as the VAE takes them (already divided by its scaling factor).
    budget: bytes, "600MB", "6GB", or None for 0.8 of what is free now. On a GPU that of the GPU, on
    the CPU everything above what the process holds at the call, the result included.
    strategy: "whole" (the VAE's own unsplit decode, bit for bit), "tiled", or "auto": whole where
    it fits the budget, else the first rung of the ladder that does.
    precision: "auto" (the VAE's own type), "fp32", "bf16" or "fp16"; the result has the VAE's type.
    progress: called as progress(done, total, step) after each grain.
    cancel: a callable, an object with `.requested` or a threading.Event, looked at before each
    grain.

    Raises TypeError or ValueError (sentences) for input it can't decode, BudgetTooSmallError with
    the smallest budget that would do, DecodeCancelled. An allocation that fails takes the decode
    one rung down, and that is logged; the result is that rung's, bit for bit.
    """
    return decode_with_report(vae, latents, budget, strategy, precision, progress, cancel)[0]


def decode_with_report(
    vae: Any,
    latents: Any,
    budget: Budget = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    options: DecodeOptions | None = None,
) -> tuple[Tensor, DecodeReport]:
    """decode(), and how it went. `options`: see DecodeOptions."""
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("precision", precision, PRECISIONS)
    limit = parse_budget(budget)
    adapter = adapter_for(vae)
    check_latents(latents, adapter)
    with torch.no_grad():
        job = _prepare(adapter, latents, limit, PRECISIONS[precision], options or DecodeOptions())
        job.counter = Counter(progress, cancel)
        _choose(job, strategy)
        return _run(job), job.report


@dataclass
class _Job:
    adapter: VideoVae
    z: Tensor
    device: torch.device
    result_type: torch.dtype
    ladder: Ladder
    report: DecodeReport
    counter: Counter = field(default_factory=lambda: Counter(None, None))
    level: int = 0
    out: Tensor | None = None


def _prepare(
    adapter: VideoVae,
    latents: Tensor,
    limit: int | None,
    dtype: torch.dtype | None,
    options: DecodeOptions,
) -> _Job:
    vae = adapter.vae
    offload = getattr(vae, "_hf_hook", None)
    if offload is not None and hasattr(offload, "pre_forward"):
        offload.pre_forward(vae)  # as diffusers' own decode() does: brings the weights
    check_parameters(adapter)
    device = resolve_device(vae, default=adapter.device).device
    own = adapter.dtype
    logger.info(
        "[VAE Decode] Starting - latents shape %s, device %s", tuple(latents.shape), latents.device
    )
    logger.info("[VAE Decode] VAE device %s, VAE dtype %s", adapter.device, own)
    if dtype is not None and dtype != own:
        adapter = adapter.cast(dtype)
    rule = "given" if limit is not None else f"{FREE_SHARE} of what was free on {device}"
    room = limit if limit is not None else int(FREE_SHARE * memory.free_bytes(device))
    shape = tuple(latents.shape)
    report = DecodeReport(
        adapter.name,
        shape,
        adapter.out_shape(shape),
        str(device),
        str(adapter.dtype).removeprefix("torch."),
        room,
        rule,
    )
    z = latents.detach().to(device=device, dtype=adapter.dtype)
    ladder = Ladder(adapter, Footprint(adapter, device), shape, device, options)
    return _Job(adapter, z, device, own, ladder, report)


def _choose(job: _Job, strategy: str) -> None:
    """The rung that the budget (or the caller) gives."""
    began = time.perf_counter()
    report, ladder = job.report, job.ladder
    report.whole_bytes = ladder.whole.peak_bytes
    wanted = ladder.options.level
    if wanted is not None:
        if ladder.rung(wanted) is None:
            raise ValueError(
                f"level is {wanted}; this latent has the levels 0 to {len(ladder.all()) - 1}"
            )
        job.level, report.reason = wanted, "the level was given"
    else:
        job.level, report.reason = _fitting(ladder, report.budget_bytes, strategy)
    report.planning_seconds = time.perf_counter() - began
    _describe(job)


def _fitting(ladder: Ladder, budget: int, strategy: str) -> tuple[int, str]:
    whole = ladder.whole.peak_bytes
    fits = whole <= budget
    if strategy == "whole" or (strategy == "auto" and fits):
        if not fits:
            raise BudgetTooSmallError(budget, whole, 0)
        why = "was asked for" if strategy == "whole" else "fits the budget"
        return 0, f"the whole decode ({format_bytes(whole)}) {why}"
    for level in count(1):
        rung = ladder.rung(level)
        if rung is None:
            break
        if rung.peak_bytes <= budget:
            why = (
                "tiles were asked for"
                if fits
                else f"the whole decode needs {format_bytes(whole)}, the budget is "
                f"{format_bytes(budget)}"
            )
            return level, why
    smallest = ladder.all()[-1].peak_bytes
    raise BudgetTooSmallError(budget, smallest, None, "decode fewer frames or a smaller picture")


def _describe(job: _Job) -> None:
    report, rung = job.report, _rung(job)
    report.level = job.level
    report.strategy = rung.kind
    report.plan = rung.describe(job.z.shape[2])
    report.predicted_peak_bytes = rung.peak_bytes
    logger.info(
        "[VAE Decode] Level %d (%s), predicted peak %s of %s: %s",
        job.level,
        rung.kind,
        format_bytes(rung.peak_bytes),
        format_bytes(report.budget_bytes),
        report.reason,
    )


def _rung(job: _Job) -> Rung:
    rung = job.ladder.rung(job.level)
    assert rung is not None
    return rung


def _run(job: _Job) -> Tensor:
    """Down the ladder until a rung ends without an OOM."""
    where = "GPU decode" if job.device.type == "cuda" else "CPU decode"
    logger.info("[VAE Decode] Attempting %s on %s", where, job.device)
    began = time.perf_counter()
    with memory.PeakMeter(job.device, exact=False) as meter:
        _synchronize(job.device)
        while True:
            failure = _attempt(job)
            if failure is None:
                break
            # Outside the except block: the exception held the failed grain's tensors.
            memory.give_back(job.device)
            _step_down(job, failure)
        _synchronize(job.device)
    out = job.out
    assert out is not None
    job.report.measured_peak_bytes = meter.peak_bytes
    job.report.seconds = time.perf_counter() - began
    job.report.steps = job.counter.done
    logger.info(
        "[VAE Decode] %s SUCCESS - result device %s, shape %s", where, out.device, tuple(out.shape)
    )
    return out


def _attempt(job: _Job) -> str | None:
    """Runs the current rung. The text of an OOM if it ended in one; None when done."""
    try:
        if job.level == 0:
            _whole(job)
        else:
            if job.out is None:
                job.out = torch.empty(job.report.out_shape, dtype=job.result_type)
            TiledRun(job.adapter, _rung(job), job.z, job.out, job.counter).run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return f"{type(error).__name__}: {error}"
    return None


def _whole(job: _Job) -> None:
    job.counter.done, job.counter.total = 0, 1
    job.counter.check()
    frames, height, width = job.report.out_shape[2:]
    job.out = job.adapter.whole(job.z).to(device="cpu", dtype=job.result_type)
    job.counter.tick(Step("whole", 0, 0, 0, (0, frames), (0, height), (0, width)))


def _step_down(job: _Job, failure: str) -> None:
    """One rung finer, from the start: what is done is thrown away, so the result is the finer
    rung's own, bit for bit. Raises where there is no finer one."""
    event = {
        "event": "out of memory",
        "level": job.level,
        "grain": job.counter.done,
        "grains": job.counter.total,
        "error": failure,
    }
    job.report.events.append(event)
    if job.ladder.rung(job.level + 1) is None:
        raise MemoryError(
            f"the decode ran out of memory at its finest level ({job.level}, predicted peak "
            f"{format_bytes(_rung(job).peak_bytes)}): free memory, or decode fewer frames or a "
            f"smaller picture. {failure}"
        )
    job.level += 1
    event["next_level"] = job.level
    job.report.reason = f"out of memory at level {job.level - 1}"
    logger.warning(
        "[VAE Decode] Out of memory in grain %d of %d: starting again at level %d (%s)",
        job.counter.done + 1,
        job.counter.total,
        job.level,
        failure,
    )
    _describe(job)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
