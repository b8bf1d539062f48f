"""A backup of MIOpen's files: one .tar.gz or .zip, written whole or not at all.

Members are "<kind>/<path in the place>" and INDEX, a JSON text with each file's size and SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hy3d_rocm.conv.verdict_store.place import default_path
from hy3d_rocm.doctor.miopen.places import (
    DATABASES,
    KERNELS,
    Place,
    files_of,
    home_of,
    kind_by_name,
)

INDEX = "hy3d_rocm_miopen.json"
FORMAT = 1
ENDINGS = (".tar.gz", ".tgz", ".zip")
# What a file that is no archive, or only a part of one, raises; RuntimeError: an encrypted zip,
# ValueError: a name that is not in the archive's encoding, or a size that is none; OverflowError
# and IndexError: damaged headers, in the readers themselves.
BROKEN = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError,
    ArithmeticError, LookupError, MemoryError,
)  # fmt: skip
_CHUNK = 1 << 20
_LONGEST_INDEX_BYTES = 64 << 20


class ArchiveError(Exception):
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
    folder = Path(default_path(own, str(home_of(environ, windows)), windows=windows)).parent
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = folder / f"miopen-{stamp}{f'-{number}' if number else ''}.tar.gz"
        if not os.path.lexists(path):
            return path
    raise ArchiveError(f"{folder} holds a thousand backups of this second; give a file name")


def write_backup(places: list[Place], target: Path) -> Backup:
    """Saves all files of `places` to `target`; ArchiveError, and no file, where that fails.

    `target` appears only once it has been written, read again and found equal.
    """
    target = Path(os.path.abspath(target))
    if not str(target).lower().endswith(ENDINGS):
        raise ArchiveError(f"{target} is no .tar.gz and no .zip; give one of these endings")
    if os.path.lexists(target):
        raise ArchiveError(f"{target} is there already and is not overwritten; give another name")
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".miopen-", suffix=".part")
        part = Path(name)
        with os.fdopen(handle, "w+b") as file:
            files = _write(places, file, target)
            file.flush()
            os.fsync(file.fileno())
        _check_again(part, target, files)
        os.replace(part, target)
        _sync_folder(target.parent)
        part = None
    except BROKEN as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"the backup {target} can't be written: {said}; nothing was changed") \
            from error  # fmt: skip
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
    return Backup(target, files)


def _write(places: list[Place], file: IO[bytes], target: Path) -> dict[Path, Saved]:
    names = _names(places, target)
    with _writer(file, target) as put:
        files = {path: _put_file(put, name, path) for path, name in names.items()}
        text = json.dumps(_index(places, files), indent=1).encode()
        put(INDEX, io.BytesIO(text), len(text), time.time())
    return files


def _names(places: list[Place], target: Path) -> dict[Path, str]:
    """Each file's member; ArchiveError, with the file, for a name that can't be one."""
    names: dict[Path, str] = {}
    for place in places:
        for path in files_of(place):
            if path.resolve() == target.resolve() or path.name.startswith(".miopen-"):
                continue
            relative = path.relative_to(place.path).as_posix()
            # A folder for both may be restored where there are two.
            kind = place.kind if len(places) > 1 else kind_by_name(relative)
            names[path] = f"{kind}/{relative}"
            _check_encoding(names[path], path, target)
    return names


def _check_encoding(name: str, path: Path, target: Path) -> None:
    """A tar keeps any bytes in a name, a zip only text."""
    try:
        if target.name.lower().endswith(".zip"):
            name.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(
            f"the name of {str(path)!r} is not UTF-8, which a .zip can't hold; rename or move "
            "that file, or make a .tar.gz; nothing was changed"
        ) from error


def _put_file(put: _Put, name: str, path: Path) -> Saved:
    """Exactly as many bytes as the file had when it was opened, or OSError."""
    with open(path, "rb") as source:
        stat = os.fstat(source.fileno())
        reader = Hashed(source)
        put(name, reader, stat.st_size, stat.st_mtime)
    if reader.count != stat.st_size:
        raise OSError(f"{path} became shorter while it was read; close what uses it")
    return Saved(name, stat.st_size, reader.digest(), stat.st_mtime_ns)


def _index(places: list[Place], files: Mapping[Path, Saved]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "places": {place.kind: str(place.path) for place in places},
        "files": {saved.name: [saved.size, saved.sha256] for saved in files.values()},
    }


class Hashed(io.RawIOBase):
    """A file that counts and hashes what is read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._hash, self.count = source, hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.count += len(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Put:
    """Adds one member: name, what to read, how many bytes, when modified."""

    def __init__(self, archive: tarfile.TarFile | zipfile.ZipFile) -> None:
        self._archive = archive

    def __call__(self, name: str, source: Any, size: int, modified: float) -> None:
        if isinstance(self._archive, tarfile.TarFile):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = size, int(modified), 0o644
            self._archive.addfile(member, source)
            return
        # Zip's dates end in 2107 and begin in 1980.
        moment = time.localtime(min(max(modified, 315619200.0), 4e9))[:6]
        entry = zipfile.ZipInfo(name, moment)
        entry.compress_type = zipfile.ZIP_DEFLATED
        with self._archive.open(entry, "w", force_zip64=size > 1 << 31) as sink:
            left = size
            while left and (data := source.read(min(left, _CHUNK))):
                sink.write(data)
                left -= len(data)


@contextlib.contextmanager
def _writer(file: IO[bytes], target: Path) -> Iterator[_Put]:
    if target.name.lower().endswith(".zip"):
        with zipfile.ZipFile(file, "w") as archive:
            yield _Put(archive)
    else:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
            yield _Put(archive)


def _check_again(part: Path, target: Path, files: Mapping[Path, Saved]) -> None:
    """Reads what was written: every file that is to be there, with its hash."""
    wanted = {saved.name: (saved.size, saved.sha256) for saved in files.values()}
    found = {saved.name: (saved.size, saved.sha256) for saved in read_backup(part, like=target)}
    if found != wanted:
        raise OSError("what was read back is not what was written")


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a power cut, where folders can be synchronised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_backup(path: Path, like: Path | None = None) -> list[Saved]:
    """All files of a backup, each checked against the index; ArchiveError where one is not right.

    Nothing is written. like: whose ending says what kind of archive it is.
    """
    found = []
    shown = like or path
    try:
        with open_archive(path, like=like) as archive:
            for name, wanted in archive.index().items():
                with archive.open(name) as source:
                    reader = Hashed(source)
                    while reader.read(_CHUNK):
                        pass
                if (reader.count, reader.digest()) != wanted:
                    raise ArchiveError(f"{shown}: {name!r} is not what it was when it was saved")
                found.append(Saved(name, *wanted))
    except BROKEN as error:
        raise ArchiveError(f"{shown} can't be read: {error}") from error
    return found


class Archive:
    """A backup that is open for reading. Members that are no plain files are refused at once."""

    def __init__(self, archive: tarfile.TarFile | zipfile.ZipFile, path: Path) -> None:
        self._archive, self._path = archive, path
        self._members: dict[str, Any] = {}
        listed = archive.getmembers() if isinstance(archive, tarfile.TarFile) \
            else archive.infolist()  # fmt: skip
        for member in listed:
            self._add(member)

    def _add(self, member: tarfile.TarInfo | zipfile.ZipInfo) -> None:
        if isinstance(member, tarfile.TarInfo):
            name, is_plain, is_folder = member.name, member.isreg(), member.isdir()
        else:
            name, is_folder = member.filename, member.is_dir()
            kind = member.external_attr >> 16 & 0o170000
            is_plain = kind in (0, 0o100000)
        if is_folder:
            return
        if not is_plain:
            raise ArchiveError(
                f"{self._path}: {name!r} is no plain file; this is no backup of ours"
            )
        if name in self._members:
            raise ArchiveError(f"{self._path}: {name!r} is in it twice; this is no backup of ours")
        if name != INDEX:
            check_name(name, self._path)
        self._members[name] = member

    def index(self) -> dict[str, tuple[int, str]]:
        """Name -> size, SHA-256 of every file; ArchiveError where it and the members differ."""
        if INDEX not in self._members:
            raise ArchiveError(f"{self._path} has no {INDEX}; this is no backup of ours")
        with self.open(INDEX) as source:
            text = source.read(_LONGEST_INDEX_BYTES)
        try:
            facts = json.loads(text)
            files = {str(n): (int(s), str(h)) for n, (s, h) in facts["files"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise ArchiveError(f"{self._path}: {INDEX} can't be understood: {error}") from error
        if facts.get("format") != FORMAT:
            raise ArchiveError(f"{self._path} was made by another version of this program")
        if set(files) != set(self._members) - {INDEX}:
            raise ArchiveError(f"{self._path}: its files are not those of its index")
        return files

    def open(self, name: str) -> IO[bytes]:
        member = self._members[name]
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.open(member)
        source = self._archive.extractfile(member)
        if source is None:
            raise ArchiveError(f"{self._path}: {name!r} can't be read")
        return source


@contextlib.contextmanager
def open_archive(path: Path, *, like: Path | None = None) -> Iterator[Archive]:
    """A backup, open for reading; ArchiveError where it holds what no backup of ours holds."""
    if str(like or path).lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            yield Archive(archive, like or path)
    else:
        with tarfile.open(path, mode="r:gz") as archive:
            yield Archive(archive, like or path)


def check_name(name: str, path: Path, *, windows: bool = os.name == "nt") -> None:
    """ArchiveError unless `name` is "<kind>/..." and stays below that folder.

    On Windows also for what its paths give a meaning of their own, or can't hold.
    """
    parts = name.split("/")
    if (
        parts[0] not in (DATABASES, KERNELS)
        or len(parts) < 2
        or PurePosixPath(name).is_absolute()
        or any(part in ("", ".", "..") for part in parts)
        or "\0" in name
    ):
        raise ArchiveError(f"{path}: {name!r} is no name that a backup of ours holds")
    if windows and (
        any(part != part.rstrip(" .") for part in parts)
        or any(c in '\\:*?"<>|' or ord(c) < 32 for c in name)
    ):
        raise ArchiveError(f"{path}: Windows can't hold {name!r}, or takes it for another path")
