"""The shape of one rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.sizes import FIGURES

Confidence = Literal["certain", "likely", "possible"]
Severity = Literal["error", "notice"]
Rank = Literal[0, 1, 2]  # the process or the GPU died; a run failed; the program went on
ANY = "*"


@dataclass(frozen=True)
class Rule:
    """One thing that logs tell.

    `words`: lower-case texts; the patterns are only tried on a line that has one of them, or on the
    two lines after it, joined with it, since loggers break sentences. `patterns`: any one of them
    is enough; case is ignored. `unless`: a line where one of these matches is none of this rule's.
    `figures`: the name of a question about the sizes in the text (sizes.FIGURES) that has to be
    answered with yes as well. `follows`: rules of which this is only a consequence where both are
    close together in a log; ANY: every other error. `needs`: rules without which this one says
    nothing; one of them has to be within `within` lines. `alone`: a line of this rule is evidence
    for no other. `unfinished`: it counts only where the log shows no run that finished. `optional`:
    what programs do without; it is told as harmless where the log shows that the program went on
    (it started, or a run went without an error) and no pack failed to load by it. `excused`: rules
    that take its place where they are close to it. `when`: what the whole log has to show
    (Machine.holds), else the rule says nothing. A rule without patterns is decided by the order
    of events (`stages.py`, or an error right above a crash), not by one line.

    `do`: one action, as it can be copied; `windows`, `wsl`: the one where the log shows that;
    `decode`: where it shows a VAE decode; `gfx1151`: where it shows that card on Linux; `beside`:
    where it shows the processor's GPU beside a card; `instead`: pairs of what the log shows
    (Machine.holds) and the action for that, before all of these. {wheels} becomes the command that
    installs PyTorch for the card in the log, {access} what lets this user or container use it.
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
    windows: str = ""
    wsl: str = ""
    decode: str = ""
    gfx1151: str = ""
    beside: str = ""
    instead: tuple[tuple[str, str], ...] = ()
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
    compiled: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)
    refused: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        for name, patterns in (("compiled", self.patterns), ("refused", self.unless)):
            if patterns:
                joined = "|".join(f"(?:{pattern})" for pattern in patterns)
                object.__setattr__(self, name, re.compile(joined, re.IGNORECASE))

    def search(self, text: str) -> re.Match[str] | None:
        """The match in a line without colours, its white space collapsed."""
        if self.compiled is None or (self.refused is not None and self.refused.search(text)):
            return None
        found = self.compiled.search(text)
        if found is not None and self.figures and not FIGURES[self.figures](text):
            return None
        return found
