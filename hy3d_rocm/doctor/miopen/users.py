"""Which processes have MIOpen loaded, or a file of its folders open (Linux, same user)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class User:
    """A process that uses MIOpen's files. why: what was seen of it."""

    pid: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}, {self.why})"


def can_be_told() -> bool:
    return sys.platform == "linux"


def users_of(folders: Iterable[Path], proc: Path = PROC, own: int | None = None) -> list[User]:
    """Processes other than `own` (this one). Those that may not be looked at are not in it."""
    roots = [os.path.realpath(folder) for folder in folders]
    own = os.getpid() if own is None else own
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return []
    users = []
    for pid in pids:
        why = "" if pid == own else _why(proc / str(pid), roots)
        if why:
            users.append(User(pid, name_of(proc / str(pid)), why))
    return users


def name_of(process: Path) -> str:
    """The program and, for an interpreter, its script: "python main.py"."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    shown = [os.path.basename(word) for word in words[:1] + _scripts(words[1:])]
    text = " ".join(filter(None, shown))
    return "".join(c if c.isprintable() else "?" for c in text)[:80] or _short_name(process)


def _scripts(words: list[str]) -> list[str]:
    return [word for word in words if word.endswith((".py", "hy3d-rocm"))][:1]


def _short_name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _why(process: Path, roots: list[str]) -> str:
    open_file = _open_file(process / "fd", roots)
    if open_file:
        return f"has {os.path.basename(open_file)} open"
    try:
        with open(process / "maps", "rb") as maps:
            if any(b"libMIOpen" in line or b"MIOpen.dll" in line for line in maps):
                return "has MIOpen loaded"
    except OSError:
        pass
    return ""


def _open_file(descriptors: Path, roots: list[str]) -> str:
    try:
        names = os.listdir(descriptors)
    except OSError:
        return ""
    for name in names:
        try:
            target = os.readlink(descriptors / name)
        except OSError:
            continue
        if any(target.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
            return target
    return ""
