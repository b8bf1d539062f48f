"""What a decode leaves so that it can be killed at any moment and go on: NAME.partial/.

    manifest.json         which job this is, how its frames are made, how many are done
    segment_000012.mp4    a video's complete segments, each with its own encoder
    frames.npy            an array's frames
    lock                  held by the process that writes

The manifest is written before the first frame. Everything gets its name when it is complete and on
the disk, so whatever is there under its name is good. A decode of another job, or one that makes
the frames in another way, is refused: frames of two kinds in one file would be no decode of either.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.frames.output import (
    OutputError,
    Shape,
    partial_of,
    publish,
    settle,
    settle_folder,
    told,
)

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

_FORMAT = 1
_OWN = ("manifest.json", "lock", "frames.npy")
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


class Parts:
    """The folder of a decode into `path` that can go on. Use as a context: it holds the lock.

    job: what makes the frames, JSON-able (fingerprints, precision, versions, output settings);
    one that differs from the recorded job is an OutputError that says in what. restart: what is
    there is thrown away instead.
    """

    def __init__(self, path: Path, job: Mapping[str, Any], *, restart: bool = False) -> None:
        self.path = path
        self.folder = partial_of(path)
        self.job = _plain(job)
        self.restart = restart
        self._manifest: dict[str, Any] = {}
        self._lock: Any = None

    def __enter__(self) -> Parts:
        with told(self.path):
            if self.folder.is_file():  # of a run without --resume that was killed
                self.folder.unlink()
            self.folder.mkdir(exist_ok=True)
            self._lock = _locked(self.folder / "lock", self.path)
        try:
            self._manifest = self._read()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _read(self) -> dict[str, Any]:
        file = self.folder / "manifest.json"
        if self.restart:
            self._clear()
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self._clear()  # nothing was ever begun
            return {}
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{file} cannot be read ({error}): --restart starts from scratch"
            ) from error
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise OutputError(
                f"{file} is of another version of this program: --restart starts from scratch"
            )
        self._compare(found)
        return found

    def _compare(self, found: Mapping[str, Any]) -> None:
        other = found.get("job", {})
        names = sorted(set(other) | set(self.job))
        differ = [n for n in names if other.get(n) != self.job.get(n)]
        if differ:
            raise OutputError(
                f"{self.folder} belongs to another decode, it differs in {', '.join(differ)} "
                f"({_told_apart(other, self.job, differ[0])}): --restart throws it away and starts "
                "from scratch"
            )

    @property
    def plan(self) -> dict[str, Any] | None:
        """How the frames that are there were made; None where nothing is there."""
        return self._manifest.get("plan")

    @property
    def is_complete(self) -> bool:
        """Whether all frames are there and only the file at the end is missing."""
        shape = self.shape
        return shape is not None and int(self._manifest["done"]) == shape[0] * shape[2]

    @property
    def shape(self) -> Shape | None:
        """Of all frames, where a decode has begun."""
        known = self._manifest.get("shape")
        return None if known is None else tuple(known)

    @property
    def stored(self) -> str | None:
        """The type of all frames by name, where a decode has begun."""
        return self._manifest.get("dtype")

    def settle(self, shape: Shape, stored: str, plan: Mapping[str, Any] | None) -> int:
        """The decode begins or goes on; frames recorded as done. OutputError where what is
        there was made in another way."""
        now = {"shape": list(shape), "dtype": stored, "plan": _plain(plan or {})}
        if self._manifest:
            for name, value in now.items():
                if self._manifest[name] != value:
                    raise OutputError(
                        f"{self.folder} was decoded with {name} {_short(self._manifest[name])}, "
                        f"now it is {_short(value)}: give the same budget and strategy as then, or "
                        "--restart"
                    )
            return int(self._manifest["done"])
        self._manifest = {"format": _FORMAT, "job": self.job, **now, "done": 0}
        self._write()
        return 0

    def is_made_by(self, plan: Mapping[str, Any] | None) -> bool:
        """Whether what is there is made as `plan` says."""
        return self.plan == _plain(plan or {})

    def begin_again(self, shape: Shape, stored: str, plan: Mapping[str, Any] | None) -> None:
        """Throws away what is there: all frames will be made as `plan` says."""
        self._clear()
        self._manifest = {}
        self.settle(shape, stored, plan)

    def record(self, done: int) -> None:
        """`done` frames from the start are on the disk."""
        self._manifest["done"] = done
        self._write()

    def _write(self) -> None:
        file = self.folder / "manifest.json"
        partial = partial_of(file)
        with told(file):
            with open(partial, "w", encoding="utf-8") as opened:
                json.dump(self._manifest, opened, indent=1)
                settle(opened)
            publish(partial, file)

    def remove(self) -> None:
        """The decode is complete: nothing of the folder is needed."""
        self._clear()
        with told(self.folder):
            (self.folder / "lock").unlink(missing_ok=True)
            if not any(self.folder.iterdir()):  # else something of the user's is in it
                self.folder.rmdir()
            settle_folder(self.path.parent)
        self._manifest = {}

    def _clear(self) -> None:
        with told(self.folder):
            # The manifest goes first: segments without one are thrown away, never mixed up.
            (self.folder / "manifest.json").unlink(missing_ok=True)
            settle_folder(self.folder)
            for file in list(self._own_files()):
                file.unlink(missing_ok=True)

    def _own_files(self) -> Iterator[Path]:
        for file in self.folder.iterdir():
            name = file.name.removesuffix(".partial")
            if name != "lock" and (name in _OWN or name.startswith(("segment_", "joined."))):
                yield file


def _locked(file: Path, path: Path) -> Any:
    """The open, locked file; a process that dies gives the lock back."""
    opened = open(file, "w")  # noqa: SIM115  the lock is held while it is open
    try:
        import fcntl
    except ImportError:
        return opened
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        raise OutputError(f"{path} is being written by another process: wait for it") from None
    except OSError as error:  # a network drive that knows no locks
        logger.warning("%s cannot be locked (%s): start no second decode of it", path, error)
    return opened


def tensor_fingerprint(tensor: Tensor) -> str:
    """sha256 of a CPU tensor's type, shape and bytes."""
    import torch

    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)} ".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_fingerprint(file: Path) -> str:
    """sha256 of a file's size and of blocks spread over it, the first and the last among them;
    all of a small one. A weight file of some GB takes milliseconds."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(file, "rb") as opened:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(opened.read())
        else:
            for i in range(_SAMPLES):
                opened.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def files_fingerprint(files: list[Path]) -> str:
    """One fingerprint of several files, by name and content."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda f: f.name):
        digest.update(f"{file.name} {file_fingerprint(file)}\n".encode())
    return digest.hexdigest()


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _told_apart(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    return f"{name}: {_short(then.get(name))} then, {_short(now.get(name))} now"


def folder_is_left(path: Path) -> bool:
    """Whether a decode into `path` can go on."""
    return os.path.isfile(partial_of(path) / "manifest.json")
