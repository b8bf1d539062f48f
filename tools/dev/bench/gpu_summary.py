"""What a run of `bench gpu` comes to: by tier, dtype and layout, and against the targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hy3d_rocm.bench.timing import Target
from hy3d_rocm.units import MB
from tools.dev.bench.gpu import GpuReport, Peak
from tools.dev.bench.gpu_cells import DEFAULT, LAYOUTS, Cell


@dataclass(frozen=True)
class Summary:
    """One tier in one dtype and layout. Ratios are over the default call; None: no figure.

    count: layers with a figure; without: (layer, why) of the others. slower: (ratio, layer) of the
    worst. extra: (bytes, layer) of the most. rms: (ratio, layer) of the worst; worst: geometric
    mean of the maxima's ratios, since the maximum of 256 is a matter of luck. flops: a second, over
    all layers. peak_share: geometric mean of least possible over measured time.
    """

    tier: str
    dtype: str
    layout: str
    count: int
    without: tuple[tuple[str, str], ...]
    geomean: float | None
    slower: tuple[float, str] | None
    extra: tuple[int, str] | None
    rms: tuple[float, str] | None
    worst: float | None
    flops: float | None
    peak_share: float | None


def summarise(report: GpuReport) -> list[Summary]:
    """By tier, then dtype, then layout."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in report.cells:
        for tier in cell.figures:
            cells = groups.setdefault((tier, cell.dtype, cell.layout), [])
            # The default call is timed in each round of tiers; the first one stands for it.
            if tier != DEFAULT or cell.layer not in [c.layer for c in cells]:
                cells.append(cell)
    tiers = list(dict.fromkeys(tier for tier, _, _ in groups))
    keys = sorted(groups, key=lambda key: tiers.index(key[0]))  # stable
    return [_summary(*key, groups[key], report.peak) for key in keys]


def _summary(tier: str, dtype: str, layout: str, cells: Sequence[Cell], peak: Peak) -> Summary:
    ratios = [(r, c.layer.text) for c in cells if (r := c.ratio(tier)) is not None]
    rms = [(r, c.layer.text) for c in cells if (r := c.error_ratios(tier)[0]) is not None]
    worst = [r for c in cells if (r := c.error_ratios(tier)[1]) is not None]
    extra = [
        (figure.extra_bytes, c.layer.text)
        for c in cells
        if (figure := c.figures[tier]).extra_bytes is not None
    ]
    timed = [(c, s) for c in cells if (s := c.figures[tier].seconds) is not None]
    share = [peak.least_seconds(c.layer, dtype) / s for c, s in timed]
    return Summary(
        tier, dtype, layout, len(timed),
        tuple((c.layer.text, c.figures[tier].reason or "not timed") for c in cells
              if c.figures[tier].seconds is None),
        geomean(r for r, _ in ratios), _worst(ratios), max(extra, default=None), _worst(rms),
        geomean(worst),
        sum(c.layer.flops for c, _ in timed) / sum(s for _, s in timed) if timed else None,
        geomean(share),
    )  # fmt: skip


def _worst(rows: Sequence[tuple[float, str]]) -> tuple[float, str] | None:
    """NaN is worse than anything."""
    return max(rows, key=lambda row: (math.isnan(row[0]), row[0]), default=None)


def geomean(values: Iterable[float]) -> float | None:
    """None of none; NaN or infinity show."""
    found = list(values)
    if not found:
        return None
    if min(found) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, found)) / len(found))


def checks(summaries: Sequence[Summary]) -> list[Target]:
    """The targets of the tiers "triton" and "gemm", for each dtype that was measured."""
    found: list[Target] = []
    for s in summaries:
        name = f"{s.tier}, {s.dtype}, {s.layout}"
        if s.tier == "triton":
            is_first = s.layout == LAYOUTS[0]
            most = 1.0 if is_first or s.dtype == "f32" else 1.15
            found.append(Target(f"{name}: time, geometric mean", s.geomean, most))
            if is_first:
                slower = s.slower or (None, "")
                found.append(Target(f"{name}: time, worst layer", slower[0], 1.3, at=slower[1]))
            found += _shared(s, name, 64)
        elif s.tier == "gemm":
            found.append(Target(f"{name}: time, geometric mean", s.geomean, 2.5))
            found += _shared(s, name, 256)
    return found


def _shared(s: Summary, name: str, megabytes: int) -> list[Target]:
    extra = s.extra or (None, "")
    used = None if extra[0] is None else extra[0] / MB
    rms = s.rms or (None, "")
    return [
        Target(f"{name}: memory beyond the result", used, megabytes, " MB", extra[1]),
        Target(f"{name}: RMS error, worst layer", rms[0], 1.2, at=rms[1]),
        Target(f"{name}: largest error, geometric mean", s.worst, 1.2),
    ]
