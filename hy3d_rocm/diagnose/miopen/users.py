"""Which processes have MIOpen loaded, or a file of its folders open (Linux, same user)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hy3d_rocm.diagnose.env.gpu import entries, text

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
    others = [pid for pid in pids(proc) if pid != own]
    why = {pid: _why(proc / str(pid), roots) for pid in others}
    return [User(pid, name_of(proc / str(pid)), why[pid]) for pid in others if why[pid]]


def pids(proc: Path = PROC) -> list[int]:
    """Of all processes, the lowest first."""
    return sorted(int(path.name) for path in entries(proc) if path.name.isdigit())


def open_files(process: Path) -> Iterator[tuple[str, str]]:
    """The descriptors of a process, and what each leads to."""
    for descriptor in entries(process / "fd"):
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        yield descriptor.name, target


def name_of(process: Path) -> str:
    """The program and, for an interpreter, its script: "python main.py"."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    scripts = [word for word in words[1:] if word.endswith((".py", "hy3d-rocm"))]
    shown = (os.path.basename(word) for word in words[:1] + scripts[:1])
    name = "".join(c if c.isprintable() else "?" for c in " ".join(filter(None, shown)))
    return name[:80] or text(process / "comm") or "?"


def _why(process: Path, roots: list[str]) -> str:
    inside = tuple(root.rstrip(os.sep) + os.sep for root in roots)
    for _, target in open_files(process):
        if target.startswith(inside):
            return f"has {os.path.basename(target)} open"
    try:
        with open(process / "maps", "rb") as maps:
            if any(b"libMIOpen" in line or b"MIOpen.dll" in line for line in maps):
                return "has MIOpen loaded"
    except OSError:
        pass
    return ""
