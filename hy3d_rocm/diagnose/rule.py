"""The shape of one rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["certain", "likely", "possible"]
Severity = Literal["error", "notice"]


@dataclass(frozen=True)
class Rule:
    """One thing that logs tell.

    `words`: lower-case texts; the patterns are only tried on a line that has one of them, or on the
    two lines after it, joined with it, since loggers break sentences. `patterns`: any one of them
    is enough; case is ignored. `unless`: a line where one of these matches is none of this rule's.
    `follows`: rules of which this is only a consequence where both are close together in a log.
    `alone`: a line of this rule is evidence for no other. A rule without patterns is decided by the
    order of events (`stages.py`), not by one line. `here`: what this package does about it;
    `otherwise`: what else helps. `source`: where the text and its meaning were read.
    """

    id: str
    symptom: str
    cause: str
    here: str
    otherwise: str
    source: str
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    confidence: Confidence = "certain"
    severity: Severity = "error"
    alone: bool = False
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
        return self.compiled.search(text)
