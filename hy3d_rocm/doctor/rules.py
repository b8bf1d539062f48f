"""The rules: what one is made of, and the files in rules/ that they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hy3d_rocm.doctor import checks_memory, checks_pack, checks_torch
from hy3d_rocm.doctor.finding import Check, Facts, Finding, Severity
from hy3d_rocm.env.tables import functions_of, read

FOLDER = Path(__file__).with_name("rules")
FILES = ("torch", "versions", "pack", "memory", "miopen")
CHECKS: dict[str, Check] = functions_of(checks_torch, checks_memory, checks_pack)


@dataclass(frozen=True)
class Saying:
    """What a rule says in one case; "" and None: what it says else."""

    id: str = ""
    severity: Severity | None = None
    title: str = ""
    evidence: str = ""
    remedy: str = ""
    source: str = ""


@dataclass(frozen=True)
class Rule:
    """One rule of rules/*.toml. says: what differs in a case that its check names."""

    id: str
    severity: Severity
    check: Check
    title: str = ""
    evidence: str = ""
    remedy: str = ""
    source: str = ""
    says: Mapping[str, Saying] = field(default_factory=dict)

    def findings(self, facts: Facts) -> Iterator[Finding]:
        for said in self.check(facts):
            parts: list[Rule | Saying] = [self.says[name] for name in reversed(said.sayings)]
            parts.append(self)
            severity = next((part.severity for part in parts if part.severity), self.severity)
            texts = {
                name: next((text for part in parts if (text := getattr(part, name))), "")
                for name in ("id", "title", "evidence", "remedy", "source")
            }
            told = {name: text.format_map(said.words) for name, text in texts.items()}
            yield Finding(severity=severity, **told)


@cache
def table() -> tuple[Rule, ...]:
    """All rules."""
    return tuple(rule for name in FILES for rule in rules_of_file(FOLDER / f"{name}.toml"))


def rules_of_file(path: Path) -> tuple[Rule, ...]:
    """Raises TableError."""
    return read(path, Rule, makers={"severity": Severity, "check": CHECKS.__getitem__})[1]
