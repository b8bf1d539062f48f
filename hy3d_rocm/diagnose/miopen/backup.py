"""MIOpen's files: saved, cleared, put back. A backup comes first, so that nothing is ever lost.

A backup is one .tar.gz or .zip, written whole or not at all. Members are "<kind>/<path in the
place>" and INDEX, a JSON text with each file's size and SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import shutil
import stat
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from hy3d_rocm.arguments import CommandError
from hy3d_rocm.conv.verdict_store.database import default_path
from hy3d_rocm.diagnose.miopen import places as of_miopen
from hy3d_rocm.diagnose.miopen.places import Place, files_of, is_database
from hy3d_rocm.files import (
    beside,
    formats_text,
    is_windows_name,
    patiently,
    settle,
    settle_folder,
)
from hy3d_rocm.units import size_text

INDEX = "hy3d_rocm_miopen.json"
FORMAT = 1
ENDINGS = (".tar.gz", ".tgz", ".zip")
PREFIX = ".miopen-"  # of files that are being written
# What a file that is no archive, or only a part of one, raises; RuntimeError: an encrypted zip,
# ValueError: a name that is not in the archive's encoding, or a size that is none; OverflowError
# and IndexError: damaged headers, in the readers themselves.
BROKEN = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError,
    ArithmeticError, LookupError, MemoryError,
)  # fmt: skip
_CHUNK = 1 << 20
_LONGEST_INDEX_BYTES = 64 << 20
_NO_BACKUP = "this is no backup of ours"


class ArchiveError(CommandError):
    """The text is the sentence for the user."""


@dataclass(frozen=True)
class Saved:
    """One file in a backup. name: its member; modified: nanoseconds, 0 where not known."""

    name: str
    size: int
    sha256: str
    modified: int = 0


@dataclass(frozen=True)
class Backup:
    """A backup as written and read again. files: by the file's path on this machine."""

    path: Path
    files: Mapping[Path, Saved]

    @property
    def bytes(self) -> int:
        return sum(saved.size for saved in self.files.values())


def default_target(environ: Mapping[str, str], *, windows: bool = os.name == "nt") -> Path:
    """A new file beside our own database, named by the time."""
    own = {name: value for name, value in environ.items() if name != "HY3D_ROCM_DB"}
    folder = Path(
        default_path(own, str(of_miopen.home_of(environ, windows)), windows=windows)
    ).parent
    stamp = time.strftime("%Y%m%d-%H%M%S")
    paths = (folder / f"miopen-{stamp}{f'-{n}' if n else ''}.tar.gz" for n in itertools.count())
    return next(path for path in paths if not os.path.lexists(path))


def write_backup(places: list[Place], target: Path) -> Backup:
    """Saves all files of `places` to `target`; ArchiveError, and no file, where that fails.

    `target` appears only once it has been written, read again and found equal.
    """
    target = Path(os.path.abspath(target))
    if not str(target).lower().endswith(ENDINGS):
        raise ArchiveError(f"{target} is no .tar.gz and no .zip; give one of these endings")
    if os.path.lexists(target):
        raise ArchiveError(f"{target} is there already and is not overwritten; give another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target, PREFIX) as (file, part):
            with _opened(file, target, "w") as archive:
                files = _write(places, archive, target)
            settle(file)
            wanted = {replace(saved, modified=0) for saved in files.values()}
            if set(read_backup(part, like=target)) != wanted:
                raise OSError("what was read back is not what was written")
        with contextlib.suppress(OSError):
            settle_folder(target.parent)
    except BROKEN as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"the backup {target} can't be written: {said}; nothing was changed") \
            from error  # fmt: skip
    return Backup(target, files)


def _opened(
    file: IO[bytes], path: Path, mode: Literal["r", "w"]
) -> tarfile.TarFile | zipfile.ZipFile:
    """A zip or a tar, as `path` ends."""
    if str(path).lower().endswith(".zip"):
        return zipfile.ZipFile(file, mode)
    return tarfile.TarFile.gzopen(None, mode, file, 6)


def _write(
    places: list[Place], archive: tarfile.TarFile | zipfile.ZipFile, target: Path
) -> dict[Path, Saved]:
    """Each file exactly as long as it was when it was opened, or OSError; then the index."""
    files = {}
    for path, name in _names(places, target).items():
        with open(path, "rb") as source:
            stat = os.fstat(source.fileno())
            reader = Hashed(source, stat.st_size)
            _add(archive, name, reader, stat.st_size, stat.st_mtime)
        if reader.left:
            raise OSError(f"{path} became shorter while it was read; close what uses it")
        files[path] = Saved(name, stat.st_size, reader.digest(), stat.st_mtime_ns)
    index = {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "places": {place.kind: str(place.path) for place in places},
        "files": {saved.name: [saved.size, saved.sha256] for saved in files.values()},
    }
    text = json.dumps(index, indent=1).encode()
    _add(archive, INDEX, io.BytesIO(text), len(text), time.time())
    return files


def _names(places: list[Place], target: Path) -> dict[Path, str]:
    """Each file's member; ArchiveError, with the file, for a name that can't be one."""
    # A tar keeps any bytes in a name, a zip only text.
    is_zip = target.name.lower().endswith(".zip")
    names: dict[Path, str] = {}
    for place in places:
        for path in files_of(place):
            if path.resolve() == target.resolve() or path.name.startswith(PREFIX):
                continue
            relative = path.relative_to(place.path).as_posix()
            # A folder for both may be restored where there are two.
            kind = place.kind if len(places) > 1 else of_miopen.kind_by_name(relative)
            names[path] = f"{kind}/{relative}"
            try:
                names[path].encode(errors="strict" if is_zip else "surrogatepass")
            except UnicodeEncodeError as error:
                raise ArchiveError(
                    f"the name of {str(path)!r} is not UTF-8, which a .zip can't hold; rename or "
                    "move that file, or make a .tar.gz; nothing was changed"
                ) from error
    return names


def _add(
    archive: tarfile.TarFile | zipfile.ZipFile, name: str, source: Any, size: int, modified: float
) -> None:
    """A member of `size` bytes, all that `source` gives."""
    if isinstance(archive, tarfile.TarFile):
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = size, int(modified), 0o644
        archive.addfile(member, source)
        return
    # Zip's dates end in 2107 and begin in 1980.
    moment = time.localtime(min(max(modified, 315619200.0), 4e9))[:6]
    entry = zipfile.ZipInfo(name, moment)
    entry.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(entry, "w", force_zip64=size > 1 << 31) as sink:
        shutil.copyfileobj(source, sink, _CHUNK)


class Hashed(io.RawIOBase):
    """A file that hashes what is read from it. left: bytes that may still be read."""

    def __init__(self, source: IO[bytes], left: int = sys.maxsize) -> None:
        self._source, self._hash, self.left = source, hashlib.sha256(), left

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(self.left if size < 0 else min(size, self.left))
        self._hash.update(data)
        self.left -= len(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def read_backup(path: Path, like: Path | None = None) -> list[Saved]:
    """All files of a backup, each checked against the index; ArchiveError where one is not right.

    Nothing is written. like: whose ending says what kind of archive it is.
    """
    found = []
    shown = like or path
    try:
        with open_archive(path, like) as archive:
            for name, wanted in archive.index().items():
                with archive.open(name) as source:
                    digest = hashlib.file_digest(source, "sha256").hexdigest()
                    if (source.tell(), digest) != wanted:
                        raise ArchiveError(
                            f"{shown}: {name!r} is not what it was when it was saved"
                        )
                found.append(Saved(name, *wanted))
    except BROKEN as error:
        raise ArchiveError(f"{shown} can't be read: {error}") from error
    return found


class Archive:
    """A backup that is open for reading. Members that are no plain files are refused at once."""

    def __init__(self, archive: Any, path: Path) -> None:
        self._archive, self._path = archive, path
        self._members: dict[str, Any] = {}
        is_tar = isinstance(archive, tarfile.TarFile)
        for member in archive.getmembers() if is_tar else archive.infolist():
            name = member.name if is_tar else member.filename
            if member.isdir() if is_tar else member.is_dir():
                continue
            if not (member.isreg() if is_tar else _is_plain(member)):
                raise ArchiveError(f"{path}: {name!r} is no plain file; {_NO_BACKUP}")
            if name in self._members:
                raise ArchiveError(f"{path}: {name!r} is in it twice; {_NO_BACKUP}")
            if name != INDEX:
                check_name(name, path)
            self._members[name] = member

    def index(self) -> dict[str, tuple[int, str]]:
        """Name -> size, SHA-256 of every file; ArchiveError where it and the members differ."""
        if INDEX not in self._members:
            raise ArchiveError(f"{self._path} has no {INDEX}; {_NO_BACKUP}")
        with self.open(INDEX) as source:
            text = source.read(_LONGEST_INDEX_BYTES)
        try:
            facts = json.loads(text)
            files = {str(n): (int(s), str(h)) for n, (s, h) in facts["files"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise ArchiveError(f"{self._path}: {INDEX} can't be understood: {error}") from error
        if facts.get("format") != FORMAT:
            raise ArchiveError(
                f"{self._path} was made by another version of this program"
                f" {formats_text(facts.get('format'), FORMAT)}: restore it with that one"
            )
        if set(files) != set(self._members) - {INDEX}:
            raise ArchiveError(f"{self._path}: its files are not those of its index")
        return files

    def open(self, name: str) -> Any:
        """The member, as a binary file."""
        is_tar = isinstance(self._archive, tarfile.TarFile)
        reader = self._archive.extractfile if is_tar else self._archive.open
        return reader(self._members[name])


def _is_plain(member: zipfile.ZipInfo) -> bool:
    return member.external_attr >> 16 & 0o170000 in (0, 0o100000)


@contextlib.contextmanager
def open_archive(path: Path, like: Path | None = None) -> Iterator[Archive]:
    """A backup, open for reading; ArchiveError where it holds what no backup of ours holds."""
    shown = like or path
    with open(path, "rb") as file, _opened(file, shown, "r") as archive:
        yield Archive(archive, shown)


def check_name(name: str, path: Path, *, windows: bool = os.name == "nt") -> None:
    """ArchiveError unless `name` is "<kind>/..." and stays below that folder.

    On Windows also for what its paths give a meaning of their own, or can't hold.
    """
    kind, *parts = name.split("/")
    if (
        kind not in (of_miopen.DATABASES, of_miopen.KERNELS)
        or not parts
        or any(part in ("", ".", "..") for part in parts)
        or "\0" in name
    ):
        raise ArchiveError(f"{path}: {name!r} is no name that a backup of ours holds")
    if windows and not all(map(is_windows_name, parts)):
        raise ArchiveError(f"{path}: Windows can't hold {name!r}, or takes it for another path")


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
        sides = of_miopen.side_files(goal)
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
        free = shutil.disk_usage(of_miopen.existing(place.path)).free
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
