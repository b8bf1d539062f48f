"""The rules: what one is made of, and the files in rules/ that they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hy3d_rocm.diagnose.doctor import checks
from hy3d_rocm.diagnose.doctor.finding import Check, Facts, Finding, Match, Severity
from hy3d_rocm.diagnose.tables import functions_of, read

FOLDER = Path(__file__).with_name("rules")
FILES = ("torch", "windows", "versions", "pack", "memory", "miopen")
CHECKS: dict[str, Check] = functions_of(checks)
_TEXTS = ("id", "title", "evidence", "remedy", "source")


@dataclass(frozen=True)
class Variant:
    """What a rule says in one case; "" and None: what it says otherwise. when: as a rule's."""

    id: str = ""
    severity: Severity | None = None
    title: str = ""
    evidence: str = ""
    remedy: str = ""
    source: str = ""
    when: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule of rules/*.toml: a finding for each thing that its check finds out, where all
    conditions (Facts.holds) of `when` are so; without a check, where they are.

    each: a list of facts, of which each row is looked at. cards: only where an architecture begins
    so; {cards} are those. variants: what differs in a case that the check names, or that its own
    `when` describes; of cases that hold the last one counts.
    """

    id: str
    severity: Severity
    check: Check = lambda facts: [Match()]
    title: str = ""
    evidence: str = ""
    remedy: str = ""
    source: str = ""
    each: str = ""
    when: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def findings(self, facts: Facts) -> Iterator[Finding]:
        if self.cards:
            cards = {a for a in facts.architectures if a.startswith(self.cards)}
            if not cards:
                return
            facts = facts.beside({"cards": sorted(cards)})
        for seen in facts.each(self.each) if self.each else [facts]:
            if all(map(seen.holds, self.when)):
                for match in self.check(seen):
                    yield self._finding(match, seen.beside(match.words))

    def _finding(self, match: Match, facts: Facts) -> Finding:
        parts: list[Rule | Variant] = [self, *(self.variants[name] for name in match.variants)]
        parts += (s for s in self.variants.values() if s.when and all(map(facts.holds, s.when)))
        texts = [next(filter(None, (getattr(p, n) for p in reversed(parts))), "") for n in _TEXTS]
        severity = next(part.severity for part in reversed(parts) if part.severity)
        return Finding(
            severity=severity, **dict(zip(_TEXTS, map(facts.filled, texts), strict=True))
        )


@cache
def table() -> tuple[Rule, ...]:
    """All rules."""
    return tuple(rule for name in FILES for rule in rules_of_file(FOLDER / f"{name}.toml"))


def rules_of_file(path: Path) -> tuple[Rule, ...]:
    """Raises TableError."""
    return read(path, Rule, makers={"severity": Severity, "check": CHECKS.__getitem__})[1]
