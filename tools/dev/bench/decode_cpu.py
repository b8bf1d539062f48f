"""`hy3d-rocm bench decode --device cpu`: a whole video decode by torch and by hy3d_rocm.decode."""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.bench.command import delivered, run_bench_command, say
from hy3d_rocm.bench.timing import BenchError, Target
from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.prepared import CacheStats
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.tools.metrics import psnr
from hy3d_rocm.units import GB, aligned, size_text
from tools.dev.bench import children
from tools.dev.bench.cpu_timing import median_ratio

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


def run_decode_command(arguments: argparse.Namespace) -> int:
    """The exit code; BenchError for what can't be measured."""
    code = children.started_anew(run_bench_command, arguments, say)
    if code is not None:
        return code
    if not _native.available:
        raise BenchError(f"the C core is not there ({_native.missing}), and this measures it")
    report = run_cpu_decode(settings_of(arguments))
    return delivered(arguments, cpu_decode_text(report), cpu_decode_dict(report))


def settings_of(arguments: argparse.Namespace) -> CpuDecodeSettings:
    """From the command's options; BenchError for what decode() does not know."""
    from hy3d_rocm.decoding.checks import STRATEGIES

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
    from hy3d_rocm.decoding import decode_with_report

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
        "run": children.named(run_alone), "which": side.name, "model": settings.model,
        "frames": settings.frames,
        "size": settings.size, "threads": settings.threads, "strategy": settings.strategy,
        "scale": settings.scale,
    }  # fmt: skip
    found = children.run_quietly(job, {})
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


def cpu_decode_text(report: CpuDecodeReport) -> str:
    """Rows, what ours did, targets."""
    settings = report.settings
    size = "x".join(map(str, report.frames[2:])) or "no frames"
    lines = [
        "hy3d-rocm bench decode --device cpu", "", *machine_lines(settings.threads),
        f"{report.subject}; float32, frames {size}, calls after the first: {settings.repeats}", "",
    ]  # fmt: skip
    head = ("", "first", "median", "fastest..slowest", "ratio", "peak, first", "peak, second")
    lines += [*aligned([head, *(_cells(report, side) for side in report.sides.values())]), ""]
    lines += [
        "ratio: torch's time over ours, median over pairs in turn. The first call prepares weights",
        "for the others where a plan keeps some: not of layers that run once a decode. peak: of",
        "the first and the second call, in a process of its own, above what was in use before: the",
        "frames and the weight cache are in it, the VAE is not.",
        "",
    ]
    if report.how:
        lines += [f"{OURS}: {report.how['strategy']}, {report.how['reason']}"]
    if report.psnr is not None:
        lines.append(
            f"PSNR against torch's frames {report.psnr:.1f} dB, largest difference "
            f"{report.largest_difference:.2e}"
        )
    for what, found in (("first call", report.first_cache), ("later calls", report.cache)):
        if found:
            lines.append(f"Weight cache, {what}: {cache_text(found)}")
    lines.append("")
    targets = decode_targets(report)
    if targets:
        lines += ["Targets:", *(f"  {target.line()}" for target in targets), ""]
    if report.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines.append(f"Took {report.seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def decode_targets(report: CpuDecodeReport) -> list[Target]:
    """Set for HunyuanVideo's VAE at full width."""
    settings = report.settings
    if settings.model != "hunyuan" or settings.scale < 1:
        return []
    ours, theirs = report.sides[OURS], report.sides[TORCH]
    found = [
        Target("speed", report.ratio, 2.8, " x", is_least=True),
        Target("PSNR against torch's frames", report.psnr, 80, " dB", is_least=True),
    ]
    if ours.peaks and theirs.peaks:
        cache = float(ours.cache.get("limit_bytes", 0))
        most = (max(theirs.peaks) + cache) / GB
        text = "peak, torch's and the cache's limit"
        found.append(Target(text, max(ours.peaks) / GB, most, " GB"))
    return found


def cpu_decode_dict(report: CpuDecodeReport) -> dict[str, Any]:
    """JSON-able, but for infinities."""
    settings = dataclasses.asdict(report.settings)
    settings.pop("say")
    found = [target.as_dict() for target in decode_targets(report)]
    return {
        "bench": "decode", "device": "cpu",
        "machine": machine(report.settings.threads),
        "settings": settings,
        "subject": report.subject, "latent": report.latent, "frames": report.frames,
        "sides": {name: dataclasses.asdict(side) for name, side in report.sides.items()},
        "ratio": report.ratio, "first_ratio": report.first_ratio,
        "psnr": report.psnr, "largest_difference": report.largest_difference,
        "how": report.how, "first_cache": report.first_cache, "cache": report.cache,
        "targets": found,
        "interrupted": report.interrupted,
        "measured": report.psnr is not None,
        "seconds": report.seconds,
    }  # fmt: skip


def _cells(report: CpuDecodeReport, side: Side) -> tuple[str, ...]:
    spread = f"{min(side.seconds):.2f}..{max(side.seconds):.2f} s" if side.seconds else "-"
    ratio = report.ratio if side.name == OURS else None
    peaks = [size_text(peak, 2) for peak in side.peaks] or ["-", "-"]
    return (
        side.name,
        "-" if side.first_seconds is None else f"{side.first_seconds:.2f} s",
        f"{statistics.median(side.seconds):.2f} s" if side.seconds else "-",
        spread, "-" if ratio is None else f"{ratio:.2f}", *peaks,
    )  # fmt: skip


VARIABLES = ("HY3D_CPU", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY",
             "HY3D_WEIGHT_CACHE_MB")  # fmt: skip


def machine(threads: int) -> dict[str, Any]:
    """JSON-able; no host name, no path."""
    from hy3d_rocm import __version__, _native

    info = _native.cpu_info()
    version = re.search(r"(?:oneDNN|MKL-DNN) v([\d.]+)", torch.__config__.show())
    return {
        "cpu": cpu_model(), "level": info["level"], "detected": info["detected"],
        "cpus": info["max_threads"], "threads": threads, "torch": torch.__version__,
        "onednn": version[1] if version else "none", "hy3d_rocm": __version__,
        "variables": {k: os.environ[k] for k in VARIABLES if os.environ.get(k)},
    }  # fmt: skip


def machine_lines(threads: int) -> list[str]:
    """The same for people."""
    facts = machine(threads)
    lines = [
        f"{facts['cpu']}, level {facts['level']} (the best here: {facts['detected']}), "
        f"{threads} of {facts['cpus']} threads",
        f"hy3d_rocm {facts['hy3d_rocm']}, torch {facts['torch']} with oneDNN {facts['onednn']}",
    ]
    if facts["variables"]:
        lines.append("with " + ", ".join(f"{k}={v}" for k, v in facts["variables"].items()))
    if facts["level"] != facts["detected"] and "ONEDNN_MAX_CPU_ISA" not in facts["variables"]:
        lines.append("torch is not held to that level: it may use all that the processor has")
    return lines


def cpu_model() -> str:
    """As /proc/cpuinfo has it ("AMD Ryzen 9 7950X 16-Core Processor"), else the platform."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cache_dict(stats: CacheStats) -> dict[str, Any]:
    """The weight cache's figures, JSON-able."""
    return {**dataclasses.asdict(stats), "hit_rate": stats.hit_rate}


def cache_text(figures: dict[str, Any]) -> str:
    """The same as one line."""
    asked = figures["hits"] + figures["misses"]
    return (
        f"{figures['hits']} of {asked} calls found their weights prepared "
        f"({figures['hit_rate']:.0%}), {figures['made']} were prepared, {figures['refused']} were "
        f"not kept; now {size_text(figures['bytes'])} of {size_text(figures['limit_bytes'])}"
    )
