"""What takes decoded frames, and how a file is written; the sinks themselves are in sinks.py.

Whoever decodes calls begin() once the shape is known, put() with frames as they are done, and at
the end finish(), or abort() after whatever went wrong. What is written lies in NAME.partial/
(claim.py) and gets its name when it is complete and on the disk: under its own name it is whole.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from hy3d_rocm.files import SHARING, replacing, settle, settle_folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, ...]  # (B, C, T, H, W)


class OutputError(OSError):
    """Frames cannot be written where they were to go. The text says what to do."""


class Sink(Protocol):
    """Takes the frames of one decode, values in -1..1: whole ones, those of a sample in order of
    time. Frames that the sink has already are dropped."""

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        """shape, dtype: of all frames. plan: how they are made, JSON-able. A killed decode that
        goes on must be made as it was begun, or OutputError says so. Called again: with the same
        plan, nothing happens; with another one (after a fallback), what is there is thrown away, so
        that all frames are of one making."""

    def host_bytes(self, shape: Shape) -> int:
        """Host memory taken for frames of this shape, at most, beside the frames given; a result
        that is kept in memory included. To be planned for before begin()."""

    def first_wanted(self, sample: int) -> int:
        """The first frame that is still wanted; all before it need not be decoded."""

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        """frames (1, C, t, H, W), on any device, are the frames from `first` on of `sample`."""

    def finish(self) -> Any:
        """The tensor, or the path that is now complete."""

    def abort(self) -> None:
        """Lets go. What is left, and what it is good for, is logged."""

    @property
    def buffer(self) -> Tensor | None:
        """All frames as a CPU tensor (B, C, T, H, W) of the frames' type that may be written in
        place instead of put(), for tiles that are added up; None where there is none."""

    @property
    def folder(self) -> Path | None:
        """Where there is room for the like of it (scratch); None for what is in memory."""


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """An OSError while `path` is written becomes an OutputError that says what it means."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {_reason(path, error)}") from error


_REASONS = {
    (errno.ENOSPC, errno.EDQUOT):
        "the disk is full ({error}); make room, or name a file on another disk",
    (errno.EROFS, errno.EACCES, errno.EPERM):
        "{folder} does not let this user write ({error}); name another folder",
    (errno.ENOENT,): "the folder {folder} does not exist; make it first",
    (errno.EISDIR,): "a folder has that name; remove it, or choose another name",
    (errno.ENOTDIR,): "{folder} is no folder; name one that is",
    (errno.ENAMETOOLONG,): "the name, or the path to it, is too long; choose a shorter one",
    (errno.ELOOP,): "a link in its path leads to itself; name the folder that is meant",
}  # fmt: skip


def _reason(path: Path, error: OSError) -> str:
    if getattr(error, "winerror", None) in SHARING:
        return f"a program has {error.filename or path} open ({error.strerror}); close it first"
    for numbers, text in _REASONS.items():
        if error.errno in numbers:
            return text.format(folder=path.parent, error=error.strerror)
    return f"{error.strerror or error}"


@contextmanager
def written(path: Path, output: Path | None = None) -> Iterator[IO[bytes]]:
    """An open file that gets its name when it is complete and on the disk. OutputError, and nothing
    is left, where that fails.

    output: what the file is one of many of: errors name it, and its folder is settled by whoever
    has written them all.
    """
    with output_errors(output or path):
        with replacing(path) as partial, open(partial, "wb") as file:
            yield file
            settle(file)
        if output is None:
            settle_folder(path.parent)


def scratch(folder: Path, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Zeros on the disk instead of in memory, in a file without a name in `folder`: for tiles of a
    video that is written when all are added up. It goes with its last tensor, also in a kill."""
    import torch

    with output_errors(folder / "scratch"), tempfile.TemporaryFile(dir=folder) as file:
        mapped = reserved(file, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)


def reserved(file: IO[bytes], size: int) -> mmap.mmap:
    """The open file, mapped, with all its blocks: on a disk that fills up, writing to mapped memory
    kills the process instead of failing."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
    return mmap.mmap(file.fileno(), size)
