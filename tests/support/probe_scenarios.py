"""What may happen to a probe's child, and the verdicts that have to come out.

Used by tests/unit/conv/probe/test_parent.py (each once) and by
tests/long/check_probe.py (a thousand times).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probe_doubles import bounded, case, cases, fake_probe, marked, zombies

from hy3d_rocm.conv import faults
from hy3d_rocm.conv.probe.parent import Case, Outcome

# A case's own limit, where the scenario is not about the total: ends a hang soon, while a busy
# machine may take its time to start the child.
CASE_S = 0.3
LIMIT_S = 30.0
MARK = "HY3D_PROBE_TEST_MARK"


@dataclass(frozen=True)
class Scenario:
    """`verdicts` are those expected of the cases, in order; `needle` is in the first detail."""

    name: str
    build: Callable[[], Sequence[Case]]
    verdicts: tuple[str, ...]
    needle: str = ""
    limit_s: float = LIMIT_S
    case_limit_s: float | None = CASE_S
    start: str = ""


def _named(*names: str) -> Callable[[], Sequence[Case]]:
    return lambda: cases(*names)


def _one(do: str, *after: str, **options: object) -> Callable[[], Sequence[Case]]:
    return lambda: [case(do, **options), *cases(*after)]


_UNKNOWN = {"text": faults.MIOPEN_UNKNOWN, "stderr": faults.MIOPEN_NO_ALGORITHM + "\n"}
_SLOW = {"seconds": 0.45}

SCENARIOS = (
    Scenario("healthy", _named("ok", "ok", "ok"), ("ok", "ok", "ok")),
    Scenario("slow find", _one("slow_find", "ok", **_SLOW), ("slow-find", "ok"), "", LIMIT_S, 10.0),
    Scenario("slow always", _one("sleep", **_SLOW), ("ok",), "", LIMIT_S, 10.0),
    Scenario("hang", _named("ok", "hang", "ok"), ("ok", "hang", "ok")),
    Scenario("hang holding the interpreter", _named("busy", "ok"), ("hang", "ok")),
    Scenario("hang, total", _named("hang"), ("hang",), "nothing came", 2.0, None),
    # Nothing but the total ends these: they show that the host is back within it and a second.
    Scenario("busy, total", _named("busy"), ("hang",), "nothing came", 2.0, None),
    Scenario("deaf, total", _named("deaf"), ("hang",), "nothing came", 2.0, None),
    Scenario("flood, total", _named("flood"), ("hang",), "nothing came", 2.0, None),
    Scenario("stopped, total", _named("stop"), ("hang",), "nothing came", 2.0, None),
    Scenario(
        "grandchildren, total", _one("grandchildren", then="hang"), ("hang",), "nothing", 2.0, None
    ),
    Scenario("hang in the second call", _named("second_hangs", "ok"), ("hang", "ok"), "next ones"),
    Scenario(
        "late, then hang", _one("second_hangs", "ok", **_SLOW), ("slow-find", "ok"), "next ones",
        LIMIT_S, 0.9,
    ),
    Scenario("deaf to SIGTERM", _named("deaf", "ok"), ("hang", "ok")),
    Scenario("stopped", _named("stop"), ("hang",)),
    Scenario("no algorithm", _one("raise", "ok", **_UNKNOWN), ("error", "ok"), "No suitable"),
    Scenario("no engine", _one("raise", "ok", text=faults.NO_ENGINE), ("error", "ok"), "unable to"),
    Scenario("out of memory", _one("raise", "ok", text=faults.HIP_OOM), ("oom", "ok"), "HIP out"),
    Scenario("host out of memory", _named("memory", "ok"), ("oom", "ok"), "MemoryError"),
    Scenario("HSA out of memory", _one("abort", "ok", text=faults.BLOCK_ALLOCATOR), ("oom", "ok")),
    Scenario("device lost", _one("raise", "ok", text=faults.ILLEGAL_ACCESS), ("error", "ok")),
    Scenario("abort", _named("ok", "abort", "ok"), ("ok", "error", "ok"), ""),
    Scenario("HSA abort", _named("hsa", "ok"), ("error", "ok"), "Memory access fault by GPU"),
    Scenario("crash", _named("segfault", "ok"), ("error", "ok"), "SIGSEGV"),
    Scenario("exit", _named("exit", "ok"), ("error", "ok"), "exit code 3"),
    Scenario("exit with 0", _one("exit", "ok", code=0), ("error", "ok"), "exit code 0"),
    Scenario("SystemExit", _named("system_exit", "ok"), ("error", "ok"), "the tier gave up"),
    Scenario("killed", _named("killed", "ok"), ("not-run", "ok"), "SIGKILL"),
    Scenario("keeper killed", _named("keeper_killed", "ok"), ("not-run", "ok"), "SIGKILL"),
    Scenario("garbage", _named("garbage", "ok"), ("ok", "ok")),
    Scenario("chatty", _named("chatty", "ok"), ("ok", "ok"), "", LIMIT_S, 10.0),
    Scenario("flood", _named("flood", "ok"), ("hang", "ok")),
    Scenario("grandchildren", _named("grandchildren", "ok"), ("ok", "ok"), "", LIMIT_S, 10.0),
    Scenario("grandchildren, hang", _one("grandchildren", "ok", then="hang"), ("hang", "ok")),
    Scenario("grandchildren, abort", _one("grandchildren", "ok", then="abort"), ("error", "ok")),
    Scenario("zombies", _named("zombies", "ok"), ("ok", "ok"), "", LIMIT_S, 10.0),
    Scenario("disk full", _named("disk_full", "ok"), ("not-run", "ok"), "No space left"),
    Scenario("crash at start", _named("ok", "ok"), ("not-run",) * 2, "SIGABRT", start="abort"),
    Scenario("exit at start", _named("ok"), ("not-run",), "exit code 3", start="exit"),
    Scenario("hang at start", _named("ok"), ("not-run",), "not ready", 1.0, None, "hang"),
    Scenario("garbage at start", _named("ok"), ("ok",), start="garbage"),
)  # fmt: skip


def settle(mark: str, seconds: float = 0.0) -> None:
    """Nothing that carries the mark is alive `seconds` after, and no zombie is ours."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"processes left: {left}"
    assert not zombies(), f"zombies left: {zombies()}"


def play(scenario: Scenario) -> list[Outcome]:
    """Runs it and checks verdicts, time and what is left; AssertionError says what was wrong.

    The environment variable MARK has to be set: children inherit it and are found by it.
    """
    mark = f"{MARK}={os.environ[MARK]}"
    with bounded(scenario.limit_s):
        outcomes = fake_probe(
            scenario.build(), scenario.limit_s, scenario.start, case_limit_s=scenario.case_limit_s
        )
    settle(mark)
    found = tuple(outcome.verdict for outcome in outcomes)
    details = [outcome.detail for outcome in outcomes]
    assert found == scenario.verdicts, f"{scenario.name}: {found}, {details}"
    first = next((text for text in details if text), "")
    assert scenario.needle in first, f"{scenario.name}: {scenario.needle!r} is not in {details}"
    return outcomes
