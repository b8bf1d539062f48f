"""What was checked and what was seen: one line a check, counts at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 400  # characters of what was seen


@dataclass
class Report:
    """Collects checks. A check that raises is the caller's to report with `failed`."""

    stage: str = ""
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    quiet: bool = False

    def check(self, claim: str, holds: bool, seen: Any = "") -> bool:
        """Prints `claim` as ok, or as FAILED with what was seen; returns `holds`."""
        if holds:
            self.passed += 1
            self._print(f"ok     {self.stage}: {claim}")
        else:
            self.failures.append(f"{self.stage}: {claim}")
            self._print(f"FAILED {self.stage}: {claim}; seen: {shown(seen)}")
        return holds

    def equal(self, claim: str, seen: Any, expected: Any) -> bool:
        """A check that two values are equal. None equals nothing: it means that nothing came."""
        holds = seen is not None and seen == expected
        return self.check(claim, holds, f"{shown(seen)} instead of {shown(expected)}")

    def failed(self, claim: str, error: BaseException | str) -> None:
        name = "" if isinstance(error, str) else f"{type(error).__name__}: "
        self.check(claim, False, f"{name}{error}")

    def note(self, text: str) -> None:
        """A figure or a text that was recorded; neither ok nor failed."""
        self._print(f"       {self.stage}: {text}")

    def summary(self) -> str:
        total = self.passed + len(self.failures)
        return f"{total} checks, {self.passed} ok, {len(self.failures)} failed"

    def exit_code(self) -> int:
        """1 for a failure and also for a run that checked nothing."""
        return 1 if self.failures or not self.passed else 0

    def _print(self, line: str) -> None:
        if not self.quiet:
            print(line, flush=True)


def shown(value: Any) -> str:
    """`value` on one line, cut to SHOWN characters."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def differing(seen: Sequence[Any], expected: Sequence[Any]) -> list[int]:
    """Indices at which two sequences differ; those that only one of them has count too."""
    shorter, longer = sorted((len(seen), len(expected)))
    return [i for i in range(shorter) if seen[i] != expected[i]] + list(range(shorter, longer))


def growth_per_prompt(resident_bytes: Sequence[int], settled: int = 5) -> float:
    """Mean growth in bytes a prompt after the first `settled` prompts; needs two points after."""
    after = resident_bytes[settled - 1 :]
    if len(after) < 2:
        raise ValueError(f"{len(resident_bytes)} prompts are too few; give {settled + 1} or more")
    return (after[-1] - after[0]) / (len(after) - 1)
