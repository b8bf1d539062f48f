"""Folders: a base directory for one ComfyUI run, copies of packs, snapshots of what is on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDERS = (
    "custom_nodes", "input", "output", "user/default", "web", "home", "tmp", "signals", "models",
)  # fmt: skip
NOT_IN_A_COPY = (".git", "build", "dist", "demo_out", "tests", "*.egg-info", "__pycache__", ".*")
NATIVE = ("_core*.so", "_vendor")
Snapshot = dict[str, tuple[int, int]]


def make_base(base: Path, packs: Mapping[str, Path], models: Iterable[Path]) -> Path:
    """An empty base directory with the given packs and models as links; `base` must be new.

    models: folders of folders of models, as in ComfyUI's models/; one kind may be in several.
    """
    for folder in FOLDERS:
        (base / folder).mkdir(parents=True)
    (base / "web/index.html").touch()  # there is no front end to serve
    for place in models:
        for model in sorted(place.glob("*/*")):
            link = base / "models" / model.relative_to(place)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(model)
    for name, source in packs.items():
        (base / "custom_nodes" / name).symlink_to(source)
    return base


def copy_pack(source: Path, target: Path, without: Iterable[str] = ()) -> Path:
    """A copy of a pack as a user has it: no history, no tests; `without` names more patterns."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*NOT_IN_A_COPY, *without))
    return target


def replace_in(file: Path, old: str, new: str) -> int:
    """Replaces every `old` in a text file; how many there were."""
    text = file.read_text()
    file.write_text(text.replace(old, new))
    return text.count(old)


def name_listed(folder: Path, other: str, first: bool, candidates: Iterable[str]) -> str:
    """The candidate that os.listdir names before (or after) `other` in `folder`.

    ComfyUI loads packs in that order, which is the file system's, not the alphabet's.
    """
    for name in candidates:
        (folder / name).touch()
        listing = os.listdir(folder)
        (folder / name).unlink()
        if (listing.index(name) < listing.index(other)) == first:
            return name
    raise RuntimeError(f"no candidate is listed {'before' if first else 'after'} {other}")


def snapshot(folder: Path) -> Snapshot:
    """Size and time of change of each file below `folder`, links not followed."""
    found = {}
    for at, _folders, files in os.walk(folder):
        for name in files:
            path = Path(at, name)
            status = path.lstat()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found


def new_files(before: Snapshot, after: Snapshot) -> list[str]:
    return sorted(set(after) - set(before))
