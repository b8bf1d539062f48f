"""The Job Object of a probe's child on Windows, against a double."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hy3d_rocm.conv.probe import windows


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
