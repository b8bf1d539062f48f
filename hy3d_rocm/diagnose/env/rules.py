"""What is known of environment variables on AMD machines: rules, and how they are applied.

A rule says which values of which variables it is about, for which versions and GPUs, what they
do, what to do about it, and where that was read. The rules are in rules/*.toml, what they find in a
value in checks.py; `python tools/site/variables.py` prints docs/variables.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hy3d_rocm.diagnose.env import checks, choices
from hy3d_rocm.diagnose.env.checks import Case, Check
from hy3d_rocm.diagnose.env.machine import Machine, Version, dotted, parse_version
from hy3d_rocm.diagnose.env.shown import MASK, SHOWN_CHARACTERS, printable
from hy3d_rocm.diagnose.tables import read, words_of

FOLDER = Path(__file__).with_name("rules")
# How the names in a file of rules begin, in the order of docs/variables.md: ComfyUI's start reads
# only those files that speak of a variable that is set, and those that propose a value.
FILES = {
    "miopen": ("MIOPEN_",),
    "allocator": ("PYTORCH_",),
    "torch": ("PYTORCH_", "TORCH_", "FLASH_", "SAGE_", "DISABLE_ADDMM_"),
    "rocm": ("HSA_", "HIP_", "GPU_", "AMD_", "ROCR_", "CUDA_", "ROCBLAS_", "HIPBLASLT_"),
    "pack": ("HY3D_", "COMFYUI_"),
}
PROPOSING = ("miopen", "torch")
Verdict = Literal["throws", "harmful", "does nothing", "helpful", "improvable", "fine"]


# What a token of a variable's value may be: a number, a version, an architecture, a device.
_HARMLESS = re.compile(
    r"[+-]?\d{1,16}(?:\.\d{0,6}){0,3}%?(?:[kmgt]i?b?)?|0x[0-9a-f]{1,16}|gfx[0-9a-f]{3,5}"
    r"|(?:cuda|hip|cpu|gpu)\d{0,3}|",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[\s,;:=+|>\[\]()-]+")


@dataclass(frozen=True)
class Span:
    """Versions from `since` up to, but without, `before`; () leaves an end open.

    A version that isn't known lies in a span that has no lower end: what was read of versions up
    to now is taken to hold, what began at some version is not said without knowing the version.
    """

    since: Version = ()
    before: Version = ()

    @classmethod
    def of(cls, written: Mapping[str, str]) -> Span:
        return cls(**{end: parse_version(version) for end, version in written.items()})

    def holds(self, version: Version) -> bool:
        if not version:
            return not self.since
        return version >= self.since and (not self.before or version < self.before)

    def __str__(self) -> str:
        low = f"from {dotted(self.since)}" if self.since else ""
        high = f"before {dotted(self.before)}" if self.before else ""
        return " ".join(filter(None, (low, high)))


_ANY = Span()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a file. `name` identifies it in tests; `values` are words for people.

    variables: names, or patterns that end in *.
    check: whether the rule is about this value; the versions and GPUs are looked at before.
    rocm, torch: { since = "6.4", before = "7.0" }, one of them or both.
    repair: what the start-up keeps of a value that throws; it takes the variable out without.
    proposes: the value that the start-up sets where the variable isn't set.
    part: what the check finds is a setting in the value, and only of that is the rest said.
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
    check: Check = lambda case: True
    rocm: Span = _ANY
    torch: Span = _ANY
    architectures: tuple[str, ...] = ()  # prefixes; all GPUs must match one
    repair: Callable[[Case], str | None] | None = None
    proposes: str = ""
    part: bool = False
    rest: bool = False
    confirmed: bool = True

    def speaks_of(self, name: str) -> bool:
        beginnings = tuple(part[:-1] for part in self.variables if part.endswith("*"))
        return name in self.variables or name.startswith(beginnings)

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
    def subject(self) -> str:
        """What it is said of: "NAME", or "setting:1 in NAME"."""
        return f"{self.found} in {self.name}" if self.rule.part else self.name

    @property
    def text(self) -> str:
        """What it does and what to do; without the variable's name."""
        value = printable(self.value, SHOWN_CHARACTERS)
        effect = self.rule.effect.format(found=self.found, value=value)
        unsure = "" if self.rule.confirmed else " (not confirmed)"
        return "; ".join(filter(None, (effect + unsure, self.rule.remedy)))

    def public(self) -> Finding:
        """With the value, and what was found in it, as others may see them."""
        found = self.found
        for token in _private_tokens(self.value):
            found = found.replace(token, MASK)
        return replace(self, value=public_value(self.value), found=found)


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
    concerned = [rule for rule in rules_about(case.name) if rule.fits(case.machine)]
    found = [(rule, said) for rule in concerned if not rule.rest and (said := rule.check(case))]
    found = [(r, said) for r, said in found if r.verdict == "throws"][:1] or found
    if not found:
        found = [(rule, said) for rule in concerned if rule.rest and (said := rule.check(case))][:1]
    return [
        Finding(
            rule, case.name, case.value, said if isinstance(said, str) else "",
            rule.repair(case) if rule.repair else None,
        )
        for rule, said in found
    ]  # fmt: skip


def _named(written: Any) -> Check:
    """The check of this name, or the one that the function of this name makes of what follows; with
    "no " before the name it says the opposite."""
    name, *arguments = (written,) if isinstance(written, str) else written
    function = getattr(checks, name.removeprefix("no "))
    check: Check = function(*arguments) if arguments else function
    return (lambda case: not check(case)) if name.startswith("no ") else check


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "check": _named, "rocm": Span.of, "torch": Span.of,
    "repair": lambda name: getattr(checks, name),
}  # fmt: skip


@cache
def rules_of(file: str, folder: Path = FOLDER) -> tuple[str, tuple[Rule, ...]]:
    """Heading and rules of a file. Raises TableError."""
    return read(folder / f"{file}.toml", Rule, makers=_MAKERS, shared=checks.miopen_names())


def families() -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """(heading, its rules), in the order of docs/variables.md."""
    return tuple(map(rules_of, FILES))


def table() -> tuple[Rule, ...]:
    """All rules, in the order of docs/variables.md."""
    return tuple(rule for _, rules in families() for rule in rules)


def proposing() -> list[Rule]:
    """The rules that propose a value where a variable is not set."""
    return [rule for name in PROPOSING for rule in rules_of(name)[1] if rule.proposes]


def rules_about(name: str) -> list[Rule]:
    """The rules about a variable, whatever its value, in the table's order."""
    files = [file for file, beginnings in FILES.items() if name.startswith(beginnings)]
    return [rule for file in files for rule in rules_of(file)[1] if rule.speaks_of(name)]


# What is told of variables to others than the user.


@cache
def _known_words() -> frozenset[str]:
    """The words that the table of rules names as values, in lower case."""
    words = {w.lower() for w in (*words_of("ALLOCATOR_KEYS"), *words_of("ALLOCATOR_BACKENDS"))}
    words |= {*words_of("VALUES"), *choices.VAE_MODES}
    words |= {part for name in choices.NAMES for part in name.split("-")}
    for rule in table():
        # Values are in capitals or single words between commas; the rest is English.
        parts = (part.strip() for part in re.split(r"[,:()]", f"{rule.values},{rule.proposes}"))
        words |= {part.lower() for part in parts if re.fullmatch(r"[A-Za-z]\w+", part)}
    return frozenset(words)


def relevant(environ: Mapping[str, str], machine: Machine) -> dict[str, dict[str, str]]:
    """Name -> {"value", "verdict", "note"} of every variable that is set and in the table.

    machine: whose versions and GPUs decide which rules hold.
    The note is "" where nothing is known against the value. Values that may tell more than a
    setting (paths, tokens) are not shown, see public_value().
    """
    judged: dict[str, list[Finding]] = {}
    for finding in judge(environ, machine):
        judged.setdefault(finding.name, []).append(finding)
    return {
        name: {
            "value": public_value(environ[name]),
            "verdict": judged[name][0].rule.verdict if name in judged else "",
            "note": "; ".join(
                f"{finding.rule.verdict}: {finding.public().text}"
                for finding in judged.get(name, [])
                if not (finding.rule.rest and finding.rule.verdict == "fine")
            ),
        }
        for name in sorted(environ)
        if rules_about(name)
    }


def public_value(value: str) -> str:
    """A variable's value as others may see it: as it is where all of it is known to be harmless
    (numbers, switches, the words that the rules know), else only how long it is."""
    if not _private_tokens(value):
        return printable(value, SHOWN_CHARACTERS)
    is_path = re.match(r"\s*(?:[~/\\]|[A-Za-z]:[\\/]|file:)", value) is not None
    return f"({'a path' if is_path else f'{len(value)} characters'}, not shown)"


def _private_tokens(value: str) -> list[str]:
    """What of a value is not known to be harmless, the longest first."""
    known = _known_words()
    tokens = {token for token in _SEPARATORS.split(value) if not _HARMLESS.fullmatch(token)}
    return sorted((t for t in tokens if t.lower() not in known), key=len, reverse=True)
