"""A run of `bench conv` as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hy3d_rocm.units import aligned, size_text
from tools.dev.bench.cpu_conv import COLD, OURS, TORCH, ConvReport, ConvRow
from tools.dev.bench.cpu_layers import GIGA, group_of
from tools.dev.bench.cpu_memory import SLACK_BYTES
from tools.dev.bench.cpu_sums import Sums, sums_of, targets
from tools.dev.bench.decode_cpu import cache_text, machine, machine_lines

_STEADY = 0.6  # clocks alone were seen to change to two thirds
_EXPLAINED = """\
ratio: torch's time over ours, the median over rounds of (ours, torch) in turn; above 1 is faster.
GFLOP/s: operations of the direct sum, whatever an algorithm spares; so "of peak" may pass 100 %.
of peak: over what chains of f32 multiply-adds in registers reached at the same level, threads and
round (half of that for float64). Computed by: our strategy and its threads, and the BLAS library
where that does the sums. Error: largest of the sampled outputs against float64, relative to
max |y|.
"""


def conv_text(report: ConvReport) -> str:
    """Rows, sums, targets, what is missing."""
    settings = report.settings
    lines = ["bench conv", "", *machine_lines(settings.threads), _setting_line(report)]
    lines += _peak_lines(report)
    lines += ["", *aligned([_head(report), *(_cells(report, row) for row in report.rows)]), ""]
    lines += [*_EXPLAINED.splitlines(), _sample_line(report), ""]
    lines += [f"{row.layer.text}: {row.reason}" for row in report.rows if row.reason]
    for sums in sums_of(report):
        lines += [*_sums_lines(sums), ""]
    if report.cache:
        lines.append(f"Weight cache: {cache_text(report.cache)}")
    lines += [*_over_lines(report.rows), ""]
    found = targets(report, machine(settings.threads)["level"])
    if found:
        lines += ["Targets (for the two 9x160x160 decodes):", *(f"  {t.line()}" for t in found), ""]
    if report.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines.append(f"Took {report.seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def conv_dict(report: ConvReport) -> dict[str, Any]:
    """JSON-able, but for infinities."""
    settings = report.settings
    facts = machine(settings.threads)
    kept = ("dtype", "accuracy", "threads", "repeats", "clock", "cold")
    return {
        "bench": "conv",
        "machine": facts,
        "settings": {name: getattr(settings, name) for name in kept},
        "peak_gflops": None if report.peak is None else report.peak / GIGA,
        "layers": [_row_dict(row) for row in report.rows],
        "sums": [{**dataclasses.asdict(s), "total_ratio": s.total_ratio} for s in sums_of(report)],
        "targets": [
            {**dataclasses.asdict(t), "verdict": t.verdict}
            for t in targets(report, facts["level"])
        ],
        "cache": report.cache,
        "interrupted": report.interrupted,
        "measured": report.measured,
        "seconds": report.seconds,
    }  # fmt: skip


def _row_dict(row: ConvRow) -> dict[str, Any]:
    names = [name for name in (OURS, COLD, TORCH) if name in row.seconds]
    return {
        **dataclasses.asdict(row),
        "text": row.layer.text,
        "group": group_of(row.layer),
        "library": None if row.told is None else row.told.library,
        "gflop": row.layer.flops / GIGA,
        "ratio": row.ratio(),
        "cold_ratio": row.ratio(COLD),
        "median_seconds": {name: row.median(name) for name in names},
        "gflops": {name: (row.speed(name) or 0) / GIGA for name in names},
        "share": {name: row.share(name) for name in names},
        "is_over": is_over(row),
    }


def _setting_line(report: ConvReport) -> str:
    settings = report.settings
    what = "the calling thread's CPU time" if settings.clock == "cpu" else "wall time"
    warm = "weights prepared before the timed calls"
    if settings.cold:
        warm += '; "cold" prepares them in the call'
    return (
        f"{settings.dtype}, accuracy={settings.accuracy!r}, {settings.repeats} rounds, {what}; "
        f"{warm}"
    )


def _peak_lines(report: ConvReport) -> list[str]:
    if report.peak is None:
        return []
    found = [peak for row in report.rows for peak in row.peaks]
    low, high = min(found), max(found)
    lines = [
        f"peak: {report.peak / GIGA:.0f} GFLOP/s, median of all rounds ({low / GIGA:.0f} to "
        f"{high / GIGA:.0f})"
    ]
    if low < _STEADY * high:
        lines.append(
            f"Other programs had processors meanwhile, or the clock fell. {_advice(report)}"
        )
    return lines


def _advice(report: ConvReport) -> str:
    if report.settings.threads == 1:
        return "Ratios are of pairs and suffer little; --clock cpu is steadier."
    return (
        "With several threads that holds torch up more than ours, which deals out its work as it "
        "goes: repeat this on a quiet machine."
    )


def _head(report: ConvReport) -> tuple[str, ...]:
    cold = ("cold ms",) if report.settings.cold else ()
    extra = ("extra", "torch") if report.settings.extra else ()
    return (
        "layer", "calls", "ours ms", *cold, "torch ms", "ratio", "GFLOP/s", "torch", "of peak",
        "torch", "computed by", "workspace", "prepared", "error", "torch", *extra,
    )  # fmt: skip


def _cells(report: ConvReport, row: ConvRow) -> tuple[str, ...]:
    cold = (_ms(row.median(COLD)),) if report.settings.cold else ()
    names = (OURS, TORCH)
    extra = [size_text(row.extra_bytes[n]) if n in row.extra_bytes else "-" for n in names]
    told = row.told
    return (
        row.layer.text, str(row.layer.count), _ms(row.median()), *cold, _ms(row.median(TORCH)),
        _number(row.ratio(), "{:.2f}"), *(_number(row.speed(n), "{:.0f}", 1e9) for n in names),
        *(_number(row.share(n), "{:.0f} %", 0.01) for n in names),
        "-" if told is None else told.text,
        "-" if told is None else size_text(told.workspace_bytes),
        "-" if row.prepared_bytes is None else size_text(row.prepared_bytes),
        *(_number(row.errors.get(n), "{:.1e}") for n in names),
        *(extra if report.settings.extra else ()),
    )  # fmt: skip


def _sums_lines(sums: Sums) -> list[str]:
    lowest, highest = sums.lowest or (0.0, ""), sums.highest or (0.0, "")
    lines = [
        f"{sums.group}: {sums.layers} shapes",
        f"  geometric mean {_number(sums.geomean, '{:.3f}')} x torch, lowest {lowest[0]:.2f} "
        f"({lowest[1]}), highest {highest[0]:.2f} ({highest[1]})",
        f"  all calls of the decodes: {sums.totals[OURS]:.2f} s, torch {sums.totals[TORCH]:.2f} s, "
        f"{_number(sums.total_ratio, '{:.3f}')} x",
        f"  of peak, geometric mean: {_number(sums.share, '{:.0f} %', 0.01)}, torch "
        f"{_number(sums.torch_share, '{:.0f} %', 0.01)}",
    ]
    if sums.cold is not None:
        lines.append(f"  cold, geometric mean {sums.cold:.3f} x torch")
    for what, found in (("largest error", sums.error), ("torch's", sums.torch_error)):
        if found is not None:
            lines.append(f"  {what} {found[0]:.2e} ({found[1]})")
    if sums.workspace is not None:
        bytes_, where = sums.workspace
        lines.append(f"  largest workspace a thread {size_text(round(bytes_))} ({where})")
    return lines


def _sample_line(report: ConvReport) -> str:
    side = report.settings.side
    samples = [row.samples for row in report.rows]
    span = f"{min(samples):,} to {max(samples):,}" if samples else "no"
    return (
        f"Sampled are all channels of {side}x{side} positions at the first frame's corner and in "
        f"the middle: {span} outputs a layer."
    )


def is_over(row: ConvRow) -> bool:
    """Whether ours took more memory than it said."""
    if row.told is None or OURS not in row.extra_bytes:
        return False
    return row.extra_bytes[OURS] > row.told.workspace_bytes + SLACK_BYTES


def _over_lines(rows: Sequence[ConvRow]) -> list[str]:
    if not any(row.extra_bytes for row in rows):
        return []
    over = [row.layer.text for row in rows if is_over(row)]
    return [
        f"extra: peak of a call beyond its result, prepared weights apart. More than the workspace "
        f"and {size_text(SLACK_BYTES)}: {', '.join(over) or 'none'}"
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else form.format(value / unit)
