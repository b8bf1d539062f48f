"""Who writes an output: NAME.partial/ beside it, with a lock in it, until the output has its name.

Every decode into a file or folder holds the claim of it, whatever its flags, from before its first
frame until its last: another one is refused. What the decode makes lies in that folder and gets its
name at the end, which never replaces anything that was not there at the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hy3d_rocm.decode.frames.lock import NO_LOCKS, Lock
from hy3d_rocm.decode.frames.output import OutputError, partial_of, settle_folder, told

_FRAME = re.compile(r"frame_\d{6,}\.png(?:\.partial)?")
_NO_LINKS = {*NO_LOCKS, errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EACCES}

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
        self._lock: Lock | None = None
        self._replaced: Identity | None = None  # what has the name now and may be replaced

    def __enter__(self) -> Any:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self._held = min(self._held, 1)  # whoever did not release it is gone
        self.release()

    def take(self) -> None:
        if self._held == 0:
            with told(self.path):
                if self.path.suffix == "":
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.folder, self.path)
            try:
                with told(self.path):
                    self._begin()
                    self._check_target()
            except BaseException:
                self._give_back()
                raise
        self._held += 1

    def release(self) -> None:
        if self._held > 0:
            self._held -= 1
            if self._held == 0:
                self._give_back()

    def _give_back(self) -> None:
        """What is left is removed, unless it is good for going on."""
        lock, self._lock = self._lock, None
        if lock is not None:
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
        number = 2
        while True:
            other = self.path.with_name(f"{self.path.stem}_{number}{self.path.suffix}")
            if self._published(made, other, None):
                settle_folder(self.path.parent)
                return other
            number += 1

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
    number = 0
    while True:
        file = folder / f"frame_{number:06d}.png"
        try:
            with open(file, "rb") as opened:
                opened.seek(-12, os.SEEK_END)
                if opened.read() != b"\0\0\0\0IEND\xaeB`\x82":
                    return
        except OSError:
            return
        yield file
        number += 1
