"""The lock in NAME.partial/: one process or thread at a time has it, a killed one gives it back."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import threading
from pathlib import Path
from typing import IO

from hy3d_rocm.files import patiently, settle_folder
from hy3d_rocm.frames.output import OutputError

_LOCK, _OWNER = "lock", "owner"
_LOCK_SECONDS = 10.0  # a network drive whose server of locks is gone never answers
# What a drive without them says of locks.
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


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
        return None if error.errno in NO_LOCKS else error
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
