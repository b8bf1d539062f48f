"""Who writes an output: NAME.partial/ beside it, with a lock in it, until the output has its name.

Every decode into a file or folder holds the claim of it, whatever its flags, from before its first
frame until its last: another one is refused. What the decode makes lies in that folder and gets its
name at the end, which never replaces anything that was not there at the start.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import platform
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from hy3d_rocm.decode.frames.output import OutputError, partial_of, settle_folder, told

_FRAME = re.compile(r"frame_\d{6,}\.png(?:\.partial)?")
_LOCK, _OWNER = "lock", "owner"
_LOCK_SECONDS = 10.0  # a network drive whose server of locks is gone never answers
# What a drive without them says of locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_LINKS = {*_NO_LOCKS, errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EACCES}

Identity = tuple[int, int, int]  # device, inode, bytes (of a file)


class Claim:
    """Of `path`, a file or (no suffix) a folder of pictures. take() and release(), or a context;
    who has it may take it again, and then releases it as often; the end of a context ends it.

    What has the name when the claim is taken is replaced at the end only with overwrite (an empty
    file or folder in any case), a folder only where it holds nothing but frame_000000.png and so
    on. OutputError from take(): the name cannot be had, is taken, or somebody else is writing it.
    """

    PICTURES = "pictures"
    OWN = re.compile(
        r"(?:whole\..*|frames\.npy|joined\..*|segment_.*|manifest\.json)(?:\.partial)?"
    )

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        check_name(path)
        self.path = path
        self.folder = partial_of(path)
        self.overwrite = overwrite
        self._held = 0
        self._lock: _Lock | None = None
        self._replaced: Identity | None = None  # what has the name now and may be replaced

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self._held = 0  # whoever did not release it is gone
        self._give_back()

    def take(self) -> None:
        if self._held == 0:
            with told(self.path):
                if self.path.suffix == "":
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = _Lock(self.folder, self.path)
            try:
                with told(self.path):
                    self._begin()
                    self._check_target()
            except BaseException:
                self._give_back()
                raise
        self._held += 1

    def release(self) -> None:
        self._held = max(self._held - 1, 0)
        if self._held == 0:
            self._give_back()

    def _give_back(self) -> None:
        """What is left is removed, unless it is good for going on."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            if not self._is_kept():
                with contextlib.suppress(OSError):  # the disk's fault was told where it struck
                    self._clear()
        finally:
            lock.release(and_folder=not self._is_kept())

    def _is_kept(self) -> bool:
        return (self.folder / "manifest.json").exists()

    def _begin(self) -> None:
        if self._is_kept():
            raise OutputError(
                f"{self.folder} holds a decode that can go on: give --resume, or remove that folder"
            )
        self._clear()  # of a decode that was killed

    def _is_made_here(self, found: Identity) -> bool:
        """Whether what has the name was made by the decode that goes on."""
        return False

    def _check_target(self) -> None:
        found = identity(self.path)
        self._replaced = None
        if found is None or self._is_made_here(found):
            return
        is_folder = self.path.is_dir() and not self.path.is_symlink()
        if self.path.suffix != "" and is_folder:
            raise OutputError(f"{self.path} is a folder; remove it, or choose another name")
        if is_folder:
            self._check_folder()
        elif not self.path.is_file():
            raise OutputError(
                f"{self.path} is a device, a pipe or a link to nothing, not a file; choose another "
                "name"
            )
        elif self.path.suffix == "":
            raise OutputError(f"{self.path} is a file; name a folder for the pictures, or a .mp4")
        elif self.path.stat().st_size and not self.overwrite:
            raise OutputError(
                f"{self.path} is there already: give --overwrite to replace it, or another name"
            )
        self._replaced = found

    def _check_folder(self) -> None:
        """Pictures of two clips in one folder would be no clip."""
        names = [entry.name for entry in self.path.iterdir()]
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

    def publish(self, made: Path) -> Path:
        """`made`, complete and on the disk, gets its name, which is returned. Where somebody else
        has made something of that name meanwhile, both stay and OutputError says where."""
        with told(self.path):
            self._before_publishing(made)
            if not self._published(made, self.path, self._replaced):
                other = self._kept_beside(made)
                raise OutputError(
                    f"{self.path} was made by somebody else meanwhile, and stays; the frames of "
                    f"this decode are in {other}"
                )
            settle_folder(self.path.parent)
        return self.path

    def _before_publishing(self, made: Path) -> None:
        """Called while nothing has the name yet."""

    def _published(self, made: Path, path: Path, replaced: Identity | None) -> bool:
        """False where something else than `replaced` has the name."""
        if made.is_dir():
            if replaced is not None and identity(path) == replaced:
                old = self.folder / "old"
                os.rename(path, old)
                self._remove_pictures(old)
            return _renamed(made, path)
        if replaced is not None and identity(path) == replaced:
            os.replace(made, path)
            return True
        return _linked(made, path)

    def _kept_beside(self, made: Path) -> Path:
        others = (
            self.path.with_name(f"{self.path.stem}_{number}{self.path.suffix}")
            for number in itertools.count(2)
        )
        other = next(path for path in others if self._published(made, path, None))
        settle_folder(self.path.parent)
        return other

    def _clear(self) -> None:
        """Removes what decodes leave in the folder. The manifest goes first: frames without one
        are thrown away, never mixed up."""
        (self.folder / "manifest.json").unlink(missing_ok=True)
        settle_folder(self.folder)
        for entry in list(self.folder.iterdir()):
            if entry.name in (self.PICTURES, "old") and entry.is_dir():
                self._remove_pictures(entry)
            elif self.OWN.fullmatch(entry.name):
                entry.unlink(missing_ok=True)

    @staticmethod
    def _remove_pictures(folder: Path) -> None:
        for entry in list(folder.iterdir()):
            if _FRAME.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something of the user's is in it
            folder.rmdir()


def check_name(path: Path) -> None:
    """OutputError for what can be no name of a file on any system."""
    if path.name in ("", "..") or "\0" in str(path):
        shown = str(path).replace("\0", "\\0")
        raise OutputError(f"{shown!r} is no name of a file; name a .mp4, a .npy or a new folder")


def identity(path: Path) -> Identity | None:
    """Of what has the name, links not followed; None for nothing."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_size


def _linked(made: Path, path: Path) -> bool:
    """A second name for the file, which fails where there is one, and then only that."""
    try:
        os.link(made, path)
    except FileExistsError:
        return False
    except OSError as error:  # a file system that knows no second names, as of memory cards
        if error.errno not in _NO_LINKS:
            raise
        return _renamed(made, path)
    made.unlink()
    return True


def _renamed(made: Path, path: Path) -> bool:
    if os.path.lexists(path):
        if made.is_file():
            return False
        with contextlib.suppress(OSError):
            path.rmdir()  # an empty folder may have waited for the pictures
    try:
        os.rename(made, path)
    except (FileExistsError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        raise
    return True


def good_pictures(folder: Path) -> Iterator[Path]:
    """frame_000000.png and so on, as long as each is there and whole."""
    for number in itertools.count():
        file = folder / f"frame_{number:06d}.png"
        try:
            with open(file, "rb") as opened:
                opened.seek(-12, os.SEEK_END)
                if opened.read() != b"\0\0\0\0IEND\xaeB`\x82":
                    return
        except OSError:
            return
        yield file


class _Lock:
    """The lock in `folder`, which is made; OutputError where another process or thread has it.

    The system gives it back when a process dies. A drive without locks gets a file that names its
    owner, which counts while that process of that machine lives.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._path = path
        self._file: Any = None
        self._owner: Path | None = None
        for _ in range(1000):  # who gives the folder up may remove it between two lines
            if folder.is_file() and not folder.is_symlink():
                folder.unlink()  # of a version that wrote one file there
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            if not folder.is_dir():
                raise OutputError(f"{folder} is in the way of {path}: remove it")
            try:
                if self._taken():
                    return
            except FileNotFoundError:
                continue
        raise OutputError(f"{folder} comes and goes: another program removes it, look which")

    def _taken(self) -> bool:
        """False where the file that was locked is no longer the one of that name."""
        file = self._folder / _LOCK
        self._file = open(file, "a+b")  # noqa: SIM115  the lock is held while it is open
        is_mine: bool | None = False
        try:
            is_mine = _try_lock(self._file.fileno(), self._folder)
            if is_mine is None:
                self._take_by_name()
                return True
            if not is_mine:
                self._refuse(file)
            if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(file)):
                self._close()
                return False
            self._file.truncate(0)
            self._file.write(_me())
            self._file.flush()
        except BaseException:
            if is_mine:
                self.release(and_folder=True)
            self._close()
            raise
        return True

    def _take_by_name(self) -> None:
        file = self._folder / _OWNER
        for _ in range(10):
            try:
                handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if _is_alive(_text_of(file)):
                    self._refuse(file, f", or remove {file} if that is over")
                file.unlink(missing_ok=True)
                continue
            os.write(handle, _me())
            os.close(handle)
            self._owner = file
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
        names = [self._folder / _LOCK, *([self._owner] if self._owner else [])]
        if sys.platform == "win32":
            self._close()  # no open file can be removed there
        for name in names:
            with contextlib.suppress(OSError):
                name.unlink()
        if and_folder:
            with contextlib.suppress(OSError):  # something of the user's, or the next one is in it
                self._folder.rmdir()
            with contextlib.suppress(OSError):
                settle_folder(self._folder.parent)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


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
        if error.errno == errno.EDEADLK:
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
    if not number.isdecimal() or f"{os.getpid()} {host}\n".encode() != _me():
        return True
    if sys.platform == "win32":  # where this would end it; drives there have locks
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
