"""Reports of decodes and encodes as lines, and the memory of what this session has met."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

from hy3d_rocm.decoding.report import DecodeReport
from hy3d_rocm.pipeline import unwrap
from hy3d_rocm.tools.planning import transfers
from hy3d_rocm.units import size_text

KEPT = 5

_reports: deque[str] = deque(maxlen=KEPT)
_known: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def remember(report: str) -> None:
    """Keeps the report of a decode or encode for the status node; the last KEPT stay."""
    with _lock:
        _reports.append(report)


def know(pipeline: Any) -> None:
    """Lets the status name this pipeline as long as it lives; it is not kept alive by that."""
    with _lock:
        try:
            _known[unwrap(pipeline)] = None
        except TypeError:  # an object without weak references cannot be watched
            return


def remembered() -> list[str]:
    """The reports that are kept, the newest first."""
    with _lock:
        return list(reversed(_reports))


def known_pipelines() -> list[Any]:
    """Those that know() was told of and that still live."""
    with _lock:
        return list(_known)


def report_text(
    report: DecodeReport, given: Any, made: Any, encode: bool, seconds: float | None = None,
    table: str = "",
) -> str:  # fmt: skip
    """All of it. given, made: tensors. seconds: of the node's work, None for the report's own.
    table: of the convolutions."""
    kind, other = ("pixels", "latents") if encode else ("latents", "images")
    took = report.seconds if seconds is None else seconds
    lines = [
        f"{kind} {tuple(given.shape)} -> {other} {tuple(made.shape)} in {took:.2f} s",
        *report_lines(report),
        table,
    ]
    return "\n".join(line for line in lines if line)


def copies_of(report: DecodeReport) -> str:
    """What the program that was taken copies, "15.68 GB to the host and 16.98 GB back"; "" where
    it copies nothing."""
    taken = (c for c in report.plan.get("candidates", ()) if c["way"] == report.plan.get("way"))
    found: dict[str, Any] = next(taken, {})
    return transfers(found.get("stored_bytes") or 0, found.get("loaded_bytes") or 0)


def report_lines(report: DecodeReport) -> list[str]:
    """What was planned, done and met."""
    if report.strategy == "own":
        return [
            f"{report.vae} cannot be cut into parts here: ComfyUI's own code was run "
            f"{report.plan['how']}; budget, strategy and precision had no effect ({report.reason})"
        ]
    sizes = {
        "budget": report.budget_bytes,
        "planned peak": report.predicted_peak_bytes,
        "measured peak": report.measured_peak_bytes,
    }
    way = report.plan.get("way", report.strategy)
    reason = report.reason
    if "more" in report.plan:  # the way, its peak and the budget have lines of their own
        reason = f"{report.plan['more']} {reason.removeprefix(report.plan['reason'])}".strip()
    told = [f"{name} {size_text(size, 2)}" for name, size in sizes.items() if size]
    if copies := copies_of(report):
        told.append(copies)
    lines = [
        f"{report.vae} on {report.device} in {report.dtype}: {way}",
        reason,
        ", ".join(told),
        f"budget: {report.budget_rule}; {report.steps} steps",
        *report.ignored,
    ]
    if report.estimate_error is not None:
        lines.append(f"norms' statistics in tiles were off by {report.estimate_error:.2g}")
    for event in report.events:
        then = event.get("next_way") or event.get("next_dtype") or ""
        if "without" in event:
            then += f" without {event['without']}"
        lines.append(f"{event['event']} in {event['way']}" + (f", then {then}" if then else ""))
    lines += [f"next time: {sentence}" for sentence in report.recommendations]
    return [line for line in lines if line]
