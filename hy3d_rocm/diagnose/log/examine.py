"""Reads a log line by line and tells its causes. Memory does not grow with the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from hy3d_rocm.diagnose.log.events import DECODE, TRACEBACK_LINES, Outcome, Stages, names_a_decode
from hy3d_rocm.diagnose.log.found import NEAR_AFTER, NEAR_BEFORE, Diagnosis, Evidence, Hits, grouped
from hy3d_rocm.diagnose.log.machine import Machine, signs
from hy3d_rocm.diagnose.log.read import Line, lines_of_text, without_prefix
from hy3d_rocm.diagnose.log.rules import ANY, Rule, WordIndex, by_id, memory_note, table

UNKNOWN_LINES = 5
RIGHT_ABOVE = 12  # lines between an error and the crash that it ended in
_JOINED_CHARS = 300

_index_of = cache(WordIndex)
_CARETS = re.compile(r"[\^~ ]+")  # what Python draws under a line of a traceback


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


class _Reader:
    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = by_id()
        self.error, self.end = signs()["error"], signs()["end"]
        self.words = _index_of(rules)
        self.order = [rule.id for rule in sorted(rules, key=lambda rule: not rule.alone)]
        self.synthetic = {rule.id for rule in rules if not rule.patterns}
        self.stages = Stages()
        self.machine = Machine()
        self.outcome = Outcome()
        self.hits: dict[str, Hits] = {}
        self.before: deque[str] = deque(maxlen=2)
        self.pending: dict[str, int] = {}
        self.last_error: tuple[int, str] | None = None
        self.unknown: deque[Evidence] = deque(maxlen=UNKNOWN_LINES)
        self.unknown_count = 0
        self.ends: set[int] = set()  # those of `unknown` that only say how a process ended
        self.run_failed = False  # the run that goes on now had an error
        self.runs = False  # the program says where a run begins
        self.went_on = 0  # the last line at which the program is shown to work
        self.lines = 0

    def feed(self, line: Line) -> None:
        self.lines = line.number
        low = line.text.lower()
        self.stages.feed(line, low)
        self.machine.feed(line.text, low)
        mark = self.outcome.feed(line, low)
        going = mark == "going" and not self.runs  # a trainer, which has no runs of its own
        if mark == "started" or going or (mark in ("going", "finished") and not self.run_failed):
            self.went_on = line.number
        elif mark == "begun":
            self.run_failed, self.runs = False, True
        matched = self._matched(line, low)
        for rule in matched:
            self._hit(rule, line)
        if matched and self.error.pattern.search(without_prefix(line.text)):
            self.outcome.explained(line)
        self._look_for_place(line)
        if not any(not rule.needs and not rule.when for rule in matched):
            self._look_for_unknown(line, low)
        if not _CARETS.fullmatch(line.text):
            self.before.append(line.text)

    def _matched(self, line: Line, low: str) -> list[Rule]:
        tried = self.words.rules_in(low)
        pending, self.pending = self.pending, {}
        if not tried and not pending:
            return []
        found = []
        bare = without_prefix(line.text)
        for name in [name for name in self.order if name in tried or name in pending]:
            rule = self.rules[name]
            here = rule.search(line.text) or rule.search(bare)
            if here or self._joined_match(rule, bare):
                if rule.alone:
                    return [rule]
                found.append(rule)
            elif name in tried or pending[name] > 1:
                self.pending[name] = 2 if name in tried else pending[name] - 1
        return found

    def _joined_match(self, rule: Rule, bare: str) -> bool:
        """A sentence that a logger broke: it has to end in this line."""
        for count in range(1, len(self.before) + 1):
            parts = (without_prefix(part)[-_JOINED_CHARS:] for part in list(self.before)[-count:])
            head = " ".join(parts)
            found = rule.search(f"{head} {bare}")
            if found is not None and found.start() < len(head) and found.end() > len(head) + 1:
                return True
        return False

    def _hit(self, rule: Rule, line: Line) -> None:
        hits = self.hits.get(rule.id)
        if hits is None:
            where = self.stages.stage if rule.severity == "error" else ""
            hits = self.hits[rule.id] = Hits(rule, where, memory_note(rule.id, line.text))
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
        self.run_failed = True
        beside = self.stages.failed()
        if beside is not None:
            self._add("framepack-partial-offload", beside, DECODE)

    def _add(self, name: str, line: Line, where: str) -> None:
        """For a rule without patterns."""
        if name in self.synthetic:
            self.hits.setdefault(name, Hits(self.rules[name], where, "")).add(line)

    def _look_for_place(self, line: Line) -> None:
        """The traceback below an exception's text says whether it was a decode."""
        if self.last_error is not None and names_a_decode(line.text):
            number, name = self.last_error
            if line.number - number <= TRACEBACK_LINES and name in self.hits:
                self.hits[name].where = DECODE
            self.last_error = None

    def _look_for_unknown(self, line: Line, low: str) -> None:
        if "traceback (most recent call last)" in low:
            self._failed()
        self.outcome.error_word(line, low)
        if not self.error.has_word(low):
            return
        bare = without_prefix(line.text)
        if not self.error.pattern.search(bare):
            if not self.end.pattern.search(bare) or any(
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
        if stages.begun is not None and stages.last is not None:
            self._add("decode-stopped", stages.begun, "")
            self._add("decode-stopped", stages.last, "")
        over, shown = self.outcome.finished, self.machine.holds
        self.hits = {n: row for n, row in self.hits.items() if all(map(shown, row.rule.when))}
        self._what_came_before_a_crash()
        hits = [row for row in self.hits.values() if not (row.rule.unfinished and over)]
        order = {name: place for place, name in enumerate(self.rules)}
        found = grouped(hits, order, self.machine, stages.own_lines, self.went_on)
        unknown, count = tuple(self.unknown), self.unknown_count
        if not count and all(diagnosis.severity != "error" for diagnosis in found):
            unknown = tuple(Evidence.of(line) for line in self.outcome.suspicious)
            count = self.outcome.suspicious_count
        origin = self.outcome.origin if count else ""
        return Examination(found, unknown, count, self.lines, origin, over)

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
            elif above and "error-before-crash" in self.synthetic:
                first = Hits(self.rules["error-before-crash"], self.outcome.origin, "")
                first.add(Line(above[-1].line, above[-1].text))
                self.hits.setdefault("error-before-crash", first)
                if above[-1] in self.unknown:  # not where two rules tell of the crash
                    self._forget(above[-1:])


def examine(lines: Iterable[Line], rules: tuple[Rule, ...] | None = None) -> Examination:
    """Everything that `lines` tell. `rules`: a part of the table, for tests."""
    reader = _Reader(table() if rules is None else rules)
    for line in lines:
        reader.feed(line)
    return reader.finish()


def diagnose(text: str) -> list[Diagnosis]:
    """The causes and notices that `text` tells, the worst first; empty where nothing is known."""
    return list(examine(lines_of_text(text)).diagnoses)
