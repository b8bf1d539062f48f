"""A run of `bench raster` as text and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

from hy3d_rocm.files import plain
from hy3d_rocm.units import aligned
from tools.dev.bench.decode_cpu import machine, machine_lines
from tools.dev.bench.raster_jobs import BOTH, INDEX, VALUES
from tools.dev.bench.raster_turns import WARM_UP, RasterPart, RasterReport, RasterRow

# Milliseconds, by pixels a side, what is done, and faces (at most; None: any number).
TARGETS_MS = {
    (1024, BOTH, 100_000): 25.0,
    (2048, BOTH, 1_000_000): 200.0,
    (1024, VALUES, None): 5.0,
}
_TARGETS_THREADS = 2  # others are not held against them
_ROUNDED_UP = 1.05  # a scene has a few faces more than it was asked for
_DRAWN = ("way", "median", "fastest", "work alone", "ratio", "ratio, all", "same face", "before")
_VALUED = ("way", "median", "fastest", "work alone", "ratio", "ratio, all", "error", "before")
_WORK = {BOTH: "face index and barycentrics", INDEX: "face index alone", VALUES: "three channels"}
_EXPLAINED = """\
Milliseconds, wall time, the second of two calls in each turn; everyone in turn. work alone: median
without read-back, conversion or order of pixels. before: done once and not counted (a tree over the
faces, an upload). ratio: the other's work alone over all of ours, median over the turns; ratio,
all: its whole time. Above 1 ours is faster. same face: pixels with our face index (ours, topleft).
"""


def raster_text(report: RasterReport) -> str:
    settings = report.settings
    lines = ["bench raster", "", *machine_lines(settings.threads)]
    lines += [f"{settings.repeats} turns after {WARM_UP} to warm up", ""]
    for part in report.parts:
        lines += _part_lines(part, settings.threads)
    lines += [*_EXPLAINED.splitlines(), ""]
    if report.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines.append(f"Took {report.seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def raster_dict(report: RasterReport) -> dict[str, Any]:
    """JSON-able."""
    settings = report.settings
    found: dict[str, Any] = plain(
        {
            "bench": "raster",
            "machine": machine(settings.threads),
            "settings": {"threads": settings.threads, "repeats": settings.repeats},
            "parts": [_part_dict(part, settings.threads) for part in report.parts],
            "interrupted": report.interrupted,
            "measured": report.measured,
            "seconds": report.seconds,
        }
    )
    return found


def verdicts(part: RasterPart) -> Iterator[tuple[str, float, str]]:
    """(kind, ratio, name) of the fastest other of each kind, by its work alone."""
    for kind in _WORK:
        others = [row for row in part.rows if row.kind == kind and not row.is_ours]
        ratios = [(ratio, row.name) for row in others if (ratio := part.ratio(row)) is not None]
        if ratios:
            yield (kind, *min(ratios))


def target_ms(part: RasterPart, kind: str) -> float | None:
    """What was set for it, if anything."""
    for (size, wanted, faces), limit in TARGETS_MS.items():
        fits = faces is None or faces <= part.faces <= _ROUNDED_UP * faces
        is_done = part.is_given == (kind == VALUES)
        if (size, wanted) == (part.size, kind) and fits and is_done:
            return limit
    return None


def _part_lines(part: RasterPart, threads: int) -> list[str]:
    what = "interpolation of three channels" if part.is_given else "drawing"
    lines = [f"{part.scene}: {what}", ""]
    head = _VALUED if part.is_given else _DRAWN
    lines += aligned([head, *(_cells(part, row) for row in part.rows)])
    lines += ["", *(f"{row.name}: {row.reason}" for row in part.rows if row.reason)]
    lines += [f"{name} is not there: {why}" for name, why in part.missing.items()]
    for kind in _WORK:
        ours, limit = part.ours(kind), target_ms(part, kind)
        if ours is not None and limit is not None and threads == _TARGETS_THREADS:
            took = _median(ours.totals())
            verdict = "met" if took <= limit else "missed"
            lines.append(f"{_WORK[kind]}: {took:.1f} ms, at most {limit:.0f} wanted: {verdict}")
    for kind, ratio, name in verdicts(part):
        word = "ahead of" if ratio > 1 else "behind"
        lines.append(f"{_WORK[kind]}: {word} the fastest other, {name}: {ratio:.2f}")
    return [*lines, ""]


def _cells(part: RasterPart, row: RasterRow) -> tuple[str, ...]:
    if not row.seconds:
        return (row.name, *("-" for _ in _DRAWN[1:]))
    shown = (_median(row.totals()), 1e3 * min(row.totals()), _median(row.works()))
    ratios = (part.ratio(row), part.ratio(row, work_alone=False))
    prepared = ", ".join(f"{name} {ms:.0f}" for name, ms in row.prepared.items()) or "-"
    return (
        row.name,
        *(f"{ms:.1f}" for ms in shown),
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        _closeness(row),
        prepared,
    )


def _closeness(row: RasterRow) -> str:
    if row.agreement is not None:
        return f"{100 * row.agreement:.4f} %"
    return "-" if row.difference is None else f"{row.difference:.1e}"


def _part_dict(part: RasterPart, threads: int) -> dict[str, Any]:
    return {
        **{name: getattr(part, name) for name in ("scene", "size", "faces", "is_given", "missing")},
        "rows": [_row_dict(part, row) for row in part.rows],
        "fastest_others": [
            {"kind": kind, "ratio": ratio, "name": name} for kind, ratio, name in verdicts(part)
        ],
        "targets_ms": {
            kind: limit for kind in _WORK
            if threads == _TARGETS_THREADS and (limit := target_ms(part, kind)) is not None
        },
    }  # fmt: skip


def _row_dict(part: RasterPart, row: RasterRow) -> dict[str, Any]:
    timed = {} if not row.seconds else {
        "median_ms": _median(row.totals()), "fastest_ms": 1e3 * min(row.totals()),
        "work_median_ms": _median(row.works()), "work_fastest_ms": 1e3 * min(row.works()),
    }  # fmt: skip
    return {
        **dataclasses.asdict(row),
        **timed,
        "ratio": part.ratio(row),
        "ratio_all": part.ratio(row, work_alone=False),
    }


def _median(seconds: list[float]) -> float:
    """In milliseconds."""
    return 1e3 * statistics.median(seconds)
