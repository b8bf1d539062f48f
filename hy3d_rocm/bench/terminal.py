"""What the benches share at the terminal: targets, and how a report ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hy3d_rocm.arguments import CommandError


class BenchError(CommandError):
    """The bench cannot be run; the text says why and what to do."""


@dataclass(frozen=True)
class Target:
    """`value` at most (is_least: at least) `limit`; None where there is no figure."""

    text: str
    value: float | None
    limit: float
    unit: str = "x"
    at: str = ""
    is_least: bool = False

    @property
    def verdict(self) -> str:
        """pass, FAIL or "no figure". NaN fails."""
        if self.value is None:
            return "no figure"
        is_met = self.value >= self.limit if self.is_least else self.value <= self.limit
        return "pass" if is_met else "FAIL"

    def line(self) -> str:
        value = "-" if self.value is None else f"{self.value:.3g}{self.unit}"
        bound = f"at {'least' if self.is_least else 'most'} {self.limit:.3g}{self.unit}"
        where = f"  ({self.at})" if self.at else ""
        return f"{self.verdict:9}  {self.text}: {value} of {bound}{where}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


def ending(left_out: Sequence[str], interrupted: bool, seconds: float) -> list[str]:
    """The last lines of a bench that looks at the clock."""
    lines = [f"Left out for want of time (--seconds): {', '.join(left_out)}"] if left_out else []
    if interrupted:
        lines.append("Interrupted: these are the figures so far.")
    return [*lines, f"Took {seconds:.0f} s."]
