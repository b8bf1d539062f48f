"""Faults of a disk in a child: a call that fails, a kill between two calls, a file that is cut."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import resource
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ERRORS = ("ENOSPC", "EIO", "EROFS", "EACCES")
KINDS = (*ERRORS, "kill", "kill by the clock", "cut")
_CALLS = {
    "open", "write", "writelines", "flush", "truncate", "fsync", "fdatasync", "replace", "rename",
    "mkdir", "unlink", "remove", "rmdir", "posix_fallocate", "chmod", "chown", "link",
    "execute", "executemany", "executescript", "commit",
}  # fmt: skip
_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_SQLITE = {"ENOSPC": (13, "database or disk is full"), "EIO": (10, "disk I/O error"),
           "EROFS": (8, "attempt to write a readonly database"),
           "EACCES": (14, "unable to open database file")}  # fmt: skip
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Fault:
    """kind: of KINDS, or "" for none. at: the number of the call that fails, or before which the
    child is killed; the share of its time after which it is; the bytes that a file may have."""

    kind: str = ""
    at: float = 0


@dataclass(frozen=True)
class Outcome:
    """how: "done", "raised", "killed". error: the classes of what was raised, by name. calls: of
    the disk, as far as it came. said: what was logged."""

    how: str
    error: tuple[str, ...] = ()
    text: str = ""
    calls: int = 0
    said: str = ""
    seconds: float = 0.0


class _Calls:
    """Counts the calls that change a disk, in all threads, and lets one of them fail: as a profile
    function, which the interpreter asks before each function that is written in C."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or getattr(called, "__name__", "") not in _CALLS:
            return
        owner = getattr(called, "__self__", None)
        if not _is_of_disk(owner):
            return
        with self._lock:
            number = self.seen
            self.seen += 1
        if number != self.fault.at:
            return
        if self.fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind in ERRORS:
            raise _error(self.fault.kind, isinstance(owner, (sqlite3.Connection, sqlite3.Cursor)))


def _is_of_disk(owner: Any) -> bool:
    if isinstance(owner, type(os)):  # a function of a module: open() of io, fsync() of posix
        return owner.__name__ in ("posix", "nt", "io", "_io", "builtins", "sqlite3", "_sqlite3")
    if isinstance(owner, (sqlite3.Connection, sqlite3.Cursor)):
        return True
    try:
        return isinstance(owner, _FILES) and owner.fileno() > 2
    except (OSError, ValueError):  # closed
        return False


def _error(name: str, is_sqlite: bool) -> Exception:
    if not is_sqlite:
        code = getattr(errno, name)
        return OSError(code, os.strerror(code))
    code, text = _SQLITE[name]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def run_in_child(work: Callable[[], object], fault: Fault, log: Path) -> Outcome:
    """`work` in a forked child that meets the fault."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _child(work, fault, log)
        finally:
            os._exit(71)
    if fault.kind == "kill by the clock":
        time.sleep(fault.at)
        os.kill(child, signal.SIGKILL)
    status = _wait(child)
    seconds = time.monotonic() - began
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL or not fault.kind.startswith("kill"):
            raise AssertionError(f"the child died of signal {number}: {log.read_text()[-2000:]}")
        return Outcome("killed", seconds=seconds)
    if os.WEXITSTATUS(status) != 0:
        raise AssertionError(f"the child broke: {log.read_text()[-2000:]}")
    known = json.loads(log.with_suffix(".json").read_text())
    known["error"] = tuple(known["error"])
    return Outcome(**known, seconds=seconds)


def _wait(child: int) -> int:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("it hung")


def _child(work: Callable[[], object], fault: Fault, log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    said = io.StringIO()
    logging.getLogger("hy3d_rocm").addHandler(logging.StreamHandler(said))
    calls = _Calls(fault)
    how, error, text, trace = "done", [], "", ""
    if fault.kind == "cut":
        # Where a file grows beyond it, a write gives what fits and then EFBIG: as a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault.at), resource.RLIM_INFINITY))
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        work()
    except Exception as raised:  # noqa: BLE001  whatever it is, it is judged by the parent
        how, text = "raised", str(raised)
        error = [one.__name__ for one in type(raised).__mro__]
        trace = traceback.format_exc()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    sys.stderr.write(trace)
    log.with_suffix(".json").write_text(
        json.dumps({"how": how, "error": error, "text": text, "calls": calls.seen,
                    "said": said.getvalue()})
    )  # fmt: skip
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
