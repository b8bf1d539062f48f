"""What was found: evidence, causes, what only follows from another one, the worst first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hy3d_rocm.diagnose.log.events import DECODE
from hy3d_rocm.diagnose.log.machine import Machine
from hy3d_rocm.diagnose.log.read import Line
from hy3d_rocm.diagnose.log.rules import ANY, OF_DECODE, Confidence, Rule, Severity

EVIDENCE_LINES = 3  # the first ones; the last one comes on top
NEAR_BEFORE, NEAR_AFTER = 400, 40  # lines within which one thing may follow from another
_EVIDENCE_CHARS = 400
_OF_RULE = ("symptom", "cause", "here", "confidence", "severity", "rank", "source")


@dataclass(frozen=True)
class Evidence:
    """A line of the log, counted from 1, shortened to 400 characters."""

    line: int
    text: str

    @classmethod
    def of(cls, line: Line) -> Evidence:
        return cls(line.number, line.text[:_EVIDENCE_CHARS])


@dataclass(frozen=True)
class Diagnosis:
    """One cause (severity "error") or harmless line ("notice") and what to do.

    `evidence`: the first lines and the last one; `count`: how many there are. `where`: "in the VAE
    decode" and the like, or "". `note`: what the figures in the line say. `follow_ups`: what only
    follows from it. `do`: one action for the system in the log; `here`: what this package does
    about it, `otherwise`: what else helps. `rank`: 0 the process or the GPU died, 1 a run failed,
    2 the program went on.
    """

    rule: str
    symptom: str
    cause: str
    evidence: tuple[Evidence, ...]
    do: str
    here: str
    otherwise: str
    confidence: Confidence
    severity: Severity = "error"
    rank: int = 1
    where: str = ""
    note: str = ""
    count: int = 1
    source: str = ""
    follow_ups: tuple[Diagnosis, ...] = ()

    @property
    def remedy(self) -> str:
        return " ".join(part for part in (self.do, self.here, self.otherwise) if part)


@dataclass
class Hits:
    """The lines of one rule."""

    rule: Rule
    where: str
    note: str
    first: list[Evidence] = field(default_factory=list)
    last: list[Evidence] = field(default_factory=list)
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=64))
    count: int = 0

    def add(self, line: Line) -> None:
        if self.last and self.ends == line.number:
            return  # a piece or a progress state of the same line
        self.count += 1
        self.last = [Evidence.of(line)]
        if len(self.first) < EVIDENCE_LINES:
            self.first += self.last
        if len(self.numbers) < 32 or self.count % 2:
            self.numbers.append(line.number)

    @property
    def begins(self) -> int:
        return self.first[0].line

    @property
    def ends(self) -> int:
        return self.last[0].line

    @property
    def lines(self) -> set[int]:
        """Those that are remembered."""
        return {*self.numbers, self.begins}

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(dict.fromkeys(self.first + self.last))


def _near(cause: Hits, effect: Hits) -> bool:
    """Whether `cause` was seen shortly before the first line of `effect`, or just after it."""
    low, high = effect.begins - NEAR_BEFORE, effect.begins + NEAR_AFTER
    return any(low <= number <= high for number in cause.lines)


def _supported(hits: Hits, all_hits: list[Hits]) -> bool:
    """Whether what a rule needs beside it is there."""
    return not hits.rule.needs or any(
        abs(number - mine) <= hits.rule.within
        for other in all_hits
        if other.rule.id in hits.rule.needs
        for number in other.lines
        for mine in hits.lines
    )


def _excused(hits: Hits, all_hits: list[Hits]) -> bool:
    """Whether another line close to it says that the program found another way."""
    return any(other.rule.id in hits.rule.excused and _near(other, hits) for other in all_hits)


def _make_harmless(all_hits: list[Hits], parents: dict[str, Hits], went_on: int) -> None:
    """What programs do without is no fault where this one went on, unless a pack lacks it."""
    lacked = {
        parents[hits.rule.id].rule.id for hits in all_hits if hits.rule.id == "node-import-failed"
    }
    for hits in all_hits:
        if hits.rule.optional and hits.ends < went_on and hits.rule.id not in lacked:
            hits.rule = replace(hits.rule, severity="notice")


def _may_follow(effect: Hits, cause: Hits) -> bool:
    return cause.rule.id in effect.rule.follows or (
        ANY in effect.rule.follows
        and cause.rule.severity == "error"
        and cause.rule.rank < 2
        and ANY not in cause.rule.follows
    )


def _follows(effect: Hits, all_hits: list[Hits]) -> Hits | None:
    """What `effect` follows from. Where two follow from each other, the first line is the cause."""
    causes = (
        cause
        for cause in all_hits
        if cause is not effect
        and _may_follow(effect, cause)
        and _near(cause, effect)
        and (cause.begins <= effect.begins or not _may_follow(cause, effect))
    )
    return next(causes, None)


def _root(hits: Hits, all_hits: list[Hits]) -> Hits:
    seen = {hits.rule.id}
    while (cause := _follows(hits, all_hits)) is not None and cause.rule.id not in seen:
        hits = cause
        seen.add(hits.rule.id)
    return hits


def grouped(
    all_hits: list[Hits],
    order: dict[str, int],
    machine: Machine,
    likely_stop: bool = False,
    went_on: int = 0,
) -> tuple[Diagnosis, ...]:
    """Errors, the worst first and among equals by their first line, what follows from another one
    under it; then notices. `order`: the places of the rules, for causes at one line. `went_on`: the
    last line at which the program is shown to work; 0: none."""
    all_hits = sorted(all_hits, key=lambda hits: (hits.begins, order[hits.rule.id]))
    all_hits = [
        hits for hits in all_hits if _supported(hits, all_hits) and not _excused(hits, all_hits)
    ]
    parents = {hits.rule.id: _root(hits, all_hits) for hits in all_hits}
    _make_harmless(all_hits, parents, went_on)
    result = []
    roots = [hits for hits in all_hits if parents[hits.rule.id] is hits]
    for hits in sorted(roots, key=lambda root: (root.rule.severity, root.rule.rank)):
        below = [
            other
            for other in all_hits
            if other is not hits
            and parents[other.rule.id] is hits
            and set(other.numbers) - set(hits.numbers)  # it says more than the same line
        ]
        result.append(_diagnosis(hits, below, machine, likely_stop))
    return tuple(result)


def _action(hits: Hits, machine: Machine) -> str:
    """What to do there, where the log shows this system and this card."""
    is_decode = hits.where == DECODE
    fitting = (
        action
        for shown, action in hits.rule.instead
        if (is_decode if shown == OF_DECODE else machine.holds(shown))
    )
    return next(fitting, hits.rule.do)


def _diagnosis(hits: Hits, below: list[Hits], machine: Machine, likely_stop: bool) -> Diagnosis:
    rule = hits.rule
    more = "" if machine.system in ("windows", "wsl") else rule.linux
    found = Diagnosis(
        **{name: getattr(rule, name) for name in _OF_RULE},
        **{name: getattr(hits, name) for name in ("evidence", "where", "note", "count")},
        rule=rule.id,
        do=machine.filled(_action(hits, machine)),
        otherwise=machine.filled(f"{rule.otherwise} {more}".strip()),
        follow_ups=tuple(_diagnosis(other, [], machine, False) for other in below),
    )
    surer = likely_stop and rule.id == "decode-stopped"
    return replace(found, confidence="likely") if surer else found
