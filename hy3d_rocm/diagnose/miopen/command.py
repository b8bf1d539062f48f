"""`hy3d-rocm miopen info|backup|restore|clear`; and who uses the files (Linux, same user)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hy3d_rocm.diagnose.doctor.examination import lines_of
from hy3d_rocm.diagnose.doctor.finding import Facts
from hy3d_rocm.diagnose.env.gpu import PROC, name_of, open_files, pids
from hy3d_rocm.diagnose.miopen import backup, places
from hy3d_rocm.diagnose.miopen.backup import ArchiveError, default_target, write_backup
from hy3d_rocm.diagnose.miopen.places import Place
from hy3d_rocm.units import size_text

_INDENTS = {"place": "", "content": "  ", "file": "    "}


@dataclass(frozen=True)
class User:
    """A process that uses MIOpen's files. why: what was seen of it."""

    pid: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}, {self.why})"


def run_miopen_command(arguments: argparse.Namespace) -> int:
    """The exit code; ArchiveError."""
    action = {"info": _info, "backup": _backup, "restore": _restore, "clear": _clear}
    return action[arguments.miopen](arguments, places.places())


def _info(arguments: argparse.Namespace, found: list[Place]) -> int:
    facts = places.collect()
    using = users_of(place.path for place in found)
    if arguments.json:
        _print(json.dumps({**facts, "users": list(map(asdict, using))}, indent=2))
        return 0
    for place in facts["places"]:
        _print("\n".join(_place_lines(place)))
    open_ones = sum(bool(file["in_use"]) for place in facts["places"] for file in place["files"])
    without = f", without those of {open_ones} open databases" if open_ones else ""
    _print(f"find results for {facts['find_entries']} convolutions, "
           f"{facts['compiled_entries']} compiled kernels{without}")  # fmt: skip
    if sys.platform != "linux":
        _print("which programs use these files can't be told on this system")
    else:
        _print("in use by " + (", ".join(map(str, using)) or "no program of yours"))
    return 0


def _place_lines(facts: dict[str, Any]) -> list[str]:
    sizes = [{"version": version, "bytes": size} for version, size in facts["versions"].items()]
    files = [{**file, "sides": " ".join(file["in_use"])} for file in facts["files"]]
    seen = Facts(facts, {"sizes": sizes, "files": files, "blank": " "})
    lines = lines_of(Path(__file__).with_name("lines.toml"))
    return [_INDENTS[line.section] + text for line in lines for text in line.of(seen)]


def _backup(arguments: argparse.Namespace, found: list[Place]) -> int:
    _tell_users(found, "may be changing them: the backup holds what was on the disk")
    made = write_backup(found, arguments.out or default_target(os.environ))
    _print(f"{len(made.files)} files, {size_text(made.bytes)}, are in {made.path}")
    return 0


def _restore(arguments: argparse.Namespace, found: list[Place]) -> int:
    done = _changed(arguments, found, lambda target: backup.restore(arguments.file, found, target))
    _print(f"{done.count} files, {size_text(done.bytes)}, were put back")
    return 0


def _clear(arguments: argparse.Namespace, found: list[Place]) -> int:
    done = _changed(arguments, found, lambda target: backup.clear(found, target))
    if done.backup is None:
        _print("There is nothing to clear: MIOpen has no files here.")
        return 0
    _print(f"{done.count} files, {size_text(done.bytes)}, were deleted")
    for path, why in done.left:
        sys.stderr.write(f"hy3d-rocm miopen: {path} stays: {why}\n")
    return 1 if done.left else 0


def _tell_users(found: list[Place], what: str) -> list[User]:
    using = users_of(place.path for place in found)
    for user in using:
        sys.stderr.write(f"hy3d-rocm miopen: {user} {what}\n")
    if sys.platform != "linux":
        sys.stderr.write("hy3d-rocm miopen: close ComfyUI first: which programs use these files "
                         "can't be told on this system\n")  # fmt: skip
    return using


def _changed(
    arguments: argparse.Namespace,
    found: list[Place],
    change: Callable[[Callable[[], Path]], backup.Done],
) -> backup.Done:
    """What `change` did, given where a backup goes; not while a program uses the files."""
    if _tell_users(found, "uses these files") and not arguments.force:
        raise ArchiveError("close it first, or add --force; nothing was changed")
    done = change(lambda: arguments.backup or default_target(os.environ))
    if done.backup is not None:
        count = len(done.backup.files)
        _print(f"what was there ({count} files) is in {done.backup.path}")
    return done


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def users_of(folders: Iterable[Path], proc: Path = PROC, own: int | None = None) -> list[User]:
    """Processes other than `own` (this one). Those that may not be looked at are not in it."""
    roots = [os.path.realpath(folder) for folder in folders]
    own = os.getpid() if own is None else own
    others = [pid for pid in pids(proc) if pid != own]
    why = {pid: _why(proc / str(pid), roots) for pid in others}
    return [User(pid, name_of(proc / str(pid)), why[pid]) for pid in others if why[pid]]


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
