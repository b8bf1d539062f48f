"""What is known of environment variables on AMD machines: one table, and how it is applied.

A rule says which values of which variables it is about, for which versions and GPUs, what they
do, what to do about it, and where that was read. The rules themselves are in table_*.py.

`python -m hy3d_rocm.env.rules --markdown` prints docs/variables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from hy3d_rocm.env.machine import Machine, Version, dotted

SHOWN_CHARACTERS = 120  # of a value, in a line


class Verdict(StrEnum):
    THROWS = "throws"
    HARMFUL = "harmful"
    NOTHING = "does nothing"
    HELPFUL = "helpful"
    FINE = "fine"

    @property
    def phrase(self) -> str:
        """As in "NAME=value {phrase}: ..."."""
        return {"harmful": "is not advised", "helpful": "helps", "fine": "is fine"}.get(self, self)


@dataclass(frozen=True)
class Span:
    """Versions from `since` up to, but without, `before`; () leaves an end open.

    A version that isn't known lies in a span that has no lower end: what was read of versions up
    to now is taken to hold, what began at some version is not said without knowing the version.
    """

    since: Version = ()
    before: Version = ()

    def holds(self, version: Version) -> bool:
        if not version:
            return not self.since
        return version >= self.since and (not self.before or version < self.before)

    def __str__(self) -> str:
        low = f"from {dotted(self.since)}" if self.since else ""
        high = f"before {dotted(self.before)}" if self.before else ""
        return " ".join(filter(None, (low, high)))


ANY = Span()


@dataclass(frozen=True)
class Case:
    """One variable of one process on one machine."""

    name: str
    value: str
    environ: Mapping[str, str]
    machine: Machine


# What a rule finds in a value: True or False, or the words that fill {found} in its effect.
Check = Callable[[Case], "bool | str"]


def always(case: Case) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table. `name` identifies it in tests; `values` are words for people.

    variables: names, or patterns that end in *.
    check: whether the rule is about this value; the versions and GPUs are looked at before.
    leave_out: the start-up takes the variable out of the process (what `repair` keeps stays).
    proposes: the value that the start-up sets where the variable isn't set.
    rest: only said of a variable of which no other rule says anything.
    confirmed: False for what was read in one place only and could not be checked.
    """

    name: str
    variables: tuple[str, ...]
    values: str
    verdict: Verdict
    effect: str
    source: str
    remedy: str = ""
    check: Check = always
    rocm: Span = ANY
    torch: Span = ANY
    architectures: tuple[str, ...] = ()  # prefixes; all GPUs must match one
    leave_out: bool = False
    repair: Callable[[Case], str | None] | None = None
    proposes: str = ""
    rest: bool = False
    confirmed: bool = True

    def fits(self, machine: Machine) -> bool:
        found = machine.architectures
        return (
            self.rocm.holds(machine.rocm)
            and self.torch.holds(machine.torch)
            and (
                not self.architectures
                or (bool(found) and all(name.startswith(self.architectures) for name in found))
            )
        )


@dataclass(frozen=True)
class Finding:
    """A rule that holds for a variable as it is set here."""

    rule: Rule
    name: str
    value: str
    found: str = ""
    kept: str | None = None  # what the start-up leaves of a value that throws

    @property
    def text(self) -> str:
        """What it does and what to do; without the variable's name."""
        effect = self.rule.effect.format(found=self.found, value=printable(self.value))
        unsure = "" if self.rule.confirmed else " (not confirmed)"
        return "; ".join(filter(None, (effect + unsure, self.rule.remedy)))


def printable(value: str) -> str:
    """A value for a line of a log: one line, any bytes, not too long."""
    text = value.encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def judge(environ: Mapping[str, str], machine: Machine) -> list[Finding]:
    """What the table says of these variables, by name; FINE findings included.

    A value that throws is only that: nothing else is said of it.
    """
    return [
        finding
        for name in sorted(environ)
        for finding in _judge_one(Case(name, environ[name], environ, machine))
    ]


def _judge_one(case: Case) -> list[Finding]:
    concerned = [rule for rule in rules_of(case.name) if rule.fits(case.machine)]
    special = [rule for rule in concerned if not rule.rest]
    findings = [_finding(rule, case, said) for rule in special if (said := rule.check(case))]
    throwing = [finding for finding in findings if finding.rule.verdict is Verdict.THROWS]
    if findings:
        return throwing[:1] or findings
    rests = (rule for rule in concerned if rule.rest)
    return [_finding(rule, case, said) for rule in rests if (said := rule.check(case))][:1]


def _finding(rule: Rule, case: Case, found: bool | str) -> Finding:
    kept = rule.repair(case) if rule.repair else None
    return Finding(rule, case.name, case.value, found if isinstance(found, str) else "", kept)


@cache
def table() -> tuple[Rule, ...]:
    """All rules, in the order of docs/variables.md."""
    return tuple(rule for _, rules in families() for rule in rules)


@cache
def _by_name() -> tuple[dict[str, list[int]], list[tuple[str, int]]]:
    """Where in the table a name, and a pattern's beginning, is spoken of."""
    names: dict[str, list[int]] = {}
    patterns: list[tuple[str, int]] = []
    for place, rule in enumerate(table()):
        for variable in rule.variables:
            if variable.endswith("*"):
                patterns.append((variable[:-1], place))
            else:
                names.setdefault(variable, []).append(place)
    return names, patterns


def rules_of(name: str) -> list[Rule]:
    """The rules about a variable, whatever its value, in the table's order."""
    names, patterns = _by_name()
    places = {*names.get(name, ()), *(place for start, place in patterns if name.startswith(start))}
    return [table()[place] for place in sorted(places)]


def families() -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """(heading, its rules), in the order of docs/variables.md."""
    from hy3d_rocm.env import table_miopen, table_pack, table_rocm, table_torch

    return (
        ("MIOpen", table_miopen.RULES),
        ("PyTorch's memory allocator", table_torch.ALLOCATOR),
        ("PyTorch and attention", table_torch.RULES),
        ("ROCm's runtime and libraries", table_rocm.RULES),
        ("ComfyUI and this pack", table_pack.RULES),
    )


def is_known(name: str) -> bool:
    """Whether some rule is about this variable, whatever its value."""
    return bool(rules_of(name))


def one_of(*values: str) -> Check:
    """The value is one of these, in upper or lower case."""
    wanted = {value.upper() for value in values}
    return lambda case: case.value.strip().upper() in wanted


def none_of(*values: str) -> Check:
    is_one = one_of(*values)
    return lambda case: not is_one(case)


def main(arguments: Iterable[str]) -> int:
    """`--markdown`: the page for users, on standard output."""
    import sys

    from hy3d_rocm.env.variables_page import page

    if list(arguments) != ["--markdown"]:
        sys.stderr.write("usage: python -m hy3d_rocm.env.rules --markdown\n")
        return 2
    sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    import sys

    # The module that the tables imported, not this second copy of it called __main__.
    from hy3d_rocm.env.rules import main as run

    sys.exit(run(sys.argv[1:]))
