"""A run of `bench gpu` as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hy3d_rocm.bench.timing import Target
from hy3d_rocm.units import aligned, size_text
from tools.dev.bench.gpu import GpuReport
from tools.dev.bench.gpu_cells import DEFAULT, Cell
from tools.dev.bench.gpu_summary import Summary, checks, summarise
from tools.dev.bench.gpu_sweep import sweep_text

_SUM = ("tier", "dtype", "layout", "n", "geomean", "worst", "TFLOP/s", "of peak", "extra", "rms",
        "max")  # fmt: skip


def gpu_text(report: GpuReport) -> str:
    """The table of layers, the summary, the targets, and what is missing."""
    summaries = summarise(report)
    lines = ["bench gpu", "", *report.facts, *_peak_lines(report), ""]
    lines += [*aligned(_rows(report.cells)), ""]
    if report.has_sweep:
        lines += ["Tiles (ms):", *(f"  {c.text}: {sweep_text(c)}" for c in report.cells if c.sweep)]
        lines.append("")
    lines += [*aligned([_SUM, *map(_summary_row, summaries)]), ""]
    lines += ["geomean, worst, rms, max: time and error over the default call's in that layout;",
              "of peak: least possible over measured time (arithmetic or memory)", ""]  # fmt: skip
    lines += _gaps(report, summaries)
    found = checks(summaries)
    lines += ["", "Targets:", *(f"  {check.line()}" for check in found)] if found else []
    lines += ["", _verdict(report, found), f"Took {report.seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def _verdict(report: GpuReport, found: Sequence[Target]) -> str:
    failed = sum(check.verdict == "FAIL" for check in found)
    empty = sum(check.verdict == "no figure" for check in found)
    text = f"{len(found)} targets: {len(found) - failed - empty} met, {failed} missed"
    text += f", {empty} without a figure" if empty else ""
    is_whole = not (report.left_out or report.interrupted or report.fault)
    return text + ("" if is_whole else " (not all layers were measured)")


def _gaps(report: GpuReport, summaries: Sequence[Summary]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for s in summaries:
        for layer, why in s.without:
            reasons.setdefault(f"{s.tier}: {why}", []).append(f"{layer}, {s.dtype}, {s.layout}")
    lines = [
        f"no figure, {why} ({places[0]}{f', and {len(places) - 1} more' if places[1:] else ''})"
        for why, places in reasons.items()
    ]
    if report.left_out:
        lines += ["", "Left out for want of time (--seconds):"]
        lines += [f"  {text}" for text in report.left_out]
    if report.fault:
        lines += ["", f"Ended early, these are the figures so far: {report.fault}"]
    if report.interrupted:
        lines += ["", "Interrupted: these are the figures so far."]
    return lines


def _peak_lines(report: GpuReport) -> list[str]:
    products = ", ".join(f"{d} {f / 1e12:.3g} TFLOP/s" for d, f in report.peak.flops.items())
    return [f"one large product: {products}; one large copy: {report.peak.bytes / 1e12:.3g} TB/s"]


def _rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """A row for each layer, dtype and layout: the default call, and each tier's time over its."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.layer.text, cell.dtype, cell.layout), []).append(cell)
    tiers = dict.fromkeys(name for cell in cells for name in cell.figures if name != DEFAULT)
    rows = [("layer", "dtype", "layout", "default ms", "TFLOP/s", *tiers)]
    for key, group in groups.items():
        seconds = group[0].figures[DEFAULT].seconds
        ratios = {name: cell.ratio(name) for cell in group for name in cell.figures}
        base = ("-", "-")
        if seconds is not None:
            base = (f"{seconds * 1e3:.4g}", f"{group[0].layer.flops / seconds / 1e12:.4g}")
        rows.append((*key, *base, *(_times(ratios.get(name)) for name in tiers)))
    return rows


def _summary_row(s: Summary) -> tuple[str, ...]:
    return (
        s.tier, s.dtype, s.layout, str(s.count), _times(s.geomean),
        _times(s.slower and s.slower[0]),
        "-" if s.flops is None else f"{s.flops / 1e12:.4g}",
        "-" if s.peak_share is None else f"{s.peak_share:.0%}",
        _size(s.extra and s.extra[0]), _times(s.rms and s.rms[0]), _times(s.worst),
    )  # fmt: skip


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _size(count: int | None) -> str:
    return "-" if count is None else size_text(count)


def gpu_dict(report: GpuReport) -> dict[str, Any]:
    """JSON-able, every figure."""
    summaries = summarise(report)
    return {
        "bench": "gpu",
        "facts": report.facts,
        "peak": {"flops": dict(report.peak.flops), "bytes": report.peak.bytes},
        "cells": [_cell_dict(cell) for cell in report.cells],
        "summary": [dataclasses.asdict(s) for s in summaries],
        "targets": [{**dataclasses.asdict(c), "verdict": c.verdict} for c in checks(summaries)],
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "fault": report.fault,
        "seconds": report.seconds,
    }


def _cell_dict(cell: Cell) -> dict[str, Any]:
    data = dataclasses.asdict(cell)
    for name, figure in data["figures"].items():
        figure["ratio"] = cell.ratio(name)
        figure["rms_ratio"], figure["worst_ratio"] = cell.error_ratios(name)
        if figure["seconds"]:
            figure["tflops"] = cell.layer.flops / figure["seconds"] / 1e12
    return data
