"""The demo's timeline: memory of both decodes over time, and which tier ran each convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hy3d_rocm.units import MB

WHOLE_COLOUR, PROTECTED_COLOUR, BUDGET_COLOUR = "#9aa3ad", "#0f766e", "#b45309"
FAILED_COLOUR, SKIPPED_COLOUR = "#dc2626", "#d1d5db"
TIER_COLOURS = {"current": "#7c3aed", "native": "#2563eb", "cpu": "#0f766e"}
TIER_NAMES = {"current": "current back-end", "native": "PyTorch native", "cpu": "C conv3d"}


def draw_timeline(
    path: Path, whole: Mapping[str, Any], protected: Mapping[str, Any], budget_bytes: int
) -> None:
    """Draw `path` (PNG) from two decode records (see examples.demo.child).

    `memory` in a record is a list of [seconds, bytes above the memory after loading]; `calls` a
    list of {start, seconds, tier, outcome} ("ok", "failed" or "skipped").
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(10.5, 5.2), height_ratios=(3, 1), sharex=True, layout="constrained"
    )
    for record, label, colour in (
        (whole, "whole", WHOLE_COLOUR),
        (protected, "protected, tiled", PROTECTED_COLOUR),
    ):
        seconds = [sample[0] for sample in record["memory"]]
        megabytes = [sample[1] / MB for sample in record["memory"]]
        peak = record["peak_bytes"] / MB
        top.fill_between(seconds, megabytes, color=colour, alpha=0.25, linewidth=0)
        top.plot(seconds, megabytes, color=colour, label=f"{label}: peak {peak:.0f} MB")
    top.axhline(
        budget_bytes / MB,
        color=BUDGET_COLOUR,
        linestyle="--",
        label=f"budget: {budget_bytes / MB:.0f} MB",
    )
    top.set_ylabel("MB above loading")
    top.set_ylim(bottom=0)
    top.legend(frameon=False, loc="upper right")
    top.set_title("Memory while decoding, and what ran each convolution", loc="left")
    draw_tiers(bottom, protected["calls"])
    bottom.set_xlabel("seconds")
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_tiers(axis: Any, calls: Sequence[Mapping[str, Any]]) -> None:
    """One lane a tier: a bar for each convolution it ran, a red tick for each one it failed, a
    grey one for each one it was spared because it had failed that shape before."""
    tiers = list(TIER_NAMES)
    for lane, tier in enumerate(tiers):
        mine = [call for call in calls if call["tier"] == tier]
        done = [(c["start"], c["seconds"]) for c in mine if c["outcome"] == "ok"]
        axis.broken_barh(done, (lane - 0.32, 0.64), color=TIER_COLOURS[tier], linewidth=0)
        for outcome, colour in (("skipped", SKIPPED_COLOUR), ("failed", FAILED_COLOUR)):
            starts = [c["start"] for c in mine if c["outcome"] == outcome]
            axis.plot(starts, [lane] * len(starts), "|", color=colour, markersize=11)
    counts = [sum(c["tier"] == t and c["outcome"] != "skipped" for c in calls) for t in tiers]
    axis.set_yticks(
        range(len(tiers)),
        [f"{TIER_NAMES[tier]} ({count})" for tier, count in zip(tiers, counts, strict=True)],
    )
    axis.set_ylim(len(tiers) - 0.5, -0.5)
    legend = "red: failed with the injected error; grey: not tried, known to fail"
    axis.set_title(legend, loc="right", fontsize=9, color="#6b7280")
