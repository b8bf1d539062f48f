"""`hy3d-rocm bench decode --device cpu`: a whole video decode by torch and by hy3d_rocm.decode."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.bench import cpu_child
from hy3d_rocm.bench.cpu_timing import median_ratio
from hy3d_rocm.bench.cpu_watch import cache_dict
from hy3d_rocm.bench.gpu_decode import psnr
from hy3d_rocm.bench.models import BenchError
from hy3d_rocm.conv import prepared
from hy3d_rocm.env.shown import first_line

OURS, TORCH = "hy3d_rocm.decode", "torch, unsplit"


@dataclass(frozen=True)
class CpuDecodeSettings:
    """model: "hunyuan" or "wan", random weights; scale: share of its channels. size: (height,
    width). memory: whether peaks are measured, each in a child."""

    model: str = "hunyuan"
    frames: int = 9
    size: tuple[int, int] = (160, 160)
    threads: int = 1
    repeats: int = 3
    strategy: str = "auto"
    scale: float = 1.0
    memory: bool = True
    say: Callable[[str], None] = lambda _: None


@dataclass
class Side:
    """One way to decode. seconds: of the calls after the first. peaks: bytes above the memory with
    weights and latents loaded, the frames included, of the first and of the second call in a child
    of its own; its cache's figures after both."""

    name: str
    first_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)


@dataclass
class CpuDecodeReport:
    """sides: by name. ratio: torch's time over ours, median over pairs. how: what ours said of
    itself. first_cache, cache: the weight cache's figures of the first call and of the later
    ones."""

    settings: CpuDecodeSettings
    subject: str = ""
    latent: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    sides: dict[str, Side] = field(default_factory=dict)
    psnr: float | None = None
    largest_difference: float | None = None
    how: dict[str, Any] = field(default_factory=dict)
    first_cache: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def ratio(self) -> float | None:
        return median_ratio(self.sides[TORCH].seconds, self.sides[OURS].seconds)

    @property
    def first_ratio(self) -> float | None:
        """Of the first calls; ours prepares its weights in it."""
        theirs, ours = (self.sides[name].first_seconds for name in (TORCH, OURS))
        return theirs / ours if theirs is not None and ours else None


def settings_of(arguments: argparse.Namespace, say: Callable[[str], None]) -> CpuDecodeSettings:
    """From the command's options; BenchError for what decode() does not know."""
    from hy3d_rocm.decode.checks import STRATEGIES

    if arguments.strategy not in (None, *STRATEGIES):
        raise BenchError(f"--strategy {arguments.strategy}: it is one of {', '.join(STRATEGIES)}")
    size = arguments.size or (160, 160)
    return CpuDecodeSettings(
        arguments.model or "hunyuan", arguments.frames or 9, (size[0], size[1]),
        arguments.threads or torch.get_num_threads(), arguments.repeats,
        arguments.strategy or "auto", arguments.scale or 1.0, not arguments.no_memory, say,
    )  # fmt: skip


def run_cpu_decode(settings: CpuDecodeSettings) -> CpuDecodeReport:
    """Times, then what each takes; Ctrl-C ends it with what there is. torch's thread count is put
    back."""
    report = CpuDecodeReport(settings, sides={name: Side(name) for name in (TORCH, OURS)})
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.no_grad():
            _time(report)
        if settings.memory:
            for side in report.sides.values():
                settings.say(f"{side.name}: its peak, in a process of its own")
                _peaks(side, settings)
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        torch.set_num_threads(threads)
    report.seconds = time.perf_counter() - started
    return report


def _time(report: CpuDecodeReport) -> None:
    settings = report.settings
    vae, z, report.subject = _subject(settings.model, settings)
    report.latent = tuple(z.shape)
    calls = _calls(vae, z, settings.strategy, report.how)
    cache = prepared.cache()
    cache.clear()
    before = cache.stats()
    kept: dict[str, Tensor] = {}
    for turn in range(1 + settings.repeats):
        for name, side in report.sides.items():
            started = time.perf_counter()
            frames = _called(name, calls[name])
            seconds = time.perf_counter() - started
            if turn == 0:
                side.first_seconds, kept[name] = seconds, frames
            else:
                side.seconds.append(seconds)
            del frames
            settings.say(f"{name}: {f'call {turn + 1}' if turn else 'first call'} {seconds:.2f} s")
        now = cache.stats()
        if turn == 0:
            _compare(report, kept)
            kept.clear()
            report.first_cache, before = cache_dict(now.since(before)), now
        else:
            report.cache = cache_dict(now.since(before))


def _called(name: str, call: Callable[[], Tensor]) -> Tensor:
    try:
        return call()
    except (ValueError, RuntimeError, MemoryError) as error:
        raise BenchError(f"{name} failed: {first_line(error)}") from error


def _compare(report: CpuDecodeReport, kept: dict[str, Tensor]) -> None:
    ours, theirs = kept[OURS], kept[TORCH]
    report.frames = tuple(ours.shape)
    if ours.shape != theirs.shape:
        raise BenchError(f"ours made frames {tuple(ours.shape)}, torch {tuple(theirs.shape)}")
    report.psnr = psnr(ours, theirs)
    report.largest_difference = float((ours - theirs).abs().max())


def _subject(model: str, settings: CpuDecodeSettings) -> tuple[Any, Tensor, str]:
    from hy3d_rocm.tools.loading import LoadingError, make_vae, random_latents

    try:
        vae, text, _ = make_vae(model, torch.device("cpu"), torch.float32, settings.scale)
    except LoadingError as error:
        raise BenchError(str(error)) from error
    # What diffusers would split by itself is decoded whole: the same work on both sides.
    for switch in ("use_framewise_decoding", "use_tiling", "use_slicing"):
        if hasattr(vae, switch):
            setattr(vae, switch, False)
    return vae, random_latents(vae, settings.frames, *settings.size), text


def _calls(
    vae: Any, z: Tensor, strategy: str, how: dict[str, Any]
) -> dict[str, Callable[[], Tensor]]:
    from hy3d_rocm.decode import decode_with_report

    def theirs() -> Tensor:
        frames: Tensor = vae.decode(z).sample
        return frames

    def ours() -> Tensor:
        frames, report = decode_with_report(vae, z, strategy=strategy)
        how.update(
            strategy=report.strategy, reason=report.reason, delegated=report.delegated,
            predicted_peak_bytes=report.predicted_peak_bytes, plan=report.plan,
        )  # fmt: skip
        return frames

    return {TORCH: theirs, OURS: ours}


def _peaks(side: Side, settings: CpuDecodeSettings) -> None:
    job = {
        "job": "decode", "which": side.name, "model": settings.model, "frames": settings.frames,
        "size": settings.size, "threads": settings.threads, "strategy": settings.strategy,
        "scale": settings.scale,
    }  # fmt: skip
    found = cpu_child.run_quietly(job, {})
    side.peaks, side.cache = list(found["peaks"]), dict(found["cache"])


def run_alone(job: dict[str, Any]) -> dict[str, Any]:
    """In a child: the peaks of a first and of a second decode, and the cache's figures."""
    from hy3d_rocm.meter import PeakMeter

    settings = CpuDecodeSettings(
        job["model"], job["frames"], tuple(job["size"]), job["threads"],
        strategy=job["strategy"], scale=job["scale"],
    )  # fmt: skip
    torch.set_num_threads(settings.threads)
    vae, z, _ = _subject(settings.model, settings)
    call = _calls(vae, z, settings.strategy, {})[job["which"]]
    peaks, start = [], 0
    with torch.no_grad():
        # The back-end's code is loaded before the count begins.
        x = torch.ones(1, 16, 3, 32, 32, device="cpu")
        torch.nn.functional.conv3d(x, torch.ones(16, 16, 3, 3, 3, device="cpu"))
        for _ in range(2):
            with PeakMeter() as meter:
                call()
            start = start or meter.baseline_bytes
            peaks.append(meter.baseline_bytes + meter.peak_bytes - start)
    return {"peaks": peaks, "cache": cache_dict(prepared.cache().stats())}
