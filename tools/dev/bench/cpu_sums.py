"""What a run of `bench conv` comes to, and its targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from hy3d_rocm.bench.timing import Target
from hy3d_rocm.units import MB
from tools.dev.bench.cpu_conv import COLD, OURS, TORCH, ConvReport, ConvRow
from tools.dev.bench.cpu_layers import OTHER, WIDE, group_of
from tools.dev.bench.gpu_summary import geomean

_at_least = partial(Target, is_least=True)
_Named = tuple[float, str]  # a figure and the layer it is of


@dataclass(frozen=True)
class Sums:
    """A group of layers. Ratios are torch's time over ours. totals: seconds of all the calls that
    the decodes make, by OURS and TORCH. Errors relative to max |y|; workspace: bytes a thread."""

    group: str
    layers: int
    geomean: float | None
    lowest: _Named | None
    highest: _Named | None
    totals: dict[str, float]
    cold: float | None
    share: float | None
    torch_share: float | None
    error: _Named | None
    torch_error: _Named | None
    workspace: _Named | None

    @property
    def total_ratio(self) -> float | None:
        return self.totals[TORCH] / self.totals[OURS] if self.totals[OURS] > 0 else None


def sums_of(report: ConvReport) -> list[Sums]:
    """Of each group that has layers with figures."""
    timed = [row for row in report.rows if row.ratio() is not None]
    groups = {g: [row for row in timed if group_of(row.layer) == g] for g in (WIDE, OTHER)}
    return [_sums(group, rows) for group, rows in groups.items() if rows]


def _sums(group: str, rows: Sequence[ConvRow]) -> Sums:
    ratios = [(ratio, row.layer.text) for row in rows if (ratio := row.ratio()) is not None]
    workspaces = [
        (row.told.workspace_bytes / max(1, row.told.threads), row.layer.text)
        for row in rows
        if row.told is not None
    ]
    return Sums(
        group,
        len(rows),
        geomean(ratio for ratio, _ in ratios),
        min(ratios, default=None),
        max(ratios, default=None),
        {n: sum(row.layer.count * (row.median(n) or 0) for row in rows) for n in (OURS, TORCH)},
        _mean(row.ratio(COLD) for row in rows),
        _mean(row.share() for row in rows),
        _mean(row.share(TORCH) for row in rows),
        _worst(rows, OURS),
        _worst(rows, TORCH),
        max(workspaces, default=None),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    return geomean(value for value in values if value is not None)


def _worst(rows: Sequence[ConvRow], name: str) -> _Named | None:
    """NaN is worse than anything."""
    found = [(row.errors[name], row.layer.text) for row in rows if name in row.errors]
    return max(found, key=lambda pair: (math.isnan(pair[0]), pair[0]), default=None)


def targets(report: ConvReport, level: str) -> list[Target]:
    """Those that were set for float32 and bfloat16 on CPU_SETS."""
    found: list[Target] = []
    for sums in sums_of(report):
        found += (_wide if sums.group == WIDE else _others)(sums, report, level)
    return found


def _wide(sums: Sums, report: ConvReport, level: str) -> list[Target]:
    settings, name = report.settings, sums.group
    lowest, workspace = sums.lowest or (None, ""), sums.workspace
    if settings.dtype in ("float16", "float64"):
        return []
    if settings.accuracy == "exact":
        return [_at_least(f"{name}: speed, geometric mean", sums.geomean, 0.95)]
    is_half = settings.dtype != "float32"
    least = 2.5 if is_half or level == "avx2" else 3.0
    found = [
        _at_least(f"{name}: speed, geometric mean", sums.geomean, least),
        _at_least(f"{name}: speed, all calls of the decodes", sums.total_ratio, least),
    ]
    error = sums.error or (None, "")
    if is_half:
        most = sums.torch_error[0] if sums.torch_error else math.inf
        found.append(Target(f"{name}: error, beside torch's", error[0], most, "", error[1]))
    else:
        found.append(_at_least(f"{name}: speed, lowest", lowest[0], 1.5, at=lowest[1]))
        found.append(Target(f"{name}: error", error[0], 2e-5, "", error[1]))
    if workspace is not None:
        used = workspace[0] / MB
        found.append(Target(f"{name}: workspace a thread", used, 64, " MB", workspace[1]))
    return found


def _others(sums: Sums, report: ConvReport, _level: str) -> list[Target]:
    if report.settings.dtype != "float32":
        return []
    lowest = sums.lowest or (None, "")
    return [
        _at_least(f"{sums.group}: speed, geometric mean", sums.geomean, 1.0),
        _at_least(f"{sums.group}: speed, lowest", lowest[0], 0.8, at=lowest[1]),
    ]
