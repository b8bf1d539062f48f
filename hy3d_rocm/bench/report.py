"""A bench's result as an aligned table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hy3d_rocm.bench.advice import Advice
from hy3d_rocm.bench.timing import Measured
from hy3d_rocm.units import aligned, size_text

HEADER = ("variant", "first call", "median", "fastest..slowest", "peak memory")


@dataclass
class Report:
    """facts: lines on what was measured where; notes: by variant, what else its row says."""

    bench: str
    facts: list[str]
    rows: list[Measured]
    advice: Advice
    interrupted: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether any variant has a figure."""
        return any(row.first_seconds is not None for row in self.rows)

    def as_text(self) -> str:
        table = [HEADER, *(_cells(row) for row in self.rows)]
        lines = [f"hy3d-rocm bench {self.bench}", "", *self.facts, ""]
        lines += [
            f"{text}  {self.notes.get(name, '')}".rstrip()
            for text, (name, *_) in zip(aligned(table), table, strict=True)
        ]
        lines += ["", *(f"{row.name}: {row.reason}" for row in self.rows if row.reason)]
        if self.interrupted:
            lines.append("Interrupted: these are the figures so far.")
        choice = self.advice.choice
        lines += ["", f"Recommendation: {choice}" if choice else "No recommendation"]
        lines += [f"  {line}" for line in self.advice.lines]
        return "\n".join(lines) + "\n"

    def as_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "facts": self.facts,
            "variants": [row.as_dict() for row in self.rows],
            "interrupted": self.interrupted,
            "recommendation": self.advice.choice,
            "reasons": list(self.advice.lines),
            **self.data,
        }


def _cells(row: Measured) -> tuple[str, ...]:
    fast_slow = "-" if row.spread is None else f"{row.spread[0]:.2f}..{row.spread[1]:.2f} s"
    peak = "not measured" if row.peak_bytes is None else size_text(row.peak_bytes, 2)
    return (row.name, _seconds(row.first_seconds), _seconds(row.median), fast_slow, peak)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
