"""probe(): a list of unproven shapes, each tried in a child process, within a time that holds.

    host -> child (Linux: a keeper, then the worker) : a header, then one case a line
    host <- child                                    : ready, first, done, exit

One child serves the whole list. When a case hangs or kills the child, the child is ended with all
that it started and a new one goes on with the next case, while time is left.

ask(): the result of one function, where this process could be hung by it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hy3d_rocm.conv.probe.cases import (
    ERROR,
    NOT_RUN,
    OOM,
    Case,
    Outcome,
    Progress,
    Ready,
    case_limit,
    check_limits,
    end_verdict,
    exit_text,
    late_verdict,
    telling_line,
    timed_verdict,
)
from hy3d_rocm.conv.probe.process import INSIDE, Child, interpreter, left_behind

# cancel() is asked this often, and the clock looked at.
_STEP_S = 0.05
_HEARTBEAT_S = 0.5
# A child that has been told to go may take this long to do so by itself.
_GOODBYE_S = 0.3

_FAILED = frozenset({ERROR, OOM, NOT_RUN})
_IN_A_CHILD = "this is a probe's child process itself"
_STUCK = (
    "an earlier probe's process can't be ended (it waits in the GPU's driver); the GPU needs a"
    " reset, restart the machine"
)


class NoAnswerError(Exception):
    """The text says why. is_hang: the child did not end by itself in its time."""

    def __init__(self, text: str, *, is_hang: bool = False) -> None:
        super().__init__(text)
        self.is_hang = is_hang


def ask(call: str, *, limit_s: float) -> Any:
    """What "module:function" of this package returns in a child process, as JSON carries it.

    The function takes nothing and answers within 16,000 characters. NoAnswerError where no child
    can be started, where it dies or raises, and where it takes longer than limit_s; that is
    raised at most a second after limit_s, whatever the child does.
    """
    check_limits(limit_s, limit_s, None)
    path, why = interpreter()
    if os.environ.get(INSIDE):
        why = _IN_A_CHILD
    if path is None or why:
        raise NoAnswerError(why)
    try:
        child = Child(path, {"call": call})
    except OSError as error:
        raise NoAnswerError(f"no process could be started: {error}") from error
    try:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            is_done = child.is_done()
            for message in child.last_words() if is_done else child.listen(_STEP_S):
                if message.get("event") == "answer":
                    return message.get("value")
            if is_done:
                how = f"the child {exit_text(child.exit_code())}"
                line, _ = telling_line(child.stderr.lines())
                raise NoAnswerError(f"{line} ({how})" if line else how)
    finally:
        child.end()
    raise NoAnswerError(f"nothing came back in {limit_s:.0f} s", is_hang=True)


def ready(python: str | os.PathLike[str] | None = None) -> Ready:
    """Whether it is worthwhile to start a child here: a GPU, a Python, nothing left hanging."""
    if os.environ.get(INSIDE):
        return Ready(False, _IN_A_CHILD)
    path, why = interpreter(python)
    if path is None:
        return Ready(False, f"no probe can be started: {why}")
    if left_behind():
        return Ready(False, _STUCK)
    try:
        import torch
    except ImportError as error:
        return Ready(False, f"PyTorch can't be imported: {error}")
    if not torch.cuda.is_available():
        return Ready(False, "PyTorch sees no GPU, so there is no vendor library to try")
    return Ready(True, "")


def probe(
    cases: Sequence[Case],
    *,
    limit_s: float,
    slow_s: float = 2.0,
    case_limit_s: float | None = None,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancel: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Tries `cases` in child processes; one outcome a case, in order, never later than
    `limit_s` + 1 seconds after the call, whatever the children do.

    slow_s: a first call that takes so much longer than later ones is a slow find. case_limit_s:
    the most one case may take; without it case_limit() divides the time. python: the interpreter;
    by default this process's. progress(Progress) and cancel() are called on this thread at least
    every 0.1 s; what they raise ends the children and passes through unchanged (outcomes so far
    went to progress). ValueError for times that are none; nothing else is raised.
    """
    check_limits(limit_s, slow_s, case_limit_s)
    run = _Run(list(cases), limit_s, slow_s, case_limit_s, progress, cancel)
    path, why = interpreter(python)
    if os.environ.get(INSIDE):
        why = _IN_A_CHILD
    elif left_behind():
        why = _STUCK
    while path is not None and not why and run.has_more():
        why = _serve(run, path)
    while run.index < len(run.cases):
        run.put(Outcome(run.case, NOT_RUN, detail=why or "the time was up before"), 0.0)
    return run.outcomes


@dataclass
class _Run:
    """The list, what is known of it, and the clock."""

    cases: list[Case]
    limit_s: float
    slow_s: float
    case_limit_s: float | None
    progress: Callable[[Progress], None] | None
    cancel: Callable[[], None] | None
    outcomes: list[Outcome] = field(default_factory=list)
    beat: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limit_s

    @property
    def index(self) -> int:
        """The case that is running or is next."""
        return len(self.outcomes)

    @property
    def case(self) -> Case:
        return self.cases[self.index]

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    def has_more(self) -> bool:
        """Whether there is a case, and so much time that a hang would mean something."""
        enough = min(self.slow_s, self.limit_s / 2)
        return self.index < len(self.cases) and self.remaining_s() >= enough

    def granted_s(self) -> float:
        """What the next case may take."""
        left, count = len(self.cases) - self.index, len(self.cases)
        granted = case_limit(self.remaining_s(), left, self.limit_s, count, self.slow_s)
        return granted if self.case_limit_s is None else min(granted, self.case_limit_s)

    def put(self, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append(outcome)
        self.tell(outcome.case, seconds, outcome)

    def tell(self, case: Case, seconds: float, outcome: Outcome | None = None) -> None:
        self.beat = time.monotonic()
        if self.progress is not None:
            self.progress(Progress(self.index, len(self.cases), case, seconds, outcome))

    def step(self, seconds: float) -> None:
        """Between two looks at the pipes."""
        if self.cancel is not None:
            self.cancel()
        if time.monotonic() - self.beat > _HEARTBEAT_S:
            self.tell(self.case, seconds)


def _serve(run: _Run, python: str) -> str:
    """Runs cases in one child until the list, the time or the child ends; why no other child is to
    be started, or ""."""
    devices = sorted({str(case.spec.device) for case in run.cases[run.index :]})
    try:
        child = Child(python, {"devices": devices})
    except OSError as error:
        return f"no process could be started: {error}"
    is_gone = True
    try:
        why = _Session(run, child).talk()
    finally:
        is_gone = child.end()
    return why if is_gone else why or _STUCK


class _Session:
    """One child and the cases it gets through."""

    def __init__(self, run: _Run, child: Child) -> None:
        self._run, self._child = run, child
        # begun: it has taken up the running case. leaving: it said that it can't go on.
        self._is_ready = self._has_begun = self._is_leaving = False
        self._started: float | None = None  # when the running case began
        self._limit_s = self._loading_s = 0.0
        self._first_s: float | None = None
        self._oom_kills, self._begun_at = _oom_kills(), run.index

    def talk(self) -> str:
        """See _serve."""
        run, child = self._run, self._child
        run.tell(run.case, 0.0)
        while True:
            self._hear(child.listen(min(_STEP_S, max(self._until() - time.monotonic(), 0.0))))
            if self._is_leaving:
                return ""
            if child.is_done():
                return self._conclude_end()
            if time.monotonic() >= self._until():
                return self._conclude_late()
            if self._is_ready and self._started is None:
                if not run.has_more():
                    return self._say_goodbye()
                self._begin()
            run.step(0.0 if self._started is None else time.monotonic() - self._started)

    def _until(self) -> float:
        """When patience with what is going on now ends."""
        return self._run.deadline if self._started is None else self._started + self._limit_s

    def _slow_s(self) -> float:
        """A child's first case also pays for what is loaded once in a process."""
        is_first = self._run.index == self._begun_at
        return self._run.slow_s + (self._loading_s if is_first else 0.0)

    def _begin(self) -> None:
        run, case = self._run, self._run.case
        self._hear(self._child.drain())  # what it said so far was not about this case
        self._child.stderr.clear()
        self._limit_s, self._first_s, self._has_begun = run.granted_s(), None, False
        self._started = time.monotonic()
        request = {"case": run.index, "tier": case.tier, "spec": case.spec.to_json()}
        self._child.send({**request, "check": case.check})
        run.tell(case, 0.0)

    def _hear(self, messages: Sequence[dict[str, Any]]) -> None:
        for message in messages:
            event = message.get("event")
            if event == "ready":
                self._is_ready, self._loading_s = True, float(message.get("loading_s", 0.0))
            elif message.get("case") == self._run.index and self._started is not None:
                if event == "begin":
                    self._has_begun = True
                elif event == "first":
                    self._first_s = float(message["seconds"])
                elif event == "done":
                    self._is_leaving = bool(message.get("last"))
                    self._hear_result(message)

    def _hear_result(self, message: dict[str, Any]) -> None:
        """Of a case that went well the times, of another one the verdict."""
        first_s, later_s = message.get("first_seconds", self._first_s), message.get("seconds")
        verdict = message.get("verdict")
        if verdict in _FAILED:
            detail = str(message.get("detail", ""))
            if verdict == ERROR:
                # The line on stderr that says more: MIOpen writes it there.
                self._hear(self._child.listen(0.0))
                line, kind = telling_line(self._child.stderr.lines())
                detail += f" ({line})" if kind is not None and line not in detail else ""
            self._finish_case(verdict, detail, first_s)
        elif first_s is not None and later_s is not None:
            verdict = timed_verdict(first_s, later_s, self._slow_s())
            self._finish_case(verdict, "", first_s, later_s, message.get("peak_bytes"))

    def _finish_case(
        self, verdict: str, detail: str, first_s: float | None = None, later_s: float | None = None,
        peak_bytes: int | None = None,
    ) -> None:  # fmt: skip
        assert self._started is not None
        seconds, self._started = time.monotonic() - self._started, None
        case, limit_s = self._run.case, self._limit_s
        outcome = Outcome(case, verdict, first_s, later_s, peak_bytes, detail, limit_s)
        self._run.put(outcome, seconds)

    def _conclude_end(self) -> str:
        """The child ended by itself."""
        self._hear(self._child.last_words())
        code, has_oom = self._child.exit_code(), _oom_kills() > self._oom_kills
        verdict, detail = end_verdict(code, self._child.stderr.lines(), has_oom)
        if self._started is not None and self._has_begun:
            self._finish_case(verdict, detail, self._first_s)
            return ""
        if not self._is_ready:
            return f"the child process did not get ready: {detail}"
        # Between two cases, so no shape is to blame: the next child goes on, if this one got on.
        return "" if self._run.index > self._begun_at else f"no child lives long enough: {detail}"

    def _conclude_late(self) -> str:
        if self._started is None:
            return f"the child process was not ready after {self._run.limit_s:.1f} s"
        verdict, detail = late_verdict(self._first_s, self._limit_s, self._slow_s())
        if not self._has_begun:  # stopped from outside, or starved: not the shape's doing
            verdict, detail = NOT_RUN, f"the child did not answer for {self._limit_s:.1f} s"
        self._finish_case(verdict, detail, self._first_s)
        return ""

    def _say_goodbye(self) -> str:
        """Lets it go by itself for a moment, so that the libraries' files are closed properly."""
        self._child.send({"quit": True})
        until = min(time.monotonic() + _GOODBYE_S, self._run.deadline)
        while not self._child.is_done() and time.monotonic() < until:
            self._child.listen(0.02)
        return ""


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the start (Linux)."""
    if sys.platform != "linux":
        return 0
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
