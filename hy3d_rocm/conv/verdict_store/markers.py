"""In-flight markers: first calls that may take the process, or the machine, with them.

A marker is a row of the table `trying`, on the disk before the call and gone after it. One whose
process has ended becomes the verdict "hang". Process numbers are given again, so a process is known
by its number and its start time, within one boot and one numbering (container).
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from hy3d_rocm.conv.verdict_store.records import Key, Record, clock_text

_log = logging.getLogger("hy3d_rocm")

PROC = Path("/proc")
# A first call takes seconds, a find step minutes. What another container began longer ago and has
# not finished has hung, whether or not that container still runs.
_LONG_AGO_S = 600.0
_LINES = 5


class Process(NamedTuple):
    """start: clock ticks since the boot on Linux, else Unix time; boot: the kernel's id of this
    boot; numbering: the process-number namespace, so the container. "" where unknown."""

    pid: int
    start: str
    boot: str
    numbering: str


class Marker(NamedTuple):
    """A first call of `tier` at `key` that has not come back yet. `when`: Unix time."""

    token: str
    key: Key
    tier: str
    when: float
    process: Process

    def verdict(self) -> Record:
        """Of one whose process has ended."""
        detail = (
            f"process {self.process.pid} ended during its first call here, at"
            f" {clock_text(self.when)}: a driver reset, a crash, or somebody ended it"
        )
        return Record(self.tier, "hang", detail=detail, when=self.when).bounded()


def write_marker(connection: sqlite3.Connection, marker: Marker) -> None:
    values = (marker.token, *marker.key, marker.tier, marker.when, *marker.process)
    connection.execute(f"INSERT INTO trying VALUES ({', '.join('?' * len(values))})", values)


def clear_marker(connection: sqlite3.Connection, token: str) -> bool:
    """Whether it was there."""
    return bool(connection.execute("DELETE FROM trying WHERE token = ?", (token,)).rowcount)


def read_markers(connection: sqlite3.Connection) -> list[Marker]:
    """The oldest first."""
    count = len(Key._fields)
    return [
        Marker(token, Key(*rest[:count]), rest[count], rest[count + 1], Process(*rest[-4:]))
        for token, *rest in connection.execute('SELECT * FROM trying ORDER BY "when"')
    ]


def take_dead(connection: sqlite3.Connection) -> tuple[list[Marker], bool]:
    """Clears the markers of dead processes, with a line in the log for each. Whether there are
    others of processes that can't be asked for: later, perhaps."""
    me, now = this_process(), time.time()
    is_unclear = False
    found: list[Marker] = []
    for marker in read_markers(connection):
        gone = is_gone(marker.process, me)
        if gone is None:
            gone = now - marker.when > _LONG_AGO_S
            is_unclear |= not gone
        if gone and clear_marker(connection, marker.token):  # else another process has concluded it
            found.append(marker)
    for marker in found[:_LINES]:
        _log.warning(
            "%s %s, %s: the process that first tried %s for it, at %s, ended during the call;"
            " it is not tried there again (hy3d-rocm db forget --shape ... lets it)",
            marker.key.op, marker.key.shape, marker.key.dtype, marker.tier,
            clock_text(marker.when),
        )  # fmt: skip
    if len(found) > _LINES:
        left = len(found) - _LINES
        _log.warning("and %d more such shapes: hy3d-rocm db list --verdict hang", left)
    return found, is_unclear


def this_process() -> Process:
    """Not cached without its number: after a fork it is another one."""
    return _process(os.getpid())


@functools.lru_cache(maxsize=2)
def _process(pid: int) -> Process:
    try:
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        boot = ""
    try:
        numbering = os.readlink(PROC / "self" / "ns" / "pid")
    except OSError:
        numbering = ""
    return Process(pid, start_time(pid) or "", boot, numbering)


def is_gone(other: Process, me: Process) -> bool | None:
    """Whether that process has ended; None where it can't be told from here (another container
    of this boot, or no way to ask for a process's start time)."""
    if other.boot != me.boot:
        return True
    if other.numbering != me.numbering or not other.start:
        return None
    now = start_time(other.pid)
    return None if now == "" else now != other.start


def start_time(pid: int, proc: Path = PROC) -> str | None:
    """When process `pid` started, None if there is none (one that ended and was not reaped is
    none), "" if that can't be found out."""
    if not (proc / "self" / "stat").exists():
        return _start_by_psutil(pid)
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""
    # The name, in brackets, may hold spaces and brackets: fields are counted from the last one.
    fields = text.rpartition(")")[2].split()
    if not fields or fields[0] in ("Z", "X"):
        return None
    return fields[19] if len(fields) > 19 else ""


def _start_by_psutil(pid: int) -> str | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return ""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return ""
