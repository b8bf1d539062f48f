"""probe(): a list of unproven shapes, each tried in a child process, within a time that holds.

    host -> child (Linux: a keeper, then the worker) : a header, then one case a line
    host <- child                                    : ready, first, done, exit

One child serves the whole list. When a case hangs or kills the child, the child is ended with all
that it started and a new one goes on with the next case, while time is left.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hy3d_rocm.conv.probe import judge, launch, process
from hy3d_rocm.conv.probe.cases import (
    ERROR,
    NOT_RUN,
    OOM,
    Case,
    Outcome,
    Progress,
    Ready,
)
from hy3d_rocm.conv.probe.process import Child, left_behind

__all__ = ["left_behind", "probe", "ready"]

# cancel() is asked this often, and the clock looked at.
_STEP_S = 0.05
_HEARTBEAT_S = 0.5
# A child that has been told to go may take this long to do so by itself.
_GOODBYE_S = 0.3
# Of a child that is dead, what it wrote is read within this.
_LAST_WORDS_S = 0.03

_FAILED = frozenset({ERROR, OOM, NOT_RUN})
_STUCK = (
    "an earlier probe's process can't be ended (it waits in the GPU's driver); the GPU needs a"
    " reset, restart the machine"
)


def ready(python: str | os.PathLike[str] | None = None) -> Ready:
    """Whether it is worthwhile to start a child here: a GPU, a Python, nothing left hanging."""
    if os.environ.get(launch.INSIDE):
        return Ready(False, "this is a probe's child process itself")
    path, why = launch.interpreter(python)
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
    the most one case may take; without it judge.case_limit() divides the time. python: the
    interpreter; by default this process's. progress(Progress) and cancel() are called on this
    thread at least every 0.1 s; what they raise ends the children and passes through unchanged
    (outcomes so far went to progress). ValueError for times that are none; nothing else is raised.
    """
    judge.check_limits(limit_s, slow_s, case_limit_s)
    run = _Run(list(cases), limit_s, slow_s, case_limit_s, progress, cancel)
    path, why = launch.interpreter(python)
    if os.environ.get(launch.INSIDE):
        why = "this is a probe's child process itself"
    elif left_behind():
        why = _STUCK
    while path is not None and not why and run.has_more():
        why = _Session(run, path).serve()
    return run.finish(why or "the time was up before")


class _Run:
    """The list, what is known of it, and the clock."""

    def __init__(
        self, cases: list[Case], limit_s: float, slow_s: float, case_limit_s: float | None,
        progress: Callable[[Progress], None] | None, cancel: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self.cases, self.limit_s, self.slow_s = cases, limit_s, slow_s
        self._case_limit_s, self._progress, self._cancel = case_limit_s, progress, cancel
        self.deadline = time.monotonic() + limit_s
        self.outcomes: list[Outcome] = []
        self._beat = 0.0

    @property
    def index(self) -> int:
        """The case that is running or is next."""
        return len(self.outcomes)

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    def has_more(self) -> bool:
        """Whether there is a case, and so much time that a hang would mean something."""
        enough = min(self.slow_s, self.limit_s / 2)
        return self.index < len(self.cases) and self.remaining_s() >= enough

    def case_limit(self) -> float:
        left, count = len(self.cases) - self.index, len(self.cases)
        granted = judge.case_limit(self.remaining_s(), left, self.limit_s, count, self.slow_s)
        return granted if self._case_limit_s is None else min(granted, self._case_limit_s)

    def put(self, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append(outcome)
        self.tell(seconds, outcome)

    def tell(self, seconds: float, outcome: Outcome | None = None) -> None:
        self._beat = time.monotonic()
        if self._progress is not None:
            position = self.index - 1 if outcome is not None else self.index
            case = self.cases[position]
            self._progress(Progress(self.index, len(self.cases), case, seconds, outcome))

    def step(self, seconds: float) -> None:
        """Between two looks at the pipes."""
        if self._cancel is not None:
            self._cancel()
        if time.monotonic() - self._beat > _HEARTBEAT_S:
            self.tell(seconds)

    def finish(self, why: str) -> list[Outcome]:
        while self.index < len(self.cases):
            self.put(Outcome(self.cases[self.index], NOT_RUN, detail=why), 0.0)
        return self.outcomes


class _Session:
    """One child and the cases it gets through."""

    def __init__(self, run: _Run, python: str) -> None:
        self._run, self._python = run, python
        self._nonce = secrets.token_hex(8)
        # begun: it has taken up the running case. leaving: it said that it can't go on.
        self._is_ready = self._has_begun = self._is_leaving = self._has_gone = False
        self._code: int | None = None
        self._started: float | None = None  # when the running case began
        self._limit_s = self._loading_s = 0.0
        self._first_s: float | None = None
        self._oom_kills, self._begun_at = _oom_kills(), run.index

    def serve(self) -> str:
        """Runs cases until the list, the time or the child ends; why no other child is to be
        started, or ""."""
        try:
            self._child = Child(self._python, self._nonce, process.HAS_KEEPER)
        except OSError as error:
            return f"no process could be started: {error}"
        is_gone = True
        try:
            why = self._talk()
        finally:
            is_gone = self._child.end()
        return why if is_gone else why or _STUCK

    def _talk(self) -> str:
        run, child = self._run, self._child
        start = launch.header(run.cases[run.index :], self._nonce, process.HAS_KEEPER)
        self._send(start)
        run.tell(0.0)
        while True:
            self._listen(min(_STEP_S, max(self._until() - time.monotonic(), 0.0)))
            if self._is_leaving:
                return ""
            if self._has_gone or child.has_ended():
                return self._conclude_end()
            if time.monotonic() >= self._until():
                return self._conclude_late()
            if self._is_ready and self._started is None:
                if not run.has_more():
                    return self._goodbye()
                self._begin()
            run.step(0.0 if self._started is None else time.monotonic() - self._started)

    def _until(self) -> float:
        """When patience with what is going on now ends."""
        return self._run.deadline if self._started is None else self._started + self._limit_s

    def _slow_s(self) -> float:
        """A child's first case also pays for what is loaded once in a process."""
        is_first = self._run.index == self._begun_at
        return self._run.slow_s + (self._loading_s if is_first else 0.0)

    def _send(self, message: dict[str, Any]) -> None:
        self._child.pipes.send(json.dumps(message).encode("ascii") + b"\n")

    def _begin(self) -> None:
        run = self._run
        case = run.cases[run.index]
        self._drain()  # what it said so far was not about this case
        self._child.stderr.clear()
        self._limit_s, self._first_s, self._has_begun = run.case_limit(), None, False
        self._started = time.monotonic()
        request = {"case": run.index, "tier": case.tier, "spec": case.spec.to_json()}
        self._send(request | ({"check": True} if case.check else {}))
        run.tell(0.0)

    def _listen(self, timeout_s: float) -> None:
        self._child.pipes.pump(timeout_s)
        for message in self._child.messages.take():
            self._hear(message)

    def _drain(self, wait_s: float = 0.0) -> None:
        """All that is in the pipes now; bounded, since a child may write faster than we read.

        wait_s: how long to wait for more, where threads do the reading."""
        for _ in range(64):
            if not self._child.pipes.pump(wait_s):
                break
        for message in self._child.messages.take():
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "ready":
            self._is_ready, self._loading_s = True, float(message.get("loading_s", 0.0))
        elif event == "exit":
            self._has_gone, self._code = True, message.get("code")
        elif event == "stuck":
            self._child.is_stuck = True
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
        if message.get("verdict") in _FAILED:
            self._finish_case(message["verdict"], self._detail(message), first_s)
        elif first_s is not None and later_s is not None:
            verdict = judge.timed_verdict(first_s, later_s, self._slow_s())
            self._finish_case(verdict, "", first_s, later_s, message.get("peak_bytes"))

    def _detail(self, message: dict[str, Any]) -> str:
        """What was raised, with the line on stderr that says more (MIOpen writes it there)."""
        detail = str(message.get("detail", ""))
        if message["verdict"] != ERROR:
            return detail
        self._child.pipes.pump(0.0)
        line, kind = judge.telling_line(self._child.stderr.lines())
        return f"{detail} ({line})" if kind is not None and line not in detail else detail

    def _finish_case(
        self, verdict: str, detail: str, first_s: float | None = None, later_s: float | None = None,
        peak_bytes: int | None = None,
    ) -> None:  # fmt: skip
        run = self._run
        assert self._started is not None
        seconds, self._started = time.monotonic() - self._started, None
        case = run.cases[run.index]
        outcome = Outcome(case, verdict, first_s, later_s, peak_bytes, detail, self._limit_s)
        run.put(outcome, seconds)

    def _conclude_end(self) -> str:
        """The child ended by itself."""
        child = self._child
        self._drain(_LAST_WORDS_S)
        if self._code is None and child.end():  # no keeper that could have told
            self._code = child.returncode
        has_oom = _oom_kills() > self._oom_kills
        verdict, detail = judge.end_verdict(self._code, child.stderr.lines(), has_oom)
        if self._started is not None and self._has_begun:
            self._finish_case(verdict, detail, self._first_s)
            return ""
        if not self._is_ready:
            return f"the child process did not get ready: {detail}"
        # Between two cases, so no shape is to blame: the next child goes on, if this one got on.
        return "" if self._run.index > self._begun_at else f"no child lives long enough: {detail}"

    def _conclude_late(self) -> str:
        if self._started is not None:
            verdict, detail = judge.late_verdict(self._first_s, self._limit_s, self._slow_s())
            if not self._has_begun:  # stopped from outside, or starved: not the shape's doing
                verdict, detail = NOT_RUN, f"the child did not answer for {self._limit_s:.1f} s"
            self._finish_case(verdict, detail, self._first_s)
            return ""
        return f"the child process was not ready after {self._run.limit_s:.1f} s"

    def _goodbye(self) -> str:
        """Lets it go by itself for a moment, so that the libraries' files are closed properly."""
        self._send({"quit": True})
        until = min(time.monotonic() + _GOODBYE_S, self._run.deadline)
        while not self._has_gone and not self._child.has_ended() and time.monotonic() < until:
            self._listen(0.02)
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
