"""Reads a log line by line and tells its causes, what only follows from another one below it, the
worst first. Memory does not grow with the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hy3d_rocm.diagnose.log.events import DECODE, HEADING, TRACEBACK_LINES, Outcome, Stages
from hy3d_rocm.diagnose.log.machine import Machine
from hy3d_rocm.diagnose.log.read import Line, lines_of_text, without_prefix
from hy3d_rocm.diagnose.log.rules import (
    ANY,
    OF_DECODE,
    Confidence,
    Rule,
    Severity,
    by_id,
    memory_note,
    names_in,
    signs,
)

EVIDENCE_LINES = 3  # the first ones; the last one comes on top
UNKNOWN_LINES = 5
NEAR_BEFORE, NEAR_AFTER = 400, 40  # lines within which one thing may follow from another
RIGHT_ABOVE = 12  # lines between an error and the crash that it ended in
_EVIDENCE_CHARS = 400
_JOINED_CHARS = 300
_OF_RULE = ("symptom", "cause", "here", "confidence", "severity", "rank", "source")
_CARETS = re.compile(r"[\^~ ]+")  # what Python draws under a line of a traceback


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


@dataclass(frozen=True)
class Examination:
    """`diagnoses`: errors, the worst first, then notices. `unknown`: error lines that no rule
    knows, the last five, and how many there are; where there is none, lines with a word of an
    error. `origin`: where the last traceback ends. `finished`: the log shows the end of a run."""

    diagnoses: tuple[Diagnosis, ...]
    unknown: tuple[Evidence, ...]
    unknown_count: int
    lines: int
    origin: str = ""
    finished: bool = False

    @property
    def causes(self) -> tuple[Diagnosis, ...]:
        return tuple(found for found in self.diagnoses if found.severity == "error")

    @property
    def notices(self) -> tuple[Diagnosis, ...]:
        return tuple(found for found in self.diagnoses if found.severity == "notice")


@dataclass
class Hits:
    """The lines of one rule."""

    rule: Rule
    where: str
    note: str = ""
    evidence: tuple[Evidence, ...] = ()
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=64))
    count: int = 0

    def add(self, line: Line) -> None:
        if self.evidence and self.ends == line.number:
            return  # a piece or a progress state of the same line
        self.count += 1
        self.evidence = (*self.evidence[:EVIDENCE_LINES], Evidence.of(line))
        if len(self.numbers) < 32 or self.count % 2:
            self.numbers.append(line.number)

    @property
    def begins(self) -> int:
        return self.evidence[0].line

    @property
    def ends(self) -> int:
        return self.evidence[-1].line

    @property
    def lines(self) -> set[int]:
        """Those that are remembered."""
        return {*self.numbers, self.begins}


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


def _grouped(
    all_hits: list[Hits], machine: Machine, likely_stop: bool, went_on: int
) -> tuple[Diagnosis, ...]:
    """Errors, the worst first and among equals by their first line, what follows from another one
    under it; then notices. all_hits: in the order of their lines. `went_on`: the last line at which
    the program is shown to work; 0: none."""
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


def _diagnosis(hits: Hits, below: list[Hits], machine: Machine, likely_stop: bool) -> Diagnosis:
    rule = hits.rule
    more = "" if machine.system in ("windows", "wsl") else rule.linux
    fitting = (
        action
        for shown, action in rule.instead.items()
        if (hits.where == DECODE if shown == OF_DECODE else machine.holds(shown))
    )
    found = Diagnosis(
        **{name: getattr(rule, name) for name in _OF_RULE},
        **{name: getattr(hits, name) for name in ("evidence", "where", "note", "count")},
        rule=rule.id,
        do=machine.filled(next(fitting, rule.do)),
        otherwise=machine.filled(f"{rule.otherwise} {more}".strip()),
        follow_ups=tuple(_diagnosis(other, [], machine, False) for other in below),
    )
    surer = likely_stop and rule.id == "decode-stopped"
    return replace(found, confidence="likely") if surer else found


class _Reader:
    def __init__(self) -> None:
        self.rules, self.signs = by_id(), signs()
        alone_first = sorted(self.rules.values(), key=lambda rule: not rule.alone)
        self.order = {rule.id: place for place, rule in enumerate(alone_first)}
        self.awaited = set(self.signs)
        self.stages, self.machine, self.outcome = Stages(), Machine(), Outcome()
        self.hits: dict[str, Hits] = {}
        self.before: deque[str] = deque(maxlen=2)
        self.pending: dict[str, int] = {}
        self.last_error: tuple[int, str] | None = None
        self.unknown: deque[Evidence] = deque(maxlen=UNKNOWN_LINES)
        self.unknown_count = 0
        self.ends: set[int] = set()  # those of `unknown` that only say how a process ended
        self.last = Line(0, "")

    def feed(self, line: Line) -> None:
        self.last = line
        low, bare = line.text.lower(), without_prefix(line.text)
        named = names_in(low)
        shown = {n for n in named & self.awaited if self.signs[n].shown(line.text, bare)}
        self.awaited -= {name for name in shown if self.signs[name].once}
        self.stages.feed(line, shown)
        self.machine.feed(line.text, bare, low, shown)
        self.outcome.feed(line, low, shown)
        matched = self._matched(line, bare, named & self.rules.keys())
        for rule in matched:
            self._hit(rule, line)
        if matched and "error" in shown:
            self.outcome.explained(line)
        if "decode frame" in shown:
            self._failed_in_decode(line)
        if not any(not rule.needs and not rule.when for rule in matched):
            self._look_for_unknown(line, low, shown)
        if not _CARETS.fullmatch(line.text):
            self.before.append(bare)

    def _matched(self, line: Line, bare: str, named: set[str]) -> list[Rule]:
        pending, self.pending = self.pending, {}
        found = []
        for name in sorted(named | pending.keys(), key=self.order.__getitem__):
            rule = self.rules[name]
            if rule.search(line.text) or rule.search(bare) or self._joined_match(rule, bare):
                if rule.alone:
                    return [rule]
                found.append(rule)
            elif name in named or pending[name] > 1:
                self.pending[name] = 2 if name in named else pending[name] - 1
        return found

    def _joined_match(self, rule: Rule, bare: str) -> bool:
        """A sentence that a logger broke: it has to end in this line."""
        for count in range(1, len(self.before) + 1):
            head = " ".join(part[-_JOINED_CHARS:] for part in list(self.before)[-count:])
            found = rule.search(f"{head} {bare}")
            if found is not None and found.start() < len(head) and found.end() > len(head) + 1:
                return True
        return False

    def _hit(self, rule: Rule, line: Line) -> None:
        where = self.stages.stage if rule.severity == "error" else ""
        hits = self.hits.setdefault(rule.id, Hits(rule, where))
        hits.note = hits.note if hits.count else memory_note(rule.id, line.text)
        hits.add(line)
        if rule.severity == "error" and not rule.needs and not rule.when:
            self.last_error = (line.number, rule.id)
            self._failed()
            # A process that ended in the lines above: this is why.
            told = {number for number in self.ends if line.number - number <= NEAR_AFTER}
            self._forget([row for row in self.unknown if row.line in told])

    def _forget(self, rows: list[Evidence]) -> None:
        """Lines of `unknown` that a rule explains."""
        for row in rows:
            self.unknown.remove(row)
            self.unknown_count -= 1
            self.ends.discard(row.line)

    def _failed(self) -> None:
        self.outcome.run_failed = True
        beside = self.stages.failed()
        if beside is not None:
            self._add("framepack-partial-offload", beside, DECODE)

    def _add(self, name: str, line: Line, where: str) -> None:
        """For a rule without patterns."""
        self.hits.setdefault(name, Hits(self.rules[name], where)).add(line)

    def _failed_in_decode(self, line: Line) -> None:
        """The traceback below an exception's text says that it was in a decode."""
        if self.last_error is not None:
            number, name = self.last_error
            if line.number - number <= TRACEBACK_LINES and name in self.hits:
                self.hits[name].where = DECODE
            self.last_error = None

    def _look_for_unknown(self, line: Line, low: str, shown: set[str]) -> None:
        if HEADING in low:
            self._failed()
        if "error word" in shown:
            self.outcome.error_word(line)
        if "error" not in shown:
            if "end" not in shown or any(
                line.number - hits.numbers[-1] <= NEAR_BEFORE
                for hits in self.hits.values()
                if hits.rule.severity == "error"
            ):
                return
            self.ends.add(line.number)
        self._failed()
        if not self.unknown or self.unknown[-1].line != line.number:
            self.unknown_count += 1
            self.unknown.append(Evidence.of(line))
            self.ends.intersection_update(row.line for row in self.unknown)

    def finish(self) -> Examination:
        stages = self.stages
        if stages.begun is not None:
            self._add("decode-stopped", stages.begun, "")
            self._add("decode-stopped", self.last, "")
        over, shown = self.outcome.finished, self.machine.holds
        self.hits = {n: row for n, row in self.hits.items() if all(map(shown, row.rule.when))}
        self._what_came_before_a_crash()
        places = list(self.rules)
        hits = [row for row in self.hits.values() if not (row.rule.unfinished and over)]
        hits.sort(key=lambda row: (row.begins, places.index(row.rule.id)))
        found = _grouped(hits, self.machine, stages.own_lines, self.outcome.went_on)
        unknown, count = tuple(self.unknown), self.unknown_count
        if not count and all(diagnosis.severity != "error" for diagnosis in found):
            unknown = tuple(Evidence.of(line) for line in self.outcome.suspicious)
            count = self.outcome.suspicious_count
        origin = self.outcome.origin if count else ""
        return Examination(found, unknown, count, self.last.number, origin, over)

    def _what_came_before_a_crash(self) -> None:
        """An error that no rule knows, right above the line of a crash, came first. "Ended without
        a word" is not true either where a word of an error stands above it."""
        errors = [row for row in self.unknown if row.line not in self.ends]
        for hits in list(self.hits.values()):
            if ANY not in hits.rule.follows or hits.rule.rank:
                continue
            above = [row for row in errors if 0 <= hits.begins - row.line <= RIGHT_ABOVE]
            if hits.rule.unfinished:
                lines = [row.line for row in errors]
                lines += [row.number for row in self.outcome.suspicious]
                if any(0 < hits.begins - number <= NEAR_AFTER for number in lines):
                    del self.hits[hits.rule.id]
            elif above:
                if "error-before-crash" not in self.hits:
                    row = Line(above[-1].line, above[-1].text)
                    self._add("error-before-crash", row, self.outcome.origin)
                if above[-1] in self.unknown:  # not where two rules tell of the crash
                    self._forget(above[-1:])


def examine(lines: Iterable[Line]) -> Examination:
    """Everything that `lines` tell."""
    reader = _Reader()
    for line in lines:
        reader.feed(line)
    return reader.finish()


def diagnose(text: str) -> list[Diagnosis]:
    """The causes and notices that `text` tells, the worst first; empty where nothing is known."""
    return list(examine(lines_of_text(text)).diagnoses)
