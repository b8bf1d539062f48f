"""A backup of MIOpen's files: one .tar.gz or .zip, written whole or not at all.

Members are "<kind>/<path in the place>" and INDEX, a JSON text with each file's size and SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from hy3d_rocm.conv.verdict_store.database import default_path
from hy3d_rocm.diagnose.miopen.places import (
    DATABASES,
    KERNELS,
    Place,
    files_of,
    home_of,
    kind_by_name,
)
from hy3d_rocm.files import beside, formats_text, is_windows_name, settle, settle_folder

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
            kind = place.kind if len(places) > 1 else kind_by_name(relative)
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
        kind not in (DATABASES, KERNELS)
        or not parts
        or any(part in ("", ".", "..") for part in parts)
        or "\0" in name
    ):
        raise ArchiveError(f"{path}: {name!r} is no name that a backup of ours holds")
    if windows and not all(map(is_windows_name, parts)):
        raise ArchiveError(f"{path}: Windows can't hold {name!r}, or takes it for another path")
