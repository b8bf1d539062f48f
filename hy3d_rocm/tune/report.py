"""What tuning comes to: for each shape what protect() will choose, and what a decode gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hy3d_rocm.conv.choice import HEALTHY, TIERS, Candidate, Policy, Setting, choose
from hy3d_rocm.conv.verdict_store.records import Record
from hy3d_rocm.tune.session import TuneReport
from hy3d_rocm.tune.shapes import Shape
from hy3d_rocm.units import aligned, size_text

_HEAD = ("tier", "ms", "peak", "verdict", "")
_CURRENT = "current"


@dataclass(frozen=True)
class Line:
    """One shape: records by tier, reasons of those without, what protect() chooses and what is
    fastest (None where nothing healthy is known)."""

    shape: Shape
    records: Mapping[str, Record]
    reasons: Mapping[str, str]
    chosen: str | None
    fastest: str | None

    def seconds(self, tier: str | None) -> float | None:
        """Of one call, where a healthy one was measured."""
        record = None if tier is None else self.records.get(tier)
        return record.seconds if record is not None and record.verdict in HEALTHY else None


def lines_of(report: TuneReport) -> list[Line]:
    """One a shape, in the report's order."""
    found = []
    for shape, records in zip(report.shapes, report.records, strict=True):
        reasons = {tier: why for (s, tier), why in report.reasons.items() if s == shape}
        healthy = {t: r.seconds for t, r in records.items()
                   if r.seconds is not None and r.verdict in HEALTHY}  # fmt: skip
        fastest = min(healthy, key=lambda tier: healthy[tier], default=None)
        chosen = _chosen(report.setting, records, reasons)
        found.append(Line(shape, records, reasons, chosen, fastest))
    return found


def _chosen(
    setting: Setting, records: Mapping[str, Record], reasons: Mapping[str, str]
) -> str | None:
    """The tier that protect() would take, by the name that the verdict store has for it."""
    candidates = [
        Candidate(tier, record=records.get(_known_as(tier, setting)),
                  refused=reasons.get(tier) if tier not in records else None)
        for tier in TIERS
        # Where nothing was measured nobody can say that it is the cheapest.
        if tier in (_CURRENT, "cpu") or tier in records
    ]  # fmt: skip
    order = choose(Policy("auto"), candidates, setting).order
    return _known_as(order[0], setting) if order else None


def _known_as(tier: str, setting: Setting) -> str:
    return setting.current if tier == _CURRENT and setting.current != "other" else tier


@dataclass(frozen=True)
class Gain:
    """Seconds of all convolutions of one decode: by today's default, as chosen, at best. Only
    shapes that all three have count; `without` is how many others there are."""

    default: float = 0.0
    chosen: float = 0.0
    fastest: float = 0.0
    without: int = 0


def gain_of(lines: Sequence[Line], default: str) -> Gain:
    """`default`: the tier that computes these shapes today ("vendor" or "native")."""
    total, without = Gain(), 0
    for line in lines:
        times = [line.seconds(tier) for tier in (default, line.chosen, line.fastest)]
        if any(time is None for time in times):
            without += 1
            continue
        before, chosen, fastest = (line.shape.count * (time or 0.0) for time in times)
        total = Gain(total.default + before, total.chosen + chosen, total.fastest + fastest)
    return replace(total, without=without)


def tune_text(report: TuneReport, default: str) -> str:
    """The table, what is missing, and the gain."""
    lines = lines_of(report)
    text = ["hy3d-rocm tune", ""]
    for line in lines:
        text += [line.shape.line(), *_table(line), ""]
    text.append("<- protect() chooses it   * fastest")
    if report.left_out:
        text += ["", "Not tried:", *(f"  {one}" for one in report.left_out)]
        text.append("Run the command again: what is known now is not measured twice.")
    if report.interrupted:
        text += ["", "Interrupted: what was measured by then is kept."]
    if report.fault:
        text += ["", f"Ended early: {report.fault}", "What was measured by then is kept."]
    text += ["", *_gain_lines(gain_of(lines, default), default, report.setting)]
    took = f"{report.measured} new records in {report.seconds:.0f} s"
    text.append(f"{took}; hy3d-rocm db list shows all.")
    return "\n".join(text) + "\n"


def _table(line: Line) -> list[str]:
    rows = []
    order = sorted(line.records, key=lambda t: (line.seconds(t) is None, line.seconds(t) or 0, t))
    for tier in order:
        record = line.records[tier]
        marks = ("<-" if tier == line.chosen else "") + (" *" if tier == line.fastest else "")
        seconds = "-" if record.seconds is None else f"{record.seconds * 1e3:.3g}"
        peak = "-" if record.peak_bytes is None else size_text(record.peak_bytes)
        detail = "" if record.verdict == "ok" and tier != "triton" else record.detail
        rows.append((tier, seconds, peak, record.verdict, f"{marks}  {detail}".strip()))
    told = [f"    {tier}: {why}" for tier, why in line.reasons.items() if tier not in line.records]
    if not rows:
        return told
    # The last column is text of any length.
    heads = aligned([_HEAD[:4], *(row[:4] for row in rows)])
    texts = ["", *(row[4] for row in rows)]
    table = [f"    {head}  {text}".rstrip() for head, text in zip(heads, texts, strict=True)]
    return [*table, *told]


def _gain_lines(gain: Gain, default: str, setting: Setting) -> list[str]:
    name = ("MIOpen" if setting.is_rocm else "cuDNN") if default == "vendor" else "PyTorch native"
    if not gain.default:
        return [f"No gain can be told: no shape has a time of today's default ({name})."]
    lines = [
        f"Convolutions of one decode: {gain.default:.2f} s by today's default ({name}),"
        f" {gain.chosen:.2f} s as protect() chooses ({_factor(gain.default, gain.chosen)}),"
        f" {gain.fastest:.2f} s with the fastest measured"
        f" ({_factor(gain.default, gain.fastest)})."
    ]
    if gain.without:
        lines.append(f"{gain.without} shapes lack one of these times and are not counted.")
    if setting.trusts_vendor:
        lines.append(
            "Here protect() leaves PyTorch as it is set up until that fails (cuDNN is healthy);"
            ' policy="pin:triton" takes another tier.'
        )
    return lines


def _factor(before: float, after: float) -> str:
    return f"{before / after:.2f}x" if after else "-"


def tune_dict(report: TuneReport, default: str) -> dict[str, Any]:
    """JSON-able."""
    lines = lines_of(report)
    gain = gain_of(lines, default)
    return {
        "shapes": [
            {
                "spec": line.shape.spec.to_json(),
                "count": line.shape.count,
                "chosen": line.chosen,
                "fastest": line.fastest,
                "tiers": {tier: _record(record) for tier, record in line.records.items()},
                "reasons": dict(line.reasons),
            }
            for line in lines
        ],
        "default": default,
        "seconds_of_a_decode": {
            "default": gain.default, "chosen": gain.chosen, "fastest": gain.fastest,
            "shapes_not_counted": gain.without,
        },
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "fault": report.fault,
        "seconds": report.seconds,
    }  # fmt: skip


def _record(record: Record) -> dict[str, Any]:
    names = ("verdict", "seconds", "first_seconds", "peak_bytes", "detail")
    return {name: getattr(record, name) for name in names}
