"""Counting: verdicts of a group, mutants known to be equivalent, the share and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("equivalent.txt")


@dataclass
class Tally:
    """Counts of one half (Python or C) of one group.

    possible: mutants that count, of which what was tried may be a sample. same_code: mutants that
    compile to the same code. words: those that change only a sentence or a log line. invalid: those
    that do not compile.
    """

    killed: int = 0
    timed_out: int = 0
    same_code: int = 0
    words: int = 0
    invalid: int = 0
    possible: int = 0
    listed: int = 0
    lived: list[str] = field(default_factory=list)
    died: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def add(self, key: str, *, killed: bool, timed_out: bool = False) -> None:
        """One more mutant that was tried; one that runs out of its time was noticed."""
        if killed or timed_out:
            self.killed += 1
            self.timed_out += timed_out
            self.died.add(key)
        else:
            self.lived.append(key)

    def take_out(self, equivalent: dict[str, str]) -> None:
        """Survivors that are listed as equivalent no longer count."""
        before = len(self.lived)
        self.lived = [key for key in self.lived if key not in equivalent]
        self.listed += before - len(self.lived)

    def __iadd__(self, other: Tally) -> Tally:
        for name in ("killed", "timed_out", "same_code", "words", "invalid", "possible", "listed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lived = [*self.lived, *other.lived]
        self.died |= other.died
        self.keys |= other.keys
        return self

    @property
    def tried(self) -> int:
        """Mutants that were tried and count."""
        return self.killed + len(self.lived)

    @property
    def percent(self) -> float:
        """Share of the tried that were killed."""
        return 100.0 * self.killed / self.tried if self.tried else 100.0

    def line(self, name: str) -> str:
        """The group's figures in one line."""
        equivalent = self.same_code + self.listed
        text = (
            f"{name}: {self.tried} mutants, {self.killed} killed ({self.percent:.1f} %; "
            f"{self.timed_out} by time-out), {len(self.lived)} survived, {equivalent} equivalent "
            f"({self.same_code} by code, {self.listed} listed), {self.words} of words alone"
        )
        if self.invalid:
            text += f", {self.invalid} that do not compile"
        if self.tried + self.listed < self.possible:
            low, high = interval(self.killed, self.tried)
            text += f"; a sample of {self.possible}: {low:.1f} to {high:.1f} % at 95 % confidence"
        return text


def interval(hits: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, in percent."""
    if tried == 0:
        return 0.0, 100.0
    z = 1.959964
    share = hits / tried
    middle = share + z * z / (2 * tried)
    half = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    scale = 1 + z * z / tried
    return 100 * max(0.0, (middle - half) / scale), 100 * min(1.0, (middle + half) / scale)


def read_equivalent(text: str) -> dict[str, str]:
    """Key to reason. A reason is the indented line under one or more keys; # is a comment."""
    entries: dict[str, str] = {}
    waiting: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            if not waiting:
                raise ValueError(f"line {number}: a reason with no mutant above it")
            entries |= dict.fromkeys(waiting, line.strip())
            waiting = []
            continue
        if line in entries or line in waiting:
            raise ValueError(f"line {number}: {line!r} stands twice")
        if line.count(" | ") < 2 or " => " not in line:
            raise ValueError(f"line {number}: a key is FILE | FUNCTION | BEFORE => AFTER")
        waiting.append(line)
    if waiting:
        raise ValueError(f"no reason under {waiting[-1]!r}")
    return entries


def wrong_entries(
    entries: dict[str, str], keys: set[str], died: set[str], files: set[str]
) -> list[str]:
    """What the list claims of `files` that is not so: no such mutant, or a test notices it."""
    mine = [key for key in entries if key.partition(" | ")[0] in files]
    wrong = [f"no such mutant: {key}" for key in mine if key not in keys]
    return wrong + [f"killed, so not equivalent: {key}" for key in mine if key in died]
