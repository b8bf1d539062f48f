"""probe(): a list of unproven shapes, each tried in a child process, within a time that holds.

    host -> child (Linux: a keeper, then the worker) : a header, then one case a line
    host <- child                                    : ready, first, done, exit

One child serves the whole list. When a case hangs or kills the child, the child is ended with all
that it started and a new one goes on with the next case, while time is left. What an end means, and
how much time a case gets, is decided by functions without a child, at the end.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hy3d_rocm.conv import errors
from hy3d_rocm.conv.probe.process import (
    Child,
    EndedError,
    LateError,
    interpreter,
    left_behind,
)

OK = "ok"
SLOW_FIND = "slow-find"
HANG = "hang"
ERROR = "error"
OOM = "oom"
NOT_RUN = "not-run"
# What may be kept about (tier, shape). "oom" says something about the child's moment only, and
# "not-run" nothing at all.
VERDICTS = frozenset({OK, SLOW_FIND, HANG, ERROR})

# A hang of MIOpen's find lasts for ever or for some ten minutes; who waits longer won't use it.
LONGEST_S = 600.0
_GROWTH = 4.0
_MAX_DETAIL = 300

# A fault of the machine that the process is on, not of the shape: nothing may be kept of it.
_HOST_FAULT = re.compile(
    r"No space left on device|database or disk is full|Disk quota exceeded|Read-only file system"
    r"|Permission denied|Too many open files|Resource temporarily unavailable"
    r"|Cannot allocate memory"
)
# Sent by people, service managers and the kernel's out-of-memory killer; no library ends its own
# process by one of these.
_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")

_HEARTBEAT_S = 0.5
# A child that has been told to go may take this long to do so by itself.
_GOODBYE_S = 0.3

_STUCK = (
    "an earlier probe's process can't be ended (it waits in the GPU's driver); the GPU needs a"
    " reset, restart the machine"
)


@dataclass(frozen=True)
class Case:
    """One tier (a name of hy3d_rocm.conv.tiers.make_tier) for one shape.

    spec: a ConvSpec; the child has its own, from its JSON, and names its device as str() does.
    check: its first result is held against float64 sums, and a wrong one is an "error".
    """

    tier: str
    spec: Any
    check: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    verdict: "ok", "slow-find", "hang" or "error" (docs/probe.md); "oom" and "not-run", which are
    no verdicts.
    first_seconds: the first call, synchronised. seconds: median of later ones. peak_bytes: what
    the call allocated beyond input, weight, bias and output (torch.cuda.max_memory_allocated, so
    what a library allocates past PyTorch is not in it); None on the CPU. limit_s: how long the
    case could have taken at most.
    """

    case: Case
    verdict: str
    first_seconds: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    limit_s: float | None = None

    @property
    def is_verdict(self) -> bool:
        """Whether this may be kept about the shape."""
        return self.verdict in VERDICTS


@dataclass(frozen=True)
class Progress:
    """Told when a case begins, every half second while it runs, and when it has an outcome."""

    done: int
    total: int
    case: Case
    seconds: float
    outcome: Outcome | None = None


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
    if path is None:
        raise NoAnswerError(why)
    try:
        child = Child(path, {"call": call})
    except OSError as error:
        raise NoAnswerError(f"no process could be started: {error}") from error
    try:
        return child.next_message(time.monotonic() + limit_s)["value"]
    except LateError:
        raise NoAnswerError(f"nothing came back in {limit_s:.0f} s", is_hang=True) from None
    except EndedError:
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
    if path is not None and left_behind():
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
            message = child.next_message(run.deadline, run.step)
        is_ready = True
        # A child's first case also pays for what is loaded once in a process.
        slow_s = run.slow_s + float(message.get("loading_s", 0.0))
        while run.has_more():
            if not _try_case(run, child, slow_s, oom_kills):
                return ""
            slow_s = run.slow_s
    except LateError:
        return f"the child process was not ready after {run.limit_s:.1f} s"
    except EndedError:
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
            message = child.next_message(started + limit_s, lambda: run.step(started))
            if message["event"] == "begin":
                has_begun = True
            elif message["event"] == "first":
                first_s = float(message["seconds"])
            else:
                break
    except LateError:
        verdict, detail = late_verdict(first_s, limit_s, slow_s)
        if not has_begun:  # stopped from outside, or starved: not the shape's doing
            verdict, detail = NOT_RUN, f"the child did not answer for {limit_s:.1f} s"
        conclude(verdict, detail)
        return False
    except EndedError:
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


# Decided without a child.


def next_limit(limit_s: float, longest_s: float = LONGEST_S) -> float | None:
    """The time to grant a case that hung at `limit_s` seconds, or None where that was enough.

    15 -> 60 -> 240 -> 600 -> None: four attempts, of which the last decides the total.
    """
    if not limit_s > 0:
        raise ValueError(f"next_limit: limit_s={limit_s} is no time; give seconds above 0")
    return None if limit_s >= longest_s else min(limit_s * _GROWTH, longest_s)


def case_limit(remaining_s: float, left: int, total_s: float, count: int, slow_s: float) -> float:
    """Seconds for the next of `left` cases of `count`, when `remaining_s` of `total_s` are left.

    An equal share of what is left, so that a hang can't eat the time of the cases behind it, but
    not less than `slow_s` (below that slow and hung can't be told apart), and not more than five
    times that or the equal share of the total: a hang in the last of many quick cases shall not
    take all the time that they saved.
    """
    fair = max(remaining_s / left, slow_s)
    return min(remaining_s, fair, max(total_s / count, 5 * slow_s))


def timed_verdict(first_s: float, later_s: float, slow_s: float) -> str:
    """ "slow-find" where the first call took `slow_s` longer than a later one.

    A shape whose every call is slow is "ok": its time says so, and no find is to blame.
    """
    return SLOW_FIND if first_s - later_s > slow_s else OK


def late_verdict(first_s: float | None, limit_s: float, slow_s: float) -> tuple[str, str]:
    """The verdict on a case that did not finish in `limit_s`; `first_s` if one call did."""
    if first_s is None:
        return HANG, f"nothing came back in {limit_s:.1f} s"
    late = (
        f"the first call took {first_s:.1f} s, the next ones did not come back in {limit_s:.1f} s"
    )
    return (SLOW_FIND if first_s > slow_s else HANG), late


def exception_verdict(error: BaseException) -> tuple[str, str, bool]:
    """(verdict, detail, whether the process is still good) for what a tier raised in the child."""
    text = f"{type(error).__name__}: {errors.first_line(error)}"[:_MAX_DETAIL]
    found = errors.classify(error)
    if found is not None and found.kind is errors.Kind.OUT_OF_MEMORY:
        return OOM, text, True
    if _HOST_FAULT.search(str(error)):
        return NOT_RUN, f"a fault of this machine, not of the shape: {text}", True
    sound = found is None or found.kind is not errors.Kind.DEVICE_LOST
    return ERROR, text, sound


def exit_text(code: int | None) -> str:
    """How a process ended, from its return code (negative: the signal; None: not known)."""
    if code is None:
        return "ended, it is not known how"
    if code < 0:
        try:
            return f"ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"ended by signal {-code}"
    return f"ended with exit code {code if code < 0x80000000 else hex(code)}"


def telling_line(lines: Sequence[str]) -> tuple[str, errors.Kind | None]:
    """The last line that a rule of errors.toml knows, else the last line that is not empty."""
    for line in reversed(lines):
        found = errors.classify_text(line)
        if found is not None:
            return line.strip()[:_MAX_DETAIL], found.kind
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last[:_MAX_DETAIL], None


def end_verdict(code: int | None, lines: Sequence[str], oom_killed: bool) -> tuple[str, str]:
    """The verdict on the case during which the child ended, from its code and its stderr."""
    line, kind = telling_line(lines)
    how = f"the child {exit_text(code)}"
    message = f"{line} ({how})" if line else how
    if kind is errors.Kind.OUT_OF_MEMORY or oom_killed:
        return OOM, message
    if code is not None and code < 0 and how.split()[-1] in _OUTSIDE:
        return NOT_RUN, f"{how}, which came from outside; no verdict"
    if any(_HOST_FAULT.search(text) for text in lines):
        return NOT_RUN, f"a fault of this machine, not of the shape: {message}"
    return ERROR, message


def check_limits(limit_s: float, slow_s: float, case_limit_s: float | None) -> None:
    """ValueError with a sentence for times that are none."""
    named = (("limit_s", limit_s), ("slow_s", slow_s), ("case_limit_s", case_limit_s))
    for name, value in named:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"probe: {name}={value} is no time; give seconds above 0")
