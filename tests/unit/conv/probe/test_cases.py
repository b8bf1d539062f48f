"""The probe's decisions, without a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from hy3d_rocm.conv import faults
from hy3d_rocm.conv.probe import parent as cases
from hy3d_rocm.conv.probe.parent import probe

OUT_OF_MEMORY = {"hip_oom", "cuda_oom", "cpu_oom", "block_allocator"}
LOST = {"illegal_access", "device_assert"}


def test_retries_grow_and_end() -> None:
    limits = [15.0]
    while (longer := cases.next_limit(limits[-1])) is not None:
        limits.append(longer)
    assert limits == [15.0, 60.0, 240.0, 600.0]
    with pytest.raises(ValueError, match="no time"):
        cases.next_limit(0.0)


@given(
    total=st.floats(0.1, 1e4), slow=st.floats(0.01, 10.0),
    hangs=st.lists(st.booleans(), min_size=1, max_size=80),
)  # fmt: skip
def test_hangs_never_take_more_than_the_total_nor_the_time_of_those_behind(
    total: float, slow: float, hangs: list[bool]
) -> None:
    remaining, count = total, len(hangs)
    for index, hung in enumerate(hangs):
        granted = cases.case_limit(remaining, count - index, total, count, slow)
        assert 0 < granted <= remaining
        # Either there is enough to tell slow from hung, or it is all there is.
        assert granted >= min(slow, remaining) or granted == remaining
        if hung:
            remaining -= granted
        if remaining <= 0:
            return
    if slow <= total / count and not any(hangs[:-1]):
        assert cases.case_limit(remaining, 1, total, count, slow) <= max(total / count, 5 * slow)


def test_with_time_enough_every_case_gets_its_turn_though_all_hang() -> None:
    remaining, ran = 100.0, 0
    for index in range(40):
        granted = cases.case_limit(remaining, 40 - index, 100.0, 40, 2.0)
        assert granted >= 2.0
        remaining -= granted
        ran += 1
    assert ran == 40
    assert remaining == pytest.approx(0.0, abs=1e-9)


def test_a_shape_that_is_always_slow_is_ok_and_one_slow_at_first_is_a_slow_find() -> None:
    assert cases.timed_verdict(5.0, 5.0, 2.0) == "ok"
    assert cases.timed_verdict(5.0, 0.1, 2.0) == "slow-find"
    assert cases.timed_verdict(1.9, 0.1, 2.0) == "ok"


def test_what_did_not_come_back_in_time_is_a_hang_unless_the_first_call_came_late() -> None:
    assert cases.late_verdict(None, 10.0, 2.0)[0] == "hang"
    assert cases.late_verdict(6.0, 10.0, 2.0)[0] == "slow-find"
    assert cases.late_verdict(0.1, 10.0, 2.0)[0] == "hang"


@pytest.mark.parametrize("key", faults.TEXTS)
def test_real_texts_become_the_right_verdict(key: str) -> None:
    verdict, detail, is_sound = cases.exception_verdict(RuntimeError(faults.TEXTS[key]))
    assert verdict == ("oom" if key in OUT_OF_MEMORY else "error")
    assert is_sound is (key not in LOST)
    assert faults.TEXTS[key][:60] in detail


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"), OSError(30, "Read-only file system"),
        OSError(13, "Permission denied"), RuntimeError("database or disk is full"),
    ],
)  # fmt: skip
def test_a_fault_of_the_machine_is_no_verdict(error: Exception) -> None:
    assert cases.exception_verdict(error)[0] == "not-run"
    assert cases.end_verdict(-6, [str(error)], False)[0] == "not-run"


POSIX = pytest.mark.skipif(os.name == "nt", reason="no signal ends a process there")


@pytest.mark.parametrize(
    ("code", "lines", "oom_killed", "verdict", "needle"),
    [
        pytest.param(-6, [], False, "error", "SIGABRT", marks=POSIX),
        (-11, ["", "something", ""], False, "error", "something (the child ended by SIGSEGV)"),
        (-6, [faults.BLOCK_ALLOCATOR, "Aborted"], False, "oom", "BlockAllocator"),
        (-6, ["MIOpen Error: a.cpp: bad", "later"], False, "error", "MIOpen Error: a.cpp"),
        pytest.param(-9, ["later"], False, "not-run", "outside", marks=POSIX),
        pytest.param(-9, [], True, "oom", "SIGKILL", marks=POSIX),
        (-15, [], False, "not-run", "SIGTERM"),
        (-250, [], False, "error", "signal 250"),
        (0xC0000005, [], False, "error", "0xc0000005"),
        (3, [], False, "error", "exit code 3"),
        (None, [], False, "error", "not known how"),
    ],
)
def test_the_end_of_a_child_is_read_from_its_code_and_its_last_words(
    code: int | None, lines: list[str], oom_killed: bool, verdict: str, needle: str
) -> None:
    found, detail = cases.end_verdict(code, lines, oom_killed)
    assert found == verdict
    assert needle in detail


@pytest.mark.parametrize("name", ["limit_s", "slow_s", "case_limit_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_with_its_name(name: str, value: float) -> None:
    options: dict[str, Any] = {"limit_s": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name}=.*give seconds"):
        probe([], **options)


def test_neither_parent_nor_child_needs_torch_to_be_imported() -> None:
    code = (
        "import sys; import hy3d_rocm.conv.probe.parent, hy3d_rocm.conv.probe.child;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
