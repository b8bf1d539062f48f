"""Reads a log line by line and tells its causes. Memory does not grow with the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from hy3d_rocm.diagnose.read import Line, lines_of_text, without_prefix
from hy3d_rocm.diagnose.rule import Confidence, Rule, Severity
from hy3d_rocm.diagnose.rules import BY_ID, RULES
from hy3d_rocm.diagnose.sizes import memory_note
from hy3d_rocm.diagnose.stages import STAGE_WORDS, TRACEBACK_LINES, Stages, names_a_decode

EVIDENCE_LINES = 3  # the first ones; the last one comes on top
UNKNOWN_LINES = 5
NEAR_BEFORE, NEAR_AFTER = 400, 40  # lines within which one thing may follow from another
_JOINED_CHARS = 300
_EVIDENCE_CHARS = 400

_ERROR = re.compile(
    r"^(?:E )?(?:[\w.]{1,120}\.)?[A-Z]\w{0,60}(?:Error|Exception|Fault)\b(?::|$)"
    r"|!!! Exception during processing|^-? ?\*{0,2}Exception Message:"
    r"|Assertion .{1,200} failed"
)
# What stands beside an error that is told in another line: its heading, or how the process ended.
_END = re.compile(
    r"\bcore dumped\b|Segmentation fault|^Fatal Python error|^Aborted\b|terminate called after"
    r"|\bBus error\b|^Error occurred when executing|^Exception Code: 0x|\*ERROR\*"
)
_WORDS_OF_ERRORS = ("error", "exception", "fault", "dumped", "aborted", "terminate", "failed")


@dataclass(frozen=True)
class Evidence:
    """A line of the log, counted from 1, shortened to 400 characters."""

    line: int
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """One cause (severity "error") or harmless line ("notice") and what to do.

    `evidence`: the first lines and the last one; `count`: how many there are. `where`: "in the VAE
    decode" and the like, or "". `note`: what the figures in the line say. `follow_ups`: what only
    follows from it. `here`: what this package does about it, `otherwise`: what else helps.
    """

    rule: str
    symptom: str
    cause: str
    evidence: tuple[Evidence, ...]
    here: str
    otherwise: str
    confidence: Confidence
    severity: Severity = "error"
    where: str = ""
    note: str = ""
    count: int = 1
    source: str = ""
    follow_ups: tuple[Diagnosis, ...] = ()

    @property
    def remedy(self) -> str:
        return f"{self.here} {self.otherwise}"


@dataclass(frozen=True)
class Examination:
    """`diagnoses`: errors, first cause first, then notices. `unknown`: error lines that no rule
    knows, the last five, and how many there are."""

    diagnoses: tuple[Diagnosis, ...]
    unknown: tuple[Evidence, ...]
    unknown_count: int
    lines: int

    @property
    def causes(self) -> tuple[Diagnosis, ...]:
        return tuple(found for found in self.diagnoses if found.severity == "error")

    @property
    def notices(self) -> tuple[Diagnosis, ...]:
        return tuple(found for found in self.diagnoses if found.severity == "notice")


@dataclass
class _Hits:
    rule: Rule
    where: str
    note: str
    first: list[Evidence] = field(default_factory=list)
    last: Evidence | None = None
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=64))
    count: int = 0

    def add(self, line: Line) -> None:
        if self.last is not None and self.last.line == line.number:
            return  # a piece or a progress state of the same line
        self.count += 1
        self.last = Evidence(line.number, line.text[:_EVIDENCE_CHARS])
        if len(self.first) < EVIDENCE_LINES:
            self.first.append(self.last)
        if len(self.numbers) < 32 or self.count % 2:
            self.numbers.append(line.number)

    @property
    def begins(self) -> int:
        return self.first[0].line

    def evidence(self) -> tuple[Evidence, ...]:
        more = [self.last] if self.last is not None and self.last not in self.first else []
        return (*self.first, *more)


class _Reader:
    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.by_word = [(word, rule) for rule in rules for word in rule.words]
        self.order = [rule.id for rule in sorted(rules, key=lambda rule: not rule.alone)]
        self.synthetic = {rule.id for rule in rules if not rule.patterns}
        self.stages = Stages()
        self.hits: dict[str, _Hits] = {}
        self.before: deque[str] = deque(maxlen=2)
        self.pending: dict[str, int] = {}
        self.last_error: tuple[int, str] | None = None
        self.unknown: deque[Evidence] = deque(maxlen=UNKNOWN_LINES)
        self.unknown_count = 0
        self.ends: set[int] = set()  # those of `unknown` that only say how a process ended
        self.lines = 0

    def feed(self, line: Line) -> None:
        self.lines = line.number
        low = line.text.lower()
        self.stages.feed(line, low)
        matched = self._matched(line, low)
        for rule in matched:
            self._hit(rule, line)
        self._look_for_place(line)
        if not matched:
            self._look_for_unknown(line, low)
        self.before.append(line.text)

    def _matched(self, line: Line, low: str) -> list[Rule]:
        tried = {rule.id for word, rule in self.by_word if word in low}
        pending, self.pending = self.pending, {}
        if not tried and not pending:
            return []
        found = []
        for name in [name for name in self.order if name in tried or name in pending]:
            rule = BY_ID[name]
            if rule.search(line.text) or self._joined_match(rule, line.text):
                if rule.alone:
                    return [rule]
                found.append(rule)
            elif name in tried or pending[name] > 1:
                self.pending[name] = 2 if name in tried else pending[name] - 1
        return found

    def _joined_match(self, rule: Rule, text: str) -> bool:
        """A sentence that a logger broke: it has to end in this line."""
        for count in range(1, len(self.before) + 1):
            parts = (without_prefix(part)[-_JOINED_CHARS:] for part in list(self.before)[-count:])
            head = " ".join(parts)
            found = rule.search(f"{head} {without_prefix(text)}")
            if found is not None and found.start() < len(head) and found.end() > len(head) + 1:
                return True
        return False

    def _hit(self, rule: Rule, line: Line) -> None:
        hits = self.hits.get(rule.id)
        if hits is None:
            where = STAGE_WORDS[self.stages.stage] if rule.severity == "error" else ""
            hits = self.hits[rule.id] = _Hits(rule, where, memory_note(rule.id, line.text))
        hits.add(line)
        if rule.severity == "error":
            self.last_error = (line.number, rule.id)
            self._failed()
            self._explain_ends(line)

    def _explain_ends(self, line: Line) -> None:
        """A process that ended in the lines above: this is why."""
        told = {number for number in self.ends if line.number - number <= NEAR_AFTER}
        if told:
            rest = [row for row in self.unknown if row.line not in told]
            self.unknown_count -= len(self.unknown) - len(rest)
            self.unknown = deque(rest, maxlen=UNKNOWN_LINES)
            self.ends -= told

    def _failed(self) -> None:
        beside = self.stages.failed()
        if beside is not None and "framepack-partial-offload" in self.synthetic:
            self._add("framepack-partial-offload", beside, "decode")

    def _add(self, name: str, line: Line, stage: str) -> None:
        where = STAGE_WORDS["decode"] if stage == "decode" else ""
        self.hits.setdefault(name, _Hits(BY_ID[name], where, "")).add(line)

    def _look_for_place(self, line: Line) -> None:
        """The traceback below an exception's text says whether it was a decode."""
        if self.last_error is not None and names_a_decode(line.text):
            number, name = self.last_error
            if line.number - number <= TRACEBACK_LINES and name in self.hits:
                self.hits[name].where = STAGE_WORDS["decode"]
            self.last_error = None

    def _look_for_unknown(self, line: Line, low: str) -> None:
        if "traceback (most recent call last)" in low:
            self._failed()
        if not any(word in low for word in _WORDS_OF_ERRORS):
            return
        bare = without_prefix(line.text)
        if not _ERROR.search(bare):
            if not _END.search(bare) or self._was_told(line):
                return
            self.ends.add(line.number)
        self._failed()
        if not self.unknown or self.unknown[-1].line != line.number:
            self.unknown_count += 1
            self.unknown.append(Evidence(line.number, line.text[:_EVIDENCE_CHARS]))
            self.ends.intersection_update(row.line for row in self.unknown)

    def _was_told(self, line: Line) -> bool:
        causes = (hits for hits in self.hits.values() if hits.rule.severity == "error")
        return any(line.number - hits.numbers[-1] <= NEAR_BEFORE for hits in causes)

    def finish(self) -> Examination:
        stages = self.stages
        if stages.begun is not None and "decode-stopped" in self.synthetic:
            self._add("decode-stopped", stages.begun, "")
            if stages.last is not None:
                self._add("decode-stopped", stages.last, "")
        found = grouped(list(self.hits.values()), likely_stop=stages.own_lines)
        return Examination(found, tuple(self.unknown), self.unknown_count, self.lines)


def _near(cause: _Hits, effect: _Hits) -> bool:
    """Whether `cause` was seen shortly before the first line of `effect`, or just after it."""
    low, high = effect.begins - NEAR_BEFORE, effect.begins + NEAR_AFTER
    return any(low <= number <= high for number in (*cause.numbers, cause.begins))


def _follows(effect: _Hits, all_hits: list[_Hits]) -> _Hits | None:
    """What `effect` follows from. Where two follow from each other, the first line is the cause."""
    for cause in all_hits:
        if cause is effect or cause.rule.id not in effect.rule.follows or not _near(cause, effect):
            continue
        mutual = effect.rule.id in cause.rule.follows
        if not mutual or cause.begins <= effect.begins:
            return cause
    return None


def grouped(all_hits: list[_Hits], likely_stop: bool = False) -> tuple[Diagnosis, ...]:
    """Errors by their first line, what follows from another one under it; then notices."""
    order = {rule.id: place for place, rule in enumerate(RULES)}
    all_hits = sorted(all_hits, key=lambda hits: (hits.begins, order[hits.rule.id]))
    parents = {hits.rule.id: _root(hits, all_hits) for hits in all_hits}
    result = []
    for severity in ("error", "notice"):
        for hits in all_hits:
            if hits.rule.severity != severity or parents[hits.rule.id] is not hits:
                continue
            below = [
                other
                for other in all_hits
                if other is not hits
                and parents[other.rule.id] is hits
                and set(other.numbers) - set(hits.numbers)  # it says more than the same line
            ]
            result.append(_diagnosis(hits, below, likely_stop))
    return tuple(result)


def _root(hits: _Hits, all_hits: list[_Hits]) -> _Hits:
    seen = {hits.rule.id}
    while (cause := _follows(hits, all_hits)) is not None and cause.rule.id not in seen:
        hits = cause
        seen.add(hits.rule.id)
    return hits


def _diagnosis(hits: _Hits, below: list[_Hits], likely_stop: bool) -> Diagnosis:
    rule = hits.rule
    surer = likely_stop and rule.id == "decode-stopped"
    return Diagnosis(
        rule=rule.id,
        symptom=rule.symptom,
        cause=rule.cause,
        evidence=hits.evidence(),
        here=rule.here,
        otherwise=rule.otherwise,
        confidence="likely" if surer else rule.confidence,
        severity=rule.severity,
        where=hits.where,
        note=hits.note,
        count=hits.count,
        source=rule.source,
        follow_ups=tuple(_diagnosis(other, [], False) for other in below),
    )


def examine(lines: Iterable[Line], rules: tuple[Rule, ...] = RULES) -> Examination:
    """Everything that `lines` tell. `rules`: a part of the table, for tests."""
    reader = _Reader(rules)
    for line in lines:
        reader.feed(line)
    return reader.finish()


def diagnose(text: str) -> list[Diagnosis]:
    """The causes and notices that `text` tells, first cause first; empty where nothing is known."""
    return list(examine(lines_of_text(text)).diagnoses)
