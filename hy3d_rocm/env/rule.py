"""One rule about an environment variable: what it is made of. The rules are in table_*.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hy3d_rocm.env.machine import Machine, Version, dotted
from hy3d_rocm.env.shown import printable

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
        return self.told(printable(self.value, SHOWN_CHARACTERS), self.found)

    def told(self, value: str, found: str) -> str:
        """`text` with these in place of the value and of what was found in it."""
        effect = self.rule.effect.format(found=found, value=value)
        unsure = "" if self.rule.confirmed else " (not confirmed)"
        return "; ".join(filter(None, (effect + unsure, self.rule.remedy)))


def one_of(*values: str) -> Check:
    """The value is one of these, in upper or lower case."""
    wanted = {value.upper() for value in values}
    return lambda case: case.value.strip().upper() in wanted


def none_of(*values: str) -> Check:
    is_one = one_of(*values)
    return lambda case: not is_one(case)
