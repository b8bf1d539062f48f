"""What a decode leaves so that it can be killed at any moment and go on: NAME.partial/, and the
fingerprints of latents and files, of every byte, that a decode which goes on is known by.

    manifest.json         which job this is, how its frames are made, how many are done
    segment_000012.mp4    a video's complete segments, each with its own encoder
    frames.npy            an array's frames
    pictures/             frame_000000.png and so on
    lock                  held by the process that writes (claim.py)

The manifest is written before the first frame. Everything gets its name when it is complete and on
the disk, so whatever is there under its name is good. A decode of another job, or one that makes
the frames in another way, is refused: frames of two kinds in one file would be no decode of either.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm import _native
from hy3d_rocm.decode.frames.claim import Claim, Identity, identity
from hy3d_rocm.decode.frames.output import OutputError, Shape, partial_of, publish, settle, told

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = 2
_PIECE_BYTES = 64 << 20  # of a file, read at a time
# A file that was written so shortly before may be written once more within one tick of its time.
_SETTLED_NS = 2_000_000_000


class Parts(Claim):
    """The claim of a decode into `path` that can go on.

    job: what makes the frames, JSON-able (fingerprints, precision, versions, output settings), or
    a function that gives it once the lock is held; one that differs from the recorded job is an
    OutputError that says in what. restart: what is there is thrown away instead. files: whose
    fingerprints the job has; they are kept, too.
    """

    def __init__(
        self, path: Path, job: Mapping[str, Any] | Callable[[], Mapping[str, Any]], *,
        restart: bool = False, overwrite: bool = False, files: FileFingerprints | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, overwrite=overwrite)
        self._make_job = job
        self.job: dict[str, Any] = {}
        self.restart = restart
        self.files = files or FileFingerprints()
        self._manifest: dict[str, Any] = {}

    def _begin(self) -> None:
        found = self._read()
        self.files.known = found.get("files", {})
        self.job = _plain(self._make_job() if callable(self._make_job) else self._make_job)
        if found:
            self._compare(found)
        self._manifest = found

    def _is_made_here(self, found: Identity) -> bool:
        return list(found) == self._manifest.get("made")

    @property
    def is_published(self) -> bool:
        """Whether the output has its name: a kill came between that and the folder's end."""
        found = identity(self.path)
        return found is not None and self._is_made_here(found)

    def _before_publishing(self, made: Path) -> None:
        self._manifest["made"] = identity(made)
        self._write()

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
        return found

    def _compare(self, found: Mapping[str, Any]) -> None:
        other = found.get("job", {})
        names = sorted(set(other) | set(self.job))
        differ = [n for n in names if other.get(n) != self.job.get(n)]
        if differ:
            name = differ[0]
            raise OutputError(
                f"{self.folder} belongs to another decode, it differs in {', '.join(differ)} "
                f"({name}: {_short(other.get(name))} then, {_short(self.job.get(name))} now): "
                "--restart throws it away and starts from scratch"
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
        self._manifest = {
            "format": _FORMAT, "job": self.job, **now, "done": 0, "files": self.files.as_dict(),
        }  # fmt: skip
        self._write()
        return 0

    def begin_again(self, shape: Shape, stored: str, plan: Mapping[str, Any] | None) -> None:
        """Throws away what is there: all frames will be made as `plan` says."""
        with told(self.folder):
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
        with told(self.folder):
            self._clear()
        self._manifest = {}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."


def folder_is_left(path: Path) -> bool:
    """Whether a decode into `path` can go on."""
    try:
        return os.path.isfile(partial_of(path) / "manifest.json")
    except ValueError:  # no name of a file
        return False


def tensor_fingerprint(tensor: Tensor) -> str:
    """sha256 of a CPU tensor's type, shape and bytes."""
    import torch

    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)} ".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_fingerprint(file: Path) -> str:
    """Of all bytes of a file: sha256 over the C core's fingerprints of its pieces, whose chance to
    be equal for other bytes is below 2^-63 each (without the core: sha256 of the bytes)."""
    import numpy as np

    digest = hashlib.sha256(str(file.stat().st_size).encode())
    piece = np.empty(_PIECE_BYTES, np.uint8)
    with open(file, "rb") as opened:
        while count := opened.readinto(piece.data):
            if _native.available:
                piece[count : count + 4] = 0  # whole words; the size tells their end
                words = piece[: -(-count // 4) * 4].view(np.float32)
                digest.update(repr(_native.fingerprint(words)).encode())
            else:
                digest.update(piece[:count].data)
    return ("core " if _native.available else "sha256 ") + digest.hexdigest()


class FileFingerprints:
    """Fingerprints of files. known: what as_dict() gave in an earlier process; a file whose size,
    times and place on the disk are those of then is not read again."""

    def __init__(self) -> None:
        self.known: Mapping[str, Any] = {}
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, files: list[Path]) -> str:
        """One fingerprint of several files, by name and content."""
        digest = hashlib.sha256()
        for file in sorted(files, key=lambda f: f.name):
            digest.update(f"{file.name} {self._one(file)}\n".encode())
        return digest.hexdigest()

    def _one(self, file: Path) -> str:
        key = os.path.abspath(file)
        state = _state(file)
        then = self.known.get(key)
        if not isinstance(then, dict) or then.get("state") != state or not _is_settled(then):
            began = time.time_ns()
            then = {"state": state, "read": began, "fingerprint": file_fingerprint(file)}
        self._found[key] = then
        return str(then["fingerprint"])

    def changed(self) -> Path | None:
        """A file that is another one now than when its fingerprint was taken."""
        for name, then in self._found.items():
            if _state(Path(name)) != then["state"]:
                return Path(name)
        return None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(self._found)


def _state(file: Path) -> list[int]:
    """Also what nobody can set back: the time of the last change of anything of the file."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _is_settled(then: Mapping[str, Any]) -> bool:
    changed = max(then["state"][1:3])
    return isinstance(then.get("read"), int) and then["read"] - changed > _SETTLED_NS
