"""The probe's decisions, pipes and start, without a child process."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from probe_doubles import case

from hy3d_rocm.conv import faults
from hy3d_rocm.conv.probe import judge, launch, windows
from hy3d_rocm.conv.probe.parent import probe, ready
from hy3d_rocm.conv.probe.pipes import Messages, Tail

OUT_OF_MEMORY = {"hip_oom", "cuda_oom", "cpu_oom", "block_allocator"}
LOST = {"illegal_access", "device_assert"}


def test_retries_grow_and_end() -> None:
    limits = [15.0]
    while (longer := judge.next_limit(limits[-1])) is not None:
        limits.append(longer)
    assert limits == [15.0, 60.0, 240.0, 600.0]
    with pytest.raises(ValueError, match="no time"):
        judge.next_limit(0.0)


@given(
    total=st.floats(0.1, 1e4), slow=st.floats(0.01, 10.0),
    hangs=st.lists(st.booleans(), min_size=1, max_size=80),
)  # fmt: skip
def test_hangs_never_take_more_than_the_total_nor_the_time_of_those_behind(
    total: float, slow: float, hangs: list[bool]
) -> None:
    remaining, count = total, len(hangs)
    for index, hung in enumerate(hangs):
        granted = judge.case_limit(remaining, count - index, total, count, slow)
        assert 0 < granted <= remaining
        # Either there is enough to tell slow from hung, or it is all there is.
        assert granted >= min(slow, remaining) or granted == remaining
        if hung:
            remaining -= granted
        if remaining <= 0:
            return
    if slow <= total / count and not any(hangs[:-1]):
        assert judge.case_limit(remaining, 1, total, count, slow) <= max(total / count, 5 * slow)


def test_with_time_enough_every_case_gets_its_turn_though_all_hang() -> None:
    remaining, ran = 100.0, 0
    for index in range(40):
        granted = judge.case_limit(remaining, 40 - index, 100.0, 40, 2.0)
        assert granted >= 2.0
        remaining -= granted
        ran += 1
    assert ran == 40
    assert remaining == pytest.approx(0.0, abs=1e-9)


def test_a_shape_that_is_always_slow_is_ok_and_one_slow_at_first_is_a_slow_find() -> None:
    assert judge.timed_verdict(5.0, 5.0, 2.0) == "ok"
    assert judge.timed_verdict(5.0, 0.1, 2.0) == "slow-find"
    assert judge.timed_verdict(1.9, 0.1, 2.0) == "ok"


def test_what_did_not_come_back_in_time_is_a_hang_unless_the_first_call_came_late() -> None:
    assert judge.late_verdict(None, 10.0, 2.0)[0] == "hang"
    assert judge.late_verdict(6.0, 10.0, 2.0)[0] == "slow-find"
    assert judge.late_verdict(0.1, 10.0, 2.0)[0] == "hang"


@pytest.mark.parametrize("key", faults.TEXTS)
def test_real_texts_become_the_right_verdict(key: str) -> None:
    verdict, detail, is_sound = judge.exception_verdict(RuntimeError(faults.TEXTS[key]))
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
    assert judge.exception_verdict(error)[0] == "not-run"
    assert judge.end_verdict(-6, [str(error)], False)[0] == "not-run"


@pytest.mark.parametrize(
    ("code", "lines", "oom_killed", "verdict", "needle"),
    [
        (-6, [], False, "error", "SIGABRT"),
        (-11, ["", "something", ""], False, "error", "something (the child ended by SIGSEGV)"),
        (-6, [faults.BLOCK_ALLOCATOR, "Aborted"], False, "oom", "BlockAllocator"),
        (-6, ["MIOpen Error: a.cpp: bad", "later"], False, "error", "MIOpen Error: a.cpp"),
        (-9, ["later"], False, "not-run", "outside"),
        (-9, [], True, "oom", "SIGKILL"),
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
    found, detail = judge.end_verdict(code, lines, oom_killed)
    assert found == verdict
    assert needle in detail


@pytest.mark.parametrize("name", ["limit_s", "slow_s", "case_limit_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_with_its_name(name: str, value: float) -> None:
    options: dict[str, Any] = {"limit_s": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name}=.*give seconds"):
        probe([], **options)


@given(seed=st.integers(0, 2**32))
def test_messages_are_found_among_any_garbage_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    sent, data = 0, b""
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.5:
            data += b'\nn0nce {"case": %d}\n' % sent
            sent += 1
        else:
            length = rng.choice((1, 20, 16383, 16384, 16385, 70000))
            data += rng.choice((b"\n", b"\xff", b"n0nce {", b"other {}\n")) * length
    messages, found = Messages("n0nce"), []
    while data:
        size = rng.choice((1, 7, 4096, 65536)) if len(data) < 5000 else rng.choice((4096, 65536))
        messages.feed(data[:size])
        data = data[size:]
        found += messages.take()
        assert len(messages._rest) <= 16384
    assert [message["case"] for message in found] == list(range(sent))


def test_of_stderr_only_the_end_is_kept() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"noise\n" * 5000)
    tail.feed("last: ä\n".encode())
    assert tail.lines()[-1] == "last: ä"
    assert len(tail._data) <= 65536


@pytest.mark.parametrize(
    ("attributes", "needle"),
    [
        ({"executable": None}, "embedded"),
        ({"executable": ""}, "embedded"),
        ({"executable": "/opt/blender/blender"}, "not named like a Python"),
        ({"executable": "/nowhere/python3"}, "does not exist"),
        ({"frozen": True}, "frozen"),
    ],
)
def test_a_program_that_is_no_python_is_never_started_as_one(
    attributes: dict[str, Any], needle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in attributes.items():
        monkeypatch.setattr(sys, name, value, raising=False)
    path, why = launch.interpreter()
    assert path is None
    assert needle in why
    (outcome,) = probe([case("ok")], limit_s=1.0)
    assert (outcome.verdict, outcome.detail) == ("not-run", why)
    assert needle in ready().reason


@pytest.mark.parametrize(
    "name",
    ["python", "python3", "python3.12", "python3.13t", "Python.exe", "pythonw.exe", "python_d.exe"],
)
def test_the_usual_names_of_python_are_known(name: str) -> None:
    assert launch._PYTHON_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["comfyui.exe", "blender", "python-config", "uvicorn", "pytho"])
def test_other_programs_are_not_taken_for_python(name: str) -> None:
    assert not launch._PYTHON_NAME.fullmatch(name)


def test_the_search_path_is_absolute_and_of_strings() -> None:
    found = launch.search_path(["", "lib", "/abs", Path("/path"), 7])
    here = str(Path.cwd())
    assert found == [here, str(Path(here) / "lib"), "/abs"]


def test_the_environment_is_the_hosts_and_marked() -> None:
    found = launch.environment({"MIOPEN_FIND_MODE": "2", "HIP_VISIBLE_DEVICES": "1"})
    assert found == {"MIOPEN_FIND_MODE": "2", "HIP_VISIBLE_DEVICES": "1", launch.INSIDE: "1"}


def test_without_a_gpu_no_child_is_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not ready()
    assert "no GPU" in ready().reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert ready() == (True, "")


def test_neither_parent_nor_child_needs_torch_to_be_imported() -> None:
    code = (
        "import sys; import hy3d_rocm.conv.probe.parent, hy3d_rocm.conv.probe.worker;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


# JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows: sizes and offsets of winnt.h.
@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the offsets are those of 64 bits")
def test_the_jobs_structure_has_the_layout_of_windows() -> None:
    basic, extended = windows.BasicLimits, windows.ExtendedLimits
    assert ctypes.sizeof(basic) == 64
    assert ctypes.sizeof(extended) == 144
    assert basic.LimitFlags.offset == 16
    assert basic.MinimumWorkingSetSize.offset == 24
    assert basic.Affinity.offset == 48
    assert basic.SchedulingClass.offset == 60
    assert extended.IoInfo.offset == 64
    assert extended.ProcessMemoryLimit.offset == 112


class Kernel32:
    """Notes the calls; `failing` returns 0 as Windows does for a failure."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append((name, args))
            return 0 if name == self.failing else 77

        return call


def test_the_job_kills_when_its_handle_closes() -> None:
    double = Kernel32()
    job = windows.Job(double)
    job.add(5)
    job.kill()
    job.close()
    job.close()
    assert [name for name, _ in double.calls] == [
        "CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject",
        "TerminateJobObject", "CloseHandle",
    ]  # fmt: skip
    handle, kind, _, size = double.calls[1][1]
    assert (handle, kind, size) == (77, 9, 144)
    assert double.calls[2][1] == (77, 5)


@pytest.mark.parametrize("failing", ["CreateJobObjectW", "SetInformationJobObject"])
def test_without_a_job_no_child_is_started(failing: str) -> None:
    double = Kernel32(failing)
    with pytest.raises(OSError, match=failing.removesuffix("W")):
        windows.Job(double)
    closed = [name for name, _ in double.calls].count("CloseHandle")
    assert closed == (failing != "CreateJobObjectW")
