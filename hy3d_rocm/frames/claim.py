"""Who writes an output, what a killed decode leaves of it, and how it gets its name.

Every decode into a file or folder holds the claim of it, whatever its flags, from before its first
frame until its last: another one is refused. What the decode makes lies in NAME.partial/ and gets
its name at the end, which never replaces anything that was not there at the start:

    lock                  held by the process that writes
    manifest.json         which job this is, how its frames are made, how many are done
    segment_000012.mp4    a video's complete segments, each with its own encoder
    frames.npy            an array's frames
    pictures/             frame_000000.png and so on
    old/                  the pictures that are being replaced, for a moment

A decode that can be killed and go on writes the manifest before its first frame. Everything gets
its name when it is complete and on the disk, so whatever is there under its name is good. A decode
of another job, or one that makes the frames in another way, is refused: frames of two kinds in one
file would be no decode of either.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import platform
import re
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self

import torch
from torch import Tensor

from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.files import (
    formats_text,
    is_held,
    is_windows_name,
    partial_of,
    patiently,
    plain,
    reachable,
    settle_folder,
)
from hy3d_rocm.frames.output import OutputError, Shape, output_errors, written

logger = logging.getLogger("hy3d_rocm")

PICTURES, _OLD = "pictures", "old"
_FORMAT = 2
_FRAME = re.compile(r"frame_\d{6,}\.png(?:\.partial)?")
_PART = re.compile(r"(?:whole\..*|frames\.npy|joined\..*|segment_.*)(?:\.partial)?")
_LOCK, _OWNER = "lock", "owner"
_LOCK_SECONDS = 10.0  # a network drive whose server of locks is gone never answers
# What a drive without them says of locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_LINKS = {*_NO_LOCKS, errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EACCES}

Identity = list[int]  # device, inode, bytes (of a file)


class Claim:
    """Of `path`, a file or (no suffix) a folder of pictures. take() and release(), or a context.

    What has the name when the claim is taken is replaced at the end only with overwrite (an empty
    file or folder in any case), a folder only where it holds nothing but frame_000000.png and so
    on. OutputError from take(): the name cannot be had, is taken, or somebody else is writing it.

    job: what makes the frames, JSON-able (fingerprints, precision, versions, output settings), or
    a function that gives it once the lock is held, from `files`; the decode can be killed and go on
    then. A job that differs from the recorded one is an OutputError that says in what. restart:
    what is there is thrown away instead. Without a job, nothing is left of a decode that ends
    early.

    manifest: {} until a decode has begun; then its job, all frames' shape and dtype (by name), the
    plan by which they are made, how many are done, and "made", the identity of the complete output.
    """

    def __init__(
        self, path: Path,
        job: Mapping[str, Any] | Callable[[FileFingerprints], Mapping[str, Any]] | None = None,
        *, restart: bool = False, overwrite: bool = False,
    ) -> None:  # fmt: skip
        check_name(path)
        self.path = reachable(path)
        self.folder = partial_of(self.path)
        self.goes_on = job is not None
        self.overwrite = overwrite
        self.restart = restart
        self.files = FileFingerprints()
        self.job: dict[str, Any] = {}
        self._make_job = job
        self._file = self.folder / "manifest.json"
        self.manifest: dict[str, Any] = {}
        self._lock: Lock | None = None
        self._replaced: Identity | None = None  # what has the name now and may be replaced
        self._is_left = False  # complete frames that could not be renamed lie in the folder

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Does nothing where it is held."""
        if self._lock is not None:
            return
        with output_errors(self.path):
            if self.path.suffix == "":
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.folder, self.path)
        try:
            with output_errors(self.path):
                self._put_back()
                self._go_on()
                self._replaced = None if self.is_published else self._checked_target()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Does nothing where it is not held. What is left is removed, unless it is good for going
        on."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            with contextlib.suppress(OSError):  # the disk's fault was reported where it struck
                self._put_back()
                if not self._file.exists() and not self._is_left:
                    self.clear()
        finally:
            lock.release(and_folder=not self._file.exists())

    def _put_back(self) -> None:
        """The pictures that were being replaced get their name again where a kill, or a fault of
        the disk, came before the new ones had it."""
        old = self.folder / _OLD
        if old.is_dir() and (self.folder / PICTURES).is_dir() and not os.path.lexists(self.path):
            os.rename(old, self.path)
            settle_folder(self.path.parent)
            logger.warning("%s was put back as it was: a decode that was to replace it was stopped",
                           self.path)  # fmt: skip

    def _go_on(self) -> None:
        """Takes up what an earlier decode has left; OutputError where this one can't."""
        found = self._read()
        if self._make_job is None:
            return
        self.job = plain(self._make_job(self.files) if callable(self._make_job) else self._make_job)
        if found:
            self._compare(found.get("job", {}), self.job)
        self.manifest = found

    def _read(self) -> dict[str, Any]:
        """The manifest; {} where there is none, and no frames either then."""
        file = self._file
        if not self.goes_on and file.exists():
            raise OutputError(
                f"{self.folder} holds a decode that can go on: give --resume, or remove that folder"
            )
        if self.restart or not file.exists():
            self.clear()
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{file} cannot be read ({error}): --restart starts from scratch"
            ) from error
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            made = found.get("format") if isinstance(found, dict) else None
            raise OutputError(
                f"{file} is of another version of this program {formats_text(made, _FORMAT)}: go "
                "on with that one, or --restart starts from scratch"
            )
        return found

    def _compare(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        differ = [n for n in sorted({*then, *now}) if then.get(n) != now.get(n)]
        if differ:
            name = differ[0]
            raise OutputError(
                f"{self.folder} belongs to another decode, it differs in {', '.join(differ)} "
                f"({name}: {_short(then.get(name))} then, {_short(now.get(name))} now): "
                "--restart throws it away and starts from scratch"
            )

    def _checked_target(self) -> Identity | None:
        """Of what has the name and may be replaced; OutputError for what may not."""
        path, found = self.path, identity(self.path)
        is_folder = path.is_dir() and not path.is_symlink()
        if found is None:
            return None
        if path.suffix != "" and is_folder:
            raise OutputError(f"{path} is a folder; remove it, or choose another name")
        if is_folder:
            self._check_pictures([entry.name for entry in path.iterdir()])
        elif not path.is_file():
            raise OutputError(
                f"{path} is a device, a pipe or a link to nothing, not a file; choose another name"
            )
        elif path.suffix == "":
            raise OutputError(f"{path} is a file; name a folder for the pictures, or a .mp4")
        elif path.stat().st_size and not self.overwrite:
            raise OutputError(
                f"{path} is there already: give --overwrite to replace it, or another name"
            )
        return found

    def _check_pictures(self, names: list[str]) -> None:
        """Pictures of two clips in one folder would be no clip."""
        others = [name for name in names if not _FRAME.fullmatch(name)]
        if others:
            raise OutputError(
                f"{self.path} holds other files ({others[0]!r}); name a folder that is not there"
            )
        if names and not self.overwrite:
            raise OutputError(
                f"{self.path} holds {len(names)} pictures already: give --overwrite to replace "
                "them all, or name another folder"
            )
        if (self.folder / _OLD).exists():  # something of the user's came into pictures replaced
            raise OutputError(f"{self.folder / _OLD} is in the way of {self.path}: remove it")

    @property
    def is_complete(self) -> bool:
        """Whether all frames are there and only the file at the end is missing."""
        shape = self.manifest.get("shape")
        return shape is not None and bool(self.manifest["done"] == shape[0] * shape[2])

    @property
    def is_published(self) -> bool:
        """Whether the output has its name: a kill came between that and the folder's end."""
        found = identity(self.path)
        return found is not None and self.is_complete and found == self.manifest.get("made")

    def begin(self, shape: Shape, stored: str, plan: Mapping[str, Any] | None) -> int:
        """The decode begins or goes on; frames recorded as done. OutputError where what is there
        was made in another way."""
        now = {"shape": list(shape), "dtype": stored, "plan": plain(plan or {})}
        if not self.manifest:
            self.manifest = {"format": _FORMAT, "job": self.job, **now, "done": 0}
            self._write()
        for name, value in now.items():
            if self.manifest[name] != value:
                raise OutputError(
                    f"{self.folder} was decoded with {name} {_short(self.manifest[name])}, "
                    f"now it is {_short(value)}: give the same budget and strategy as then, or "
                    "--restart"
                )
        return int(self.manifest["done"])

    def record(self, done: int) -> None:
        """`done` frames from the start are on the disk."""
        self.manifest["done"] = done
        self._write()

    def _write(self) -> None:
        if self.goes_on:
            with written(self._file) as file:
                file.write(json.dumps(self.manifest, indent=1).encode())

    def publish(self, made: Path) -> None:
        """`made`, complete and on the disk, gets its name. Where somebody else has made something
        of that name meanwhile, or has what it replaces open (Windows), both stay and OutputError
        says where."""
        with output_errors(self.path):
            self.manifest["made"] = identity(made)
            self._write()
            replaces = self._replaced is not None and identity(self.path) == self._replaced
            try:
                if replaces and made.is_file():
                    patiently(os.replace, made, self.path)
                else:
                    if replaces:  # no folder that holds something can be replaced: see _put_back()
                        patiently(os.rename, self.path, self.folder / _OLD)
                    if not _has_got_name(made, self.path):
                        self._keep_beside(made, "was made by somebody else meanwhile, and stays")
            except OSError as error:
                if not is_held(error):
                    raise
                if os.path.lexists(self.folder / _OLD) and not os.path.lexists(self.path):
                    patiently(os.rename, self.folder / _OLD, self.path)
                verb = "replaced" if replaces else "made"
                why = f"{error.strerror}: a program has it open, or it is read-only"
                self._keep_beside(made, f"can't be {verb} ({why})")
            settle_folder(self.path.parent)

    def _keep_beside(self, made: Path, why: str) -> None:
        others = (
            self.path.with_name(f"{self.path.stem}_{number}{self.path.suffix}")
            for number in itertools.count(2)
        )
        try:
            other = next(path for path in others if _has_got_name(made, path))
        except OSError as error:
            self._is_left = is_held(error)
            if not self._is_left:
                raise
            other = made
        settle_folder(self.path.parent)
        where = f"the frames of this decode are in {other}"
        if self._is_left:
            where += ": move them before you decode to that name again"
        raise OutputError(f"{self.path} {why}; {where}")

    def clear(self) -> None:
        """Removes what decodes leave in the folder. The manifest goes first: frames without one
        are thrown away, never mixed up."""
        self.manifest = {}
        with output_errors(self.folder):
            self._file.unlink(missing_ok=True)
            settle_folder(self.folder)
            for folder in (self.folder / PICTURES, self.folder / _OLD):
                if folder.is_dir():
                    _remove(folder, _FRAME)
                    with contextlib.suppress(OSError):  # something of the user's is in it
                        folder.rmdir()
            _remove(self.folder, _PART)


def check_name(path: Path) -> None:
    """OutputError for what can be no name of a file on this system."""
    if path.name in ("", "..") or "\0" in str(path):
        shown = str(path).replace("\0", "\\0")
        raise OutputError(f"{shown!r} is no name of a file; name a .mp4, a .npy or a new folder")
    if sys.platform == "win32" and not is_windows_name(path.name):
        raise OutputError(
            f"{path}: Windows can't give a file the name {path.name!r}, or takes it for another "
            "one; choose another name"
        )


def folder_is_left(path: Path) -> bool:
    """Whether a decode into `path` can go on."""
    try:
        return os.path.isfile(partial_of(reachable(path)) / "manifest.json")
    except ValueError:  # no name of a file
        return False


def identity(path: Path) -> Identity | None:
    """Of what has the name, links not followed; None for nothing."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [found.st_dev, found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_size]


def _has_got_name(made: Path, path: Path) -> bool:
    """Renames what was made; False where something has the name, which stays."""
    try:
        if made.is_file() and sys.platform != "win32":  # where no renaming replaces anything
            try:
                os.link(made, path)  # where there is something it fails, and only then
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # A file system that knows no second names, as of memory cards.
                if os.path.lexists(path):
                    return False
            else:
                made.unlink()
                return True
        else:
            with contextlib.suppress(OSError):
                path.rmdir()  # an empty folder may have waited for the pictures
        patiently(os.rename, made, path)
    except (FileExistsError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _remove(folder: Path, names: re.Pattern[str]) -> None:
    for entry in list(folder.iterdir()):
        if names.fullmatch(entry.name):
            patiently(entry.unlink, True)


def _short(value: object) -> str:
    return printable(json.dumps(value), 160)


# Fingerprints of latents and files, of every byte: a decode that goes on is known by them.


def tensor_fingerprint(tensor: Tensor) -> str:
    """sha256 of a CPU tensor's type, shape and bytes."""
    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)} ".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class FileFingerprints:
    """Fingerprints of files, and whether these have stayed as they were then."""

    def __init__(self) -> None:
        self._states: dict[Path, list[int]] = {}

    def of(self, files: list[Path]) -> str:
        """One fingerprint of several files, by name and content."""
        digest = hashlib.sha256()
        for file in sorted(files, key=lambda f: f.name):
            self._states[file] = _state(file)
            with open(file, "rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            digest.update(f"{file.name} {content}\n".encode())
        return digest.hexdigest()

    def changed(self) -> Path | None:
        """A file that is another one now than when its fingerprint was taken."""
        return next((file for file, then in self._states.items() if _state(file) != then), None)


def _state(file: Path) -> list[int]:
    """Also what nobody can set back: the time of the last change of anything of the file."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


# One process or thread at a time has the lock in NAME.partial/, a killed one gives it back.


class Lock:
    """The lock in `folder`, which is made; OutputError where another process or thread has it.

    The system gives it back when a process dies. A drive without locks gets a file that names its
    owner, which counts while that process of that machine lives.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        """path: the output, for what is said."""
        self._folder, self._path = folder, path
        self._names = [folder / _LOCK]  # what release() removes
        self._file: IO[bytes] | None = None
        for _ in range(1000):  # who gives the folder up may remove it between two lines
            if folder.is_file() and not folder.is_symlink():
                folder.unlink()  # of a version that wrote one file there
            with contextlib.suppress(FileExistsError):
                patiently(folder.mkdir)
            if not folder.is_dir():
                raise OutputError(f"{folder} is in the way of {path}: remove it")
            with contextlib.suppress(FileNotFoundError):
                if self._taken():
                    return
        raise OutputError(f"{folder} comes and goes: another program removes it, look which")

    def _taken(self) -> bool:
        """False where the file that was locked is no longer the one of that name."""
        file = self._folder / _LOCK
        # The lock is held while it is open.
        opened: IO[bytes] = patiently(open, file, "a+b")
        try:
            is_mine = _try_lock(opened.fileno(), self._folder)
            if is_mine is None:
                self._take_by_name()
                self._file = opened
            elif not is_mine:
                self._refuse(file)
            # On Windows an open file keeps its name.
            elif sys.platform == "win32" or os.path.samestat(
                os.fstat(opened.fileno()), os.stat(file)
            ):
                self._file = opened
                opened.truncate(0)
                opened.write(_me())
                opened.flush()
        except BaseException:
            if self._file is not None:
                self.release(and_folder=True)
            raise
        finally:
            if self._file is None:
                opened.close()
        return self._file is not None

    def _take_by_name(self) -> None:
        file = self._folder / _OWNER
        for _ in range(10):
            try:
                with open(file, "xb") as opened:
                    opened.write(_me())
            except FileExistsError:
                if _is_alive(_text_of(file)):
                    self._refuse(file, f", or remove {file} if that is over")
                file.unlink(missing_ok=True)
            else:
                self._names.append(file)
                return
        self._refuse(file)

    def _refuse(self, file: Path, more: str = "") -> None:
        who = _text_of(file).split()
        named = f" ({who[0]} on {who[1]})" if len(who) == 2 else ""
        raise OutputError(
            f"{self._path} is being written by another process{named}: wait for it, or choose "
            f"another name{more}"
        )

    def release(self, *, and_folder: bool) -> None:
        """Gives it back; the folder goes where that is wished and nothing is in it."""
        opened, self._file = self._file, None
        assert opened is not None
        if sys.platform == "win32":
            opened.close()  # no open file can be removed there
        for name in self._names:
            with contextlib.suppress(OSError):
                name.unlink()
        if and_folder:
            with contextlib.suppress(OSError):  # something of the user's, or the next one is in it
                self._folder.rmdir()
            with contextlib.suppress(OSError):
                settle_folder(self._folder.parent)
        opened.close()


def _try_lock(handle: int, folder: Path) -> bool | None:
    """Whether the open file could be locked at once; None where the drive knows no locks.
    OutputError where it does not answer."""
    answer: list[bool | OSError | None] = []
    asking = threading.Thread(target=lambda: answer.append(_asked(handle)), daemon=True)
    asking.start()
    asking.join(_LOCK_SECONDS)
    if not answer:
        raise OutputError(
            f"the drive of {folder} does not answer when asked for a lock; name a folder on "
            "another drive"
        )
    found = answer[0]
    if isinstance(found, OSError):
        raise found
    return found


def _asked(handle: int) -> bool | OSError | None:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 20, os.SEEK_SET)  # a locked byte can't be read by others
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except ImportError:
        return None
    except OSError as error:
        if error.errno in (errno.EDEADLK, 0):  # 0: under wine, which gives no reason
            return False
        return None if error.errno in _NO_LOCKS else error
    return True


def _me() -> bytes:
    return f"{os.getpid()} {platform.node() or 'this-machine'}\n".encode()


def _text_of(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_bytes()[:300].decode("utf-8", "replace")
    return ""


def _is_alive(owner: str) -> bool:
    """Whether a process that called itself so may still run; one of another machine may."""
    number, _, host = owner.strip().partition(" ")
    is_here = number.isdecimal() and f"{os.getpid()} {host}\n".encode() == _me()
    if not is_here or sys.platform == "win32":  # where this would end it; drives there have locks
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
