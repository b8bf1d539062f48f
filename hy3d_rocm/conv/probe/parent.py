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
    Case,
    Outcome,
    Progress,
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
        return _next_message(child, time.monotonic() + limit_s)["value"]
    except _LateError:
        raise NoAnswerError(f"nothing came back in {limit_s:.0f} s", is_hang=True) from None
    except _EndedError:
        line, _ = telling_line(child.stderr_lines())
        how = f"the child {exit_text(child.exit_code())}"
        raise NoAnswerError(f"{line} ({how})" if line else how) from None
    finally:
        child.end()


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

    def step(self, started: float | None = None) -> None:
        """Between two looks at the pipes; since when the case runs, if one does."""
        if self.cancel is not None:
            self.cancel()
        now = time.monotonic()
        if now - self.beat > _HEARTBEAT_S:
            self.tell(self.case, 0.0 if started is None else now - started)


class _EndedError(Exception):
    """The child is gone, and all that it wrote has been heard."""


class _LateError(Exception):
    """Patience with what is going on has ended."""


def _serve(run: _Run, python: str) -> str:
    """Runs cases in one child until the list, the time or the child ends; why no other child is to
    be started, or ""."""
    devices = sorted({str(case.spec.device) for case in run.cases[run.index :]})
    oom_kills = _oom_kills()
    try:
        child = Child(python, {"devices": devices})
    except OSError as error:
        return f"no process could be started: {error}"
    is_gone = True
    try:
        why = _run_cases(run, child, oom_kills)
    finally:
        is_gone = child.end()
    return why if is_gone else why or _STUCK


def _run_cases(run: _Run, child: Child, oom_kills: int) -> str:
    """See _serve. oom_kills: what the kernel had killed when the child was started."""
    begun_at, is_ready = run.index, False
    run.tell(run.case, 0.0)
    try:
        message: dict[str, Any] = {}
        while message.get("event") != "ready":
            message = _next_message(child, run.deadline, run.step)
        is_ready = True
        # A child's first case also pays for what is loaded once in a process.
        slow_s = run.slow_s + float(message.get("loading_s", 0.0))
        while run.has_more():
            if not _try_case(run, child, slow_s, oom_kills):
                return ""
            slow_s = run.slow_s
    except _LateError:
        return f"the child process was not ready after {run.limit_s:.1f} s"
    except _EndedError:
        _, detail = _end_verdict(child, oom_kills)
        if not is_ready:
            return f"the child process did not get ready: {detail}"
        # Between two cases, so no shape is to blame: the next child goes on, if this one got on.
        return "" if run.index > begun_at else f"no child lives long enough: {detail}"
    # It may go by itself for a moment, so that the libraries' files are closed properly.
    child.send({"quit": True})
    until = min(time.monotonic() + _GOODBYE_S, run.deadline)
    while not child.is_done() and time.monotonic() < until:
        child.listen(0.02)
    return ""


def _try_case(run: _Run, child: Child, slow_s: float, oom_kills: int) -> bool:
    """Has the child run the next case; whether it can go on with another one."""
    case, limit_s = run.case, run.granted_s()
    child.forget()  # what it said so far was not about this case
    started = time.monotonic()
    request = {"case": run.index, "tier": case.tier, "spec": case.spec.to_json()}
    child.send({**request, "check": case.check})
    run.tell(case, 0.0)
    has_begun, first_s = False, None

    def conclude(
        verdict: str, detail: str, later_s: float | None = None, peak_bytes: int | None = None
    ) -> None:
        outcome = Outcome(case, verdict, first_s, later_s, peak_bytes, detail, limit_s)
        run.put(outcome, time.monotonic() - started)

    try:
        while True:
            message = _next_message(child, started + limit_s, lambda: run.step(started))
            if message["event"] == "begin":
                has_begun = True
            elif message["event"] == "first":
                first_s = float(message["seconds"])
            else:
                break
    except _LateError:
        verdict, detail = late_verdict(first_s, limit_s, slow_s)
        if not has_begun:  # stopped from outside, or starved: not the shape's doing
            verdict, detail = NOT_RUN, f"the child did not answer for {limit_s:.1f} s"
        conclude(verdict, detail)
        return False
    except _EndedError:
        if not has_begun:
            raise
        conclude(*_end_verdict(child, oom_kills))
        return False
    if "seconds" in message:
        first_s, later_s = message["first_seconds"], message["seconds"]
        conclude(timed_verdict(first_s, later_s, slow_s), "", later_s, message["peak_bytes"])
    else:
        verdict, detail = message["verdict"], message["detail"]
        if verdict == ERROR:
            # The line on stderr that says more: MIOpen writes it there.
            line, kind = telling_line(child.stderr_lines())
            detail += f" ({line})" if kind is not None and line not in detail else ""
        conclude(verdict, detail)
    return not message["last"]


def _next_message(
    child: Child, until: float, step: Callable[[], None] | None = None
) -> dict[str, Any]:
    """The child's next message; _LateError where none comes until then, _EndedError where none can
    come any more. step() is called all the time."""
    while True:
        if step is not None:
            step()
        now, is_done = time.monotonic(), child.is_done()
        if is_done:
            child.hear_out()
        else:
            child.listen(min(_STEP_S, max(until - now, 0.0)))
        if child.inbox:
            return child.inbox.popleft()
        if is_done:
            raise _EndedError
        if time.monotonic() >= until:
            raise _LateError


def _end_verdict(child: Child, oom_kills: int) -> tuple[str, str]:
    """What the end of the child says about the case that it was at."""
    lines = child.stderr_lines()
    return end_verdict(child.exit_code(), lines, _oom_kills() > oom_kills)


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the start (Linux)."""
    if sys.platform != "linux":
        return 0
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
