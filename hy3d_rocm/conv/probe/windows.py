"""A Job Object that ends its processes when its handle closes, so also when the host dies.

Written after the documentation of the Windows API; run under wine, not tried on Windows by its
authors (the layout of the structures and the order of the calls are tested against a double).
https://learn.microsoft.com/en-us/windows/win32/procthread/job-objects
"""

from __future__ import annotations

import ctypes
from typing import Any

_EXTENDED_LIMIT_INFORMATION = 9  # JobObjectExtendedLimitInformation
_KILL_ON_JOB_CLOSE = 0x00002000
_DIE_ON_UNHANDLED_EXCEPTION = 0x00000400  # no error dialogue that waits for a click
_EXIT_CODE = 1


# Sized types, not ctypes.wintypes: the layout is that of Windows on every machine.
class BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION; IoInfo is six 64-bit counters."""

    _fields_ = (
        ("BasicLimitInformation", BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


def load_kernel32() -> Any:
    """kernel32 with the signatures of what is called; a handle is a pointer's width."""
    library = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    handle, dword, bool_ = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    library.CreateJobObjectW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p]
    library.CreateJobObjectW.restype = handle
    library.SetInformationJobObject.argtypes = [handle, ctypes.c_int, ctypes.c_void_p, dword]
    library.SetInformationJobObject.restype = bool_
    library.AssignProcessToJobObject.argtypes = [handle, handle]
    library.AssignProcessToJobObject.restype = bool_
    library.TerminateJobObject.argtypes = [handle, ctypes.c_uint]
    library.TerminateJobObject.restype = bool_
    library.CloseHandle.argtypes = [handle]
    library.CloseHandle.restype = bool_
    return library


class Job:
    """One job for one child. OSError where Windows refuses: then no probe is made."""

    def __init__(self, kernel32: Any = None) -> None:
        self._kernel32 = load_kernel32() if kernel32 is None else kernel32
        self._handle = self._kernel32.CreateJobObjectW(None, None)
        if not self._handle:
            raise OSError("CreateJobObject failed")
        limits = ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE | _DIE_ON_UNHANDLED_EXCEPTION
        done = self._kernel32.SetInformationJobObject(
            self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        if not done:
            self.close()
            raise OSError("SetInformationJobObject failed")

    def add(self, process_handle: int) -> None:
        """Before the child has been told anything, so before it can start processes."""
        if not self._kernel32.AssignProcessToJobObject(self._handle, process_handle):
            raise OSError("AssignProcessToJobObject failed")

    def kill(self) -> None:
        if self._handle:
            self._kernel32.TerminateJobObject(self._handle, _EXIT_CODE)

    def close(self) -> None:
        """Also ends what is still in the job."""
        handle, self._handle = self._handle, None
        if handle:
            self._kernel32.CloseHandle(handle)
