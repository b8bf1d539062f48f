"""A run of `bench decode` as text, against its targets, and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from hy3d_rocm.bench.gpu_decode import (
    BARE,
    EXACT,
    GUARDED,
    LARGE,
    LIBRARY,
    PROTECTED,
    DecodeReport,
)
from hy3d_rocm.bench.gpu_summary import Check
from hy3d_rocm.bench.timing import Measured
from hy3d_rocm.units import GB, aligned, size_text

_ORDER = (LIBRARY, GUARDED, BARE, PROTECTED, EXACT, LARGE)


def decode_text(report: DecodeReport) -> str:
    """Rows, what protect() did, targets, what is missing."""
    head = ("", "first", "median", "fastest..slowest", "peak", "PSNR")
    rows = [report.rows[name] for name in _ORDER if name in report.rows]
    lines = ["hy3d-rocm bench decode", "", *report.facts, ""]
    lines += [*aligned([head, *(_row(report, row) for row in rows)]), ""]
    lines += ["peak: beyond weights and latents, the frames included; PSNR: against float32", ""]
    lines += [f"{row.name}: {row.reason}" for row in rows if row.reason]
    if report.table:
        lines += ["What protect() did with the library off:", report.table, ""]
    lines += ["Targets:", *(f"  {check.line()}" for check in decode_checks(report)), ""]
    if report.left_out:
        lines.append(f"Left out for want of time (--seconds): {', '.join(report.left_out)}")
    if report.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines.append(f"Took {report.seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def decode_checks(report: DecodeReport) -> list[Check]:
    """The targets; the overhead of a scope only where nobody but AMD's users pays it."""
    plain, shielded = _median(report, LIBRARY), _median(report, PROTECTED)
    guarded = _median(report, GUARDED)
    loss = None
    if LIBRARY in report.psnr and PROTECTED in report.psnr:
        same = report.psnr[LIBRARY] == report.psnr[PROTECTED]
        loss = 0.0 if same else report.psnr[LIBRARY] - report.psnr[PROTECTED]
    found = [
        Check(
            "protect() without the library: time over the library's", _over(shielded, plain), 1.1
        ),
        Check("protect() without the library: peak", _peak_gb(report, PROTECTED), 16, " GB"),
        Check("protect() without the library: PSNR lost", loss, 0.5, " dB"),
        Check("768x1280: peak", _peak_gb(report, LARGE), 40, " GB"),
    ]
    if torch.version.hip is None:
        ratio = _over(guarded, plain)
        percent = None if ratio is None else 100 * (ratio - 1)
        found.append(Check("protect() with the library: overhead", percent, 2, " %"))
    return found


def decode_dict(report: DecodeReport) -> dict[str, Any]:
    """JSON-able."""
    return {
        "bench": "decode",
        "facts": report.facts,
        "base_bytes": report.base_bytes,
        "rows": [row.as_dict() for row in report.rows.values()],
        "psnr": report.psnr,
        "targets": [{**dataclasses.asdict(c), "verdict": c.verdict} for c in decode_checks(report)],
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "measured": any(row.first_seconds is not None for row in report.rows.values()),
        "seconds": report.seconds,
    }


def _row(report: DecodeReport, row: Measured) -> tuple[str, ...]:
    spread = "-" if row.spread is None else f"{row.spread[0]:.3f}..{row.spread[1]:.3f} s"
    peak = None if row.peak_bytes is None else row.peak_bytes - report.base_bytes
    decibels = report.psnr.get(row.name)
    return (
        row.name, _seconds(row.first_seconds), _seconds(row.median), spread,
        "-" if peak is None else size_text(peak, 2),
        "-" if decibels is None else f"{decibels:.2f} dB",
    )  # fmt: skip


def _median(report: DecodeReport, name: str) -> float | None:
    row = report.rows.get(name)
    return None if row is None or row.reason is not None else row.median


def _over(mine: float | None, base: float | None) -> float | None:
    return None if mine is None or not base else mine / base


def _peak_gb(report: DecodeReport, name: str) -> float | None:
    row = report.rows.get(name)
    if row is None or row.reason is not None or row.peak_bytes is None:
        return None
    return (row.peak_bytes - report.base_bytes) / GB


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
