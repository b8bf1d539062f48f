"""Which process wrote a row, and whether it still runs. Numbers are given again: a process is
known by its number and its start time, within one boot and one numbering (container)."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Identity(NamedTuple):
    """start: clock ticks since the boot on Linux, else Unix time; boot: the kernel's id of this
    boot; numbering: the process-number namespace, so the container. "" where unknown."""

    pid: int
    start: str
    boot: str
    numbering: str


def myself() -> Identity:
    """This process. Not cached by number alone: after a fork it is another one."""
    return _identity(os.getpid())


@functools.lru_cache(maxsize=2)
def _identity(pid: int) -> Identity:
    return Identity(pid, start_time(pid) or "", boot_id(), numbering())


def is_gone(other: Identity, me: Identity | None = None) -> bool | None:
    """Whether that process has ended; None where it can't be told from here (another container
    of this boot, or no way to ask for a process's start time)."""
    me = me or myself()
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


def boot_id(proc: Path = PROC) -> str:
    try:
        return (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def numbering(proc: Path = PROC) -> str:
    try:
        return os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        return ""
