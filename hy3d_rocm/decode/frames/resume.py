"""What a decode leaves so that it can be killed at any moment and go on: NAME.partial/.

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

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hy3d_rocm.decode.frames.claim import Claim, Identity, identity
from hy3d_rocm.decode.frames.fingerprints import FileFingerprints
from hy3d_rocm.decode.frames.output import OutputError, Shape, partial_of, publish, settle, told

logger = logging.getLogger("hy3d_rocm")

_FORMAT = 2


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

    def __enter__(self) -> Parts:
        self.take()
        return self

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
        files = {"files": self.files.as_dict()}
        self._manifest = {"format": _FORMAT, "job": self.job, **now, "done": 0, **files}
        self._write()
        return 0

    def is_made_by(self, plan: Mapping[str, Any] | None) -> bool:
        """Whether what is there is made as `plan` says."""
        return self.plan == _plain(plan or {})

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


def _told_apart(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    return f"{name}: {_short(then.get(name))} then, {_short(now.get(name))} now"


def folder_is_left(path: Path) -> bool:
    """Whether a decode into `path` can go on."""
    try:
        return os.path.isfile(partial_of(path) / "manifest.json")
    except ValueError:  # no name of a file
        return False
