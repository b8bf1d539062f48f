"""Where decoded frames go: a tensor, a memory-mapped .npy file, a video file, a folder of pictures.

Whoever decodes calls begin() once the shape is known, put() with frames as they are done, and at
the end finish(), or abort() after whatever went wrong. A file is written beside its place, as
NAME.partial, and renamed when it is complete and on the disk: under its own name it is whole.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from fractions import Fraction

    from torch import Tensor

    from hy3d_rocm.decode.frames.resume import Parts

logger = logging.getLogger("hy3d_rocm")

Shape = tuple[int, ...]  # (B, C, T, H, W)
ALL = slice(None)

VIDEO_SUFFIXES = {".mp4": "mp4", ".mkv": "matroska"}
ARRAY_SUFFIX = ".npy"


class OutputError(OSError):
    """Frames cannot be written where they were to go. The text says what to do."""


class Sink(Protocol):
    """Takes the frames of one decode, values in -1..1.

    Frames of a sample come in order of time; those that the sink has already are dropped. Spatial
    parts go to tensors and arrays only: for a video, tiles are put together first.
    """

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        """shape, dtype: of all frames. plan: how they are made, JSON-able. A killed decode that
        goes on must be made as it was begun, or OutputError says so. Called again: with the same
        plan, nothing happens; with another one (a ladder that steps down), what is there is thrown
        away, so that all frames are of one making."""

    def host_bytes(self, shape: Shape) -> int:
        """Host memory taken for frames of this shape, at most, beside the frames given; a result
        that is kept in memory included. To be planned for before begin()."""

    def first_wanted(self, sample: int) -> int:
        """The first frame that is still wanted; all before it need not be decoded."""

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        """frames (1, C, t, h, w), on any device, are the frames from `first` on of `sample`."""

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
        """Where there is room for the like of it (arrays.scratch); None for what is in memory."""


class TensorSink:
    """Frames in a CPU tensor, allocated at begin() or the caller's own."""

    def __init__(self, out: Any = None) -> None:
        self._out: Tensor | None = out
        self._next: list[int] = []
        self._plan: Mapping[str, Any] | None = None

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        """See Sink. Raises TypeError or ValueError for an `out` that does not fit."""
        if self._out is None:
            self._out = torch.empty(shape, dtype=dtype)
        check_out(self._out, shape, dtype)
        if not self._next or plan != self._plan:
            self._next = [0] * shape[0]
        self._plan = plan

    def host_bytes(self, shape: Shape) -> int:
        return 0 if self._out is not None else math.prod(shape) * 4

    def first_wanted(self, sample: int) -> int:
        return self._next[sample]

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        stop = first + frames.shape[2]
        self._tensor()[sample : sample + 1, :, first:stop, rows, columns].copy_(frames)
        if (rows, columns) == (ALL, ALL) and first <= self._next[sample]:
            self._next[sample] = max(stop, self._next[sample])

    def finish(self) -> Tensor:
        return self._tensor()

    def abort(self) -> None:
        self._next = [0] * len(self._next)

    @property
    def buffer(self) -> Tensor | None:
        return self._out

    @property
    def folder(self) -> Path | None:
        return None

    def _tensor(self) -> Tensor:
        if self._out is None:
            raise RuntimeError("a sink was used before begin()")
        return self._out


def check_out(out: Any, shape: Shape, dtype: torch.dtype) -> None:
    """TypeError or ValueError unless `out` can hold the frames."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is a {type(out).__name__}: pass a torch tensor on the CPU, or None")
    if tuple(out.shape) != tuple(shape):
        raise ValueError(
            f"out has shape {tuple(out.shape)}, but the frames are {tuple(shape)} "
            "(B, C, T, H, W): allocate that"
        )
    if out.dtype != dtype:
        raise ValueError(f"out is {out.dtype}, but the frames are {dtype}: allocate that type")
    if out.device.type != "cpu":
        raise ValueError(f"out is on {out.device}: frames go to the CPU, pass a tensor there")
    if not out.is_contiguous():
        raise ValueError(
            f"out has strides {out.stride()}, it is a view: pass a contiguous tensor, or copy "
            "from one afterwards"
        )
    if out.requires_grad:
        raise ValueError("out requires a gradient: pass out.detach(), a decode has none")


class PngSink:
    """A folder of frame_000000.png and so on; each file is whole under its name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._next = 0
        self._plan: Mapping[str, Any] | None = None

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        from hy3d_rocm.decode.frames.video import check_picture

        check_picture(shape, self.path)
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise OutputError(
                f"PNG files in {self.path} need Pillow: pip install Pillow, or name a .npy file"
            ) from None
        with told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if plan != self._plan:
            self._next = 0
        self._plan = plan

    def host_bytes(self, shape: Shape) -> int:
        return 2 * 4 * math.prod(shape[3:]) + (1 << 20)

    def first_wanted(self, sample: int) -> int:
        return self._next

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        from PIL import Image

        from hy3d_rocm.decode.frames.video import new_frames, pictures

        for picture in pictures(new_frames(first, frames, rows, columns, self._next)):
            path = self.path / f"frame_{self._next:06d}.png"
            partial = partial_of(path)
            with told(path):
                Image.fromarray(picture).save(partial, format="PNG")
                os.replace(partial, path)
            self._next += 1

    def finish(self) -> Path:
        logger.info("%s: %d pictures", self.path, self._next)
        return self.path

    def abort(self) -> None:
        partial_of(self.path / f"frame_{self._next:06d}.png").unlink(missing_ok=True)
        logger.info("%s: stopped after %d pictures, which stay", self.path, self._next)

    @property
    def buffer(self) -> Tensor | None:
        return None

    @property
    def folder(self) -> Path:
        return self.path


def sink_for(
    path: Path, *, fps: Fraction, crf: int = 18, pixel_format: str = "auto",
    parts: Parts | None = None,
) -> Sink:  # fmt: skip
    """The sink that `path`'s suffix asks for; OutputError for one that nobody writes.

    fps, crf, pixel_format: of a video (VideoSettings). parts: an open Parts folder, for a decode
    that can be killed and go on.
    """
    from hy3d_rocm.decode.frames import arrays, segments, video

    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        settings = video.VideoSettings(fps, crf, pixel_format)
        if parts is not None:
            return segments.SegmentSink(path, settings, parts)
        return video.VideoSink(path, settings)
    if suffix == ARRAY_SUFFIX:
        return arrays.MemmapSink(path, parts)
    if suffix == "":
        if parts is not None:
            raise OutputError(f"{path}: a folder of pictures cannot be resumed; name a .mp4 file")
        return PngSink(path)
    raise OutputError(
        f"{path}: nothing here writes {suffix} files; name a .mp4 or .mkv (video), a .npy (array) "
        "or a folder (PNG pictures)"
    )


def partial_of(path: Path) -> Path:
    """Where `path` is written until it is complete."""
    return path.with_name(path.name + ".partial")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """An OSError while `path` is written becomes an OutputError that says what it means."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {_reason(path, error)}") from error


def _reason(path: Path, error: OSError) -> str:
    import errno

    folder = path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.strerror}); make room, or name a file on another disk"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{folder} does not let this user write ({error.strerror}); name another folder"
    if error.errno == errno.ENOENT:
        return f"the folder {folder} does not exist; make it first"
    if error.errno == errno.EISDIR:
        return "a folder has that name; remove it, or choose another name"
    return f"{error.strerror or error}"


def settle(file: Any) -> None:
    """What was written to the open `file` is on the disk afterwards."""
    file.flush()
    os.fsync(file.fileno())


def publish(partial: Path, path: Path) -> None:
    """partial, complete and on the disk, gets its name; the folder's entry is on the disk, too."""
    os.replace(partial, path)
    settle_folder(path.parent)


def settle_folder(folder: Path) -> None:
    """The folder's entries are on the disk afterwards, where the system can say that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
