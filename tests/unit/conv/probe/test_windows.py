"""The Job Object of a probe's child on Windows, against a double."""

from __future__ import annotations

from typing import Any

import pytest

from hy3d_rocm.conv.probe import process


class Kernel32:
    """Notes the calls; `failing` returns 0 as Windows does for a failure."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(
                (name, tuple(getattr(one, "raw", getattr(one, "value", one)) for one in args))
            )
            return 0 if name == self.failing else 77

        return call


def test_the_job_kills_when_its_handle_closes() -> None:
    double = Kernel32()
    job = process.Job(double)
    job.add(5)
    job.kill()
    job.close()
    job.close()
    assert [name for name, _ in double.calls] == [
        "CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject",
        "TerminateJobObject", "CloseHandle",
    ]  # fmt: skip
    handle, kind, limits, size = double.calls[1][1]
    assert (handle, kind, size) == (77, 9, 144)
    # JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows: LimitFlags, by winnt.h.
    assert limits[:16] == b"\0" * 16
    assert limits[16:20] == (0x2400).to_bytes(4, "little")
    assert double.calls[2][1] == (77, 5)


@pytest.mark.parametrize("failing", ["CreateJobObjectW", "SetInformationJobObject"])
def test_without_a_job_no_child_is_started(failing: str) -> None:
    double = Kernel32(failing)
    with pytest.raises(OSError, match=failing.removesuffix("W")):
        process.Job(double)
    closed = [name for name, _ in double.calls].count("CloseHandle")
    assert closed == (failing != "CreateJobObjectW")
