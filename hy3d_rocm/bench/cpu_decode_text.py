"""A run of `bench decode --device cpu` as text and as JSON, and its targets."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from hy3d_rocm.bench.cpu_decode import OURS, TORCH, CpuDecodeReport, Side
from hy3d_rocm.bench.cpu_machine import machine, machine_lines
from hy3d_rocm.bench.cpu_sums import Target
from hy3d_rocm.bench.cpu_watch import cache_text
from hy3d_rocm.units import GB, aligned, size_text


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
        "for the others. peak: of the first and the second call, in a process of its own, above",
        "what was in use before: the frames and the weight cache are in it, the VAE is not.",
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
        Target("speed", report.ratio, 2.8, unit=" x"),
        Target("PSNR against torch's frames", report.psnr, 80, unit=" dB"),
    ]
    if ours.peaks and theirs.peaks:
        cache = float(ours.cache.get("limit_bytes", 0))
        most = (max(theirs.peaks) + cache) / GB
        text = "peak, torch's and the cache's limit"
        found.append(Target(text, max(ours.peaks) / GB, most, False, " GB"))
    return found


def cpu_decode_dict(report: CpuDecodeReport) -> dict[str, Any]:
    """JSON-able, but for infinities."""
    settings = dataclasses.asdict(report.settings)
    settings.pop("say")
    found = [{**dataclasses.asdict(t), "verdict": t.verdict} for t in decode_targets(report)]
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
