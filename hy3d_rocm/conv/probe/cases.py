"""What a probe is asked and what it answers: times granted, verdicts, what an end means."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hy3d_rocm.conv import errors

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


class Spec(Protocol):
    """What the parent needs of a hy3d_rocm.conv.call.ConvSpec."""

    @property
    def device(self) -> Any:
        """str() of it names the device in the child too: the environment is the same."""

    def to_json(self) -> Any:
        """Plain types, from which ConvSpec.from_json makes an equal spec in the child."""


@dataclass(frozen=True)
class Case:
    """One tier (a name of hy3d_rocm.conv.tiers.make_tier) for one shape.

    check: its first result is held against float64 sums, and a wrong one is an "error".
    """

    tier: str
    spec: Spec
    check: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    verdict: "ok"; "slow-find" (the first call took more than slow_s longer than later ones, or
    finished late and the second did not come back in time); "hang" (nothing came back in
    `limit_s`); "error" (an exception, or the child's end, with the text that says why); "oom" and
    "not-run", which are no verdicts.
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


def _is_outside(code: int | None) -> bool:
    return code is not None and code < 0 and exit_text(code).split()[-1] in _OUTSIDE


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
    if _is_outside(code):
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
