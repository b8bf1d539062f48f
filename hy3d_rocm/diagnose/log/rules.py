"""The rules and the signs: what they are made of, and the files that they are in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from hy3d_rocm.diagnose.tables import any_of, read

Confidence = Literal["certain", "likely", "possible"]
Severity = Literal["error", "notice"]
Rank = Literal[0, 1, 2]  # the process or the GPU died; a run failed; the program went on
ANY = "*"
OF_DECODE = "decode"  # of `instead`: the error is in a VAE's decode
FOLDER = Path(__file__).with_name("rules")
# In the order in which causes at the same line are told.
FILES = (
    "install", "access", "zluda", "memory", "miopen", "driver", "blas", "attention", "gpu", "nodes",
    "comfy", "packages",
)  # fmt: skip
_HEAD = 4  # letters that words are looked up by


@dataclass(frozen=True)
class Sign:
    """What a log shows beside its faults; see the head of signs.toml."""

    name: str
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    exact: bool = False
    bare: bool = False
    once: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return any_of(self.patterns, 0 if self.exact else re.IGNORECASE)

    def shown(self, text: str, bare: str) -> bool:
        """Whether a line with one of the words shows it; `bare`: without what loggers add."""
        seen = bare if self.bare else text
        return not self.patterns or self.pattern.search(seen) is not None


@cache
def signs() -> dict[str, Sign]:
    """By their names."""
    return {sign.name: sign for sign in read(Path(__file__).with_name("signs.toml"), Sign)[1]}


@dataclass(frozen=True)
class Rule:
    """One thing that logs tell.

    `words`: lower-case texts; the patterns are only tried on a line that has one of them, or on the
    two lines after it, joined with it, since loggers break sentences. `patterns`: any one of them
    is enough; case is ignored. `unless`: a line where one of these matches is none of this rule's.
    `figures`: the name of a question about the sizes in the text (FIGURES) that has to be
    answered with yes as well. `follows`: rules of which this is only a consequence where both are
    close together in a log; ANY: every other error. `needs`: rules without which this one says
    nothing; one of them has to be within `within` lines. `alone`: a line of this rule is evidence
    for no other. `unfinished`: it counts only where the log shows no run that finished. `optional`:
    what programs do without; it is told as harmless where the log shows that the program went on
    (it started, or a run went without an error) and no pack failed to load by it. `excused`: rules
    that take its place where they are close to it. `when`: what the whole log has to show
    (Machine.holds), else the rule says nothing. A rule without patterns is decided by the order
    of events (`events.py`, or an error right above a crash), not by one line.

    `do`: one action, as it can be copied; `instead`: what the log shows (OF_DECODE or
    Machine.holds) -> the action for that; the first that is so counts. {wheels} becomes the
    command that installs PyTorch for the card in the log, {access} what lets this user or container
    use it.
    `here`: what this package does about it.
    `otherwise`: what else helps; `linux`: more of that, left out where the log shows Windows or
    WSL. `source`: where the text and its meaning were read.
    """

    id: str
    symptom: str
    cause: str
    do: str
    source: str
    here: str = ""
    otherwise: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    linux: str = ""
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    figures: str = ""
    follows: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    within: int = 60
    confidence: Confidence = "certain"
    severity: Severity = "error"
    rank: Rank = 1
    alone: bool = False
    unfinished: bool = False
    optional: bool = False
    excused: tuple[str, ...] = ()
    when: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return any_of(self.patterns)

    @cached_property
    def refused(self) -> re.Pattern[str]:
        return any_of(self.unless)

    def search(self, text: str) -> re.Match[str] | None:
        """The match in a line without colours, its white space collapsed."""
        found = self.pattern.search(text)
        if found is None or (self.unless and self.refused.search(text)):
            return None
        is_so = not self.figures or FIGURES[self.figures](_figures_in(text))
        return found if is_so else None


@cache
def families() -> dict[str, tuple[Rule, ...]]:
    """Heading on the page of causes -> its rules."""
    return dict(read(FOLDER / f"{name}.toml", Rule) for name in FILES)


@cache
def by_id() -> dict[str, Rule]:
    """All rules, in the order in which causes at the same line are told."""
    return {rule.id: rule for family in families().values() for rule in family}


@cache
def _words() -> dict[str, list[tuple[str, str]]]:
    """First letters -> the words that begin so, each with the rule or sign whose it is; "": shorter
    words."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, row in (by_id() | signs()).items():
        for word in row.words:
            head = word[:_HEAD] if len(word) >= _HEAD else ""
            found.setdefault(head, []).append((word, name))
    return found


def names_in(low: str) -> set[str]:
    """The rules and signs of which a word is in `low`, a line in lower case, at a cost of the
    line's length."""
    words = _words()
    heads = {"", *(low[at : at + _HEAD] for at in range(len(low) - _HEAD + 1))}
    return {name for head in heads & words.keys() for word, name in words[head] if word in low}


# What the figures of an out-of-memory sentence say.

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,4})?) (bytes|[KMG]iB)"
_FIGURES = {
    name: re.compile(pattern.format(size=_SIZE), re.IGNORECASE)
    for name, pattern in {
        "asked": "Tried to allocate {size}",
        "total": r"total capac\w+ of {size}",
        "free": "of which {size} is free",
        "held": "{size} is allocated by PyTorch",
        "reserved": "and {size} is reserved by PyTorch but unallocated",
    }.items()
}
_MEMORY_RULES = ("hip-out-of-memory", "cuda-out-of-memory", "gpu-out-of-memory")
_GIB = 2.0**30


def _figures_in(text: str) -> SimpleNamespace:
    """Bytes of each figure, and `own`, what this process holds of the card. NaN, of which no
    comparison is true, for what the text lacks."""
    found = {name: pattern.search(text) for name, pattern in _FIGURES.items()}
    told = SimpleNamespace(**{
        name: float(one[1]) * _UNITS[one[2].lower()] if one else math.nan
        for name, one in found.items()
    })  # fmt: skip
    told.own = told.held + (told.reserved if found["reserved"] else 0.0)
    return told


FIGURES: dict[str, Callable[[SimpleNamespace], bool]] = {
    # A quarter of the card was free, and more than was asked for (some drivers say nonsense).
    "free but refused": lambda f: f.total / 4 < f.free <= f.total and f.asked < 0.8 * f.free,
    # Less than a third of what is taken is PyTorch's in this process.
    "held elsewhere": lambda f: (
        0 <= f.free < f.asked < f.total - f.own and f.total - f.free > 3 * f.own
    ),
    # One request for more than six tenths of the card.
    "most of the card": lambda f: f.asked > max(0.6 * f.total, 4 * _GIB),
    # Less than a hundredth of the card is PyTorch's, nine tenths are free, and it was too much.
    "first request": lambda f: (
        f.own < 0.01 * f.total and 0.9 * f.total <= f.free <= f.total and f.asked > f.free
    ),
}


def memory_note(rule: str, text: str) -> str:
    """A sentence, or "" where the line has no figures or they say nothing special."""
    f = _figures_in(text)
    if rule not in _MEMORY_RULES or not f.free < f.asked < f.reserved + f.free:
        return ""
    return (
        "PyTorch holds as much as was asked for, in pieces: emptying its allocator once between"
        " the sampler and the decode helps."
    )
