"""Clearing and restoring MIOpen's files: a backup first, so that nothing is lost at any moment."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hy3d_rocm.diagnose.miopen.archive import (
    BROKEN,
    PREFIX,
    Archive,
    ArchiveError,
    Backup,
    Hashed,
    Saved,
    open_archive,
    read_backup,
    write_backup,
)
from hy3d_rocm.diagnose.miopen.places import Place, existing, files_of, is_database, side_files
from hy3d_rocm.files import beside, patiently, settle
from hy3d_rocm.units import size_text


@dataclass
class Done:
    """What was changed. backup: None where nothing was there. left: (path, why) not changed."""

    backup: Backup | None
    count: int = 0
    bytes: int = 0
    left: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, saved: Saved) -> None:
        self.count, self.bytes = self.count + 1, self.bytes + saved.size


def save_first(places: list[Place], target: Callable[[], Path]) -> Backup | None:
    """A backup of what is there, None where nothing is. ArchiveError where it can't be made."""
    try:
        is_empty = all(next(files_of(place), None) is None for place in places)
    except OSError as error:
        raise ArchiveError(f"{error}; nothing was changed") from error
    return None if is_empty else write_backup(places, target())


def clear(places: list[Place], target: Callable[[], Path]) -> Done:
    """Deletes MIOpen's files once they are all in a backup; ArchiveError: nothing was deleted.

    Only what is in the backup as it is now goes: a file that was made or changed since stays.
    """
    done = Done(save_first(places, target))
    files = done.backup.files if done.backup else {}
    for path, saved in files.items():
        try:
            if _is_as_saved(path, saved):
                patiently(path.unlink)
                done.add(saved)
            else:
                done.left.append((path, "was written to meanwhile"))
        except FileNotFoundError:
            continue
        except OSError as error:
            done.left.append((path, error.strerror or str(error)))
    # Folders that held files of the backup go where they are empty; the places themselves stay.
    roots = {place.path for place in places}
    folders = {
        f for path in files for f in path.parents if any(root in f.parents for root in roots)
    }
    for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
        with contextlib.suppress(OSError):  # not empty: somebody else's
            folder.rmdir()
    return done


def restore(archive: Path, places: list[Place], target: Callable[[], Path]) -> Done:
    """Puts a backup's files back; those of now that are overwritten are in a backup before.

    All of the archive is read and checked before the first file is written, each file is written
    beside its place and renamed. Files that are not in the archive stay. ArchiveError: nothing
    was changed, or the sentence says what was.
    """
    wanted = read_backup(archive)
    goals = _goals(wanted, places, archive)
    _check_room(wanted, places)
    done = Done(save_first(places, target))
    try:
        with open_archive(archive) as opened:
            old = {goal: _stat_of(goal) for goal in goals.values()}
            _clear_way(goals, done.backup)
            # A database comes after its side files: one without them is never seen half restored.
            for saved in sorted(wanted, key=lambda saved: is_database(saved.name)):
                goal = goals[saved.name]
                _put_back(opened, saved, goal, old[goal])
                done.add(saved)
    except BROKEN as error:
        before = f"what was there before is in {done.backup.path}" if done.backup else \
            "nothing was there before"  # fmt: skip
        raise ArchiveError(
            f"{done.count} of {len(wanted)} files were put back, then: {error}; {before}"
        ) from error
    return done


def _goals(wanted: list[Saved], places: list[Place], archive: Path) -> dict[str, Path]:
    """Where each file belongs; ArchiveError for two at one path, or a way through a link."""
    by_kind = {place.kind: place.path for place in places}
    goals: dict[str, Path] = {}
    taken: set[str] = set()
    for saved in wanted:
        kind, *parts = saved.name.split("/")
        root = by_kind.get(kind, places[0].path)  # both kinds in one folder
        goal = root.joinpath(*parts)
        key = os.path.normcase(str(goal)).lower()
        if key in taken:
            raise ArchiveError(f"{archive}: two of its files belong to {goal}")
        if Path(os.path.realpath(goal.parent)) != Path(os.path.realpath(root), *parts[:-1]):
            raise ArchiveError(f"{goal.parent} is or has a link; remove it, nothing was changed")
        taken.add(key)
        goals[saved.name] = goal
    return goals


def _clear_way(goals: Mapping[str, Path], backup: Backup | None) -> None:
    """Removes databases that are to be replaced with their side files, and these side files.

    SQLite would replay a -wal, or roll a -journal back, into whatever database lies beside it. The
    database goes first: side files without one are discarded by SQLite. OSError: nothing was
    removed, or the sentence says what could not be.
    """
    saved = backup.files if backup else {}
    new = set(goals.values())
    going: list[Path] = []
    for goal in filter(lambda goal: is_database(goal.name), goals.values()):
        sides = side_files(goal)
        old = [side for side in sides if os.path.lexists(side)]
        if old or new.intersection(sides):
            going += [path for path in (goal, *old) if os.path.lexists(path)]
    for path in going:
        if path not in saved or not _is_as_saved(path, saved[path]):
            raise OSError(f"{path} is not in the backup as it is now; remove it and try again")
    for path in going:
        try:
            patiently(path.unlink)
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(f"{path} can't be removed: {why}; remove it and try again") from error


def _is_as_saved(path: Path, saved: Saved) -> bool:
    now = path.stat(follow_symlinks=False)
    return (now.st_size, now.st_mtime_ns) == (saved.size, saved.modified)


def _check_room(wanted: list[Saved], places: list[Place]) -> None:
    needed = sum(saved.size for saved in wanted)
    for place in places:
        free = shutil.disk_usage(existing(place.path)).free
        if free < needed:
            raise ArchiveError(
                f"{size_text(needed)} are to be put back, and {size_text(free)} are free on the "
                f"disk of {place.path}; nothing was changed"
            )


def _put_back(archive: Archive, saved: Saved, goal: Path, old: os.stat_result | None) -> None:
    """old: what was at `goal`, which may be gone by now."""
    _make_folder(goal.parent)
    with beside(goal, PREFIX) as (file, part), archive.open(saved.name) as source:
        if _copy(source, file) != saved.sha256:
            raise OSError(f"{saved.name} has changed since it was checked")
        _make_alike(file.fileno(), part, old or goal.parent.stat())
        settle(file)


def _make_folder(folder: Path) -> None:
    """With its parents; each that is made belongs to whom its parent belongs, where allowed."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _own(folder, folder.parent.stat())


def _stat_of(goal: Path) -> os.stat_result | None:
    """Of a plain file, None for any other and where there is none."""
    try:
        found = goal.stat(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _make_alike(handle: int, part: Path, like: os.stat_result) -> None:
    """Mode and owner of the file that is replaced; else as programs make it, and its folder's."""
    if stat.S_ISREG(like.st_mode):
        mode = like.st_mode & 0o777
    else:
        mask = os.umask(0o077)
        os.umask(mask)
        mode = 0o666 & ~mask
    _own(handle, like)
    # By its handle where that can be: a folder's owner may put a link in the name's place.
    os.chmod(handle if os.chmod in os.supports_fd else part, mode)


def _own(path: int | Path, like: os.stat_result) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # only root may, and not on every file system
            os.chown(path, like.st_uid, like.st_gid)


def _copy(source: IO[bytes], file: IO[bytes]) -> str:
    """The copy's SHA-256."""
    reader = Hashed(source)
    shutil.copyfileobj(reader, file)
    return reader.digest()
