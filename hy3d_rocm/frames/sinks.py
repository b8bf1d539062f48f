"""Frames to files: an array, a video, a folder of pictures; and which of them a name asks for."""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from hy3d_rocm.files import is_held, settle, settle_folder
from hy3d_rocm.frames import video
from hy3d_rocm.frames.claim import PICTURES, Claim
from hy3d_rocm.frames.output import OutputError, Shape, Sink, output_errors, reserved, written

logger = logging.getLogger("hy3d_rocm")

# A kill costs at most so many frames; each segment of a video costs a key frame. x264's own
# distance between key frames is 250 at most, and 32 frames are a little more than a second.
SEGMENT_FRAMES = 32
_PASSED_BYTES = 8 << 20  # of an array, written before the pages are let go
_STORED = ("float16", "float32", "float64")  # what NumPy has, too
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


class _FileSink:
    """What all sinks of files share: the claim of the name; how a decode begins, goes on and ends.

    A file's kind is in _check(), _open(), _add(), _complete() and _drop().
    """

    _frames_at_once = 1  # that _add() is given, at most

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        self.path = path
        self.claim = claim or Claim(path)
        self._shape: Shape | None = None  # from begin() to the end
        self._plan: Mapping[str, Any] | None = None
        self._next: list[int] = []  # of each sample the first frame that is wanted
        self._is_published = False  # killed between the file's getting its name and the end
        self._is_counted = True  # False: frames are written to `buffer`

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        self._check(shape)
        if self._shape is None:
            self.claim.take()
        elif plan == self._plan:
            return
        else:
            self._drop()
            self.claim.clear()
        self._shape, self._plan = shape, plan
        try:
            done = self.claim.begin(shape, self._stored(dtype), plan)
            self._is_published, self._is_counted = self.claim.is_published, True
            self._next = [shape[2]] * shape[0]
            if not self._is_published:
                self._next = self._open(shape, dtype, done)
        except BaseException:
            self._end()
            raise

    def first_wanted(self, sample: int) -> int:
        return self._next[sample] if self._next else 0

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        self._opened()
        following = self._next[sample]
        if first > following:
            raise RuntimeError(
                f"frames {following} .. {first} were left out: frame {first} came next"
            )
        for at in range(following - first, frames.shape[2], self._frames_at_once):
            part = frames[:, :, at : at + self._frames_at_once]
            self._add(sample, self._next[sample], part)
            self._next[sample] += part.shape[2]

    def finish(self) -> Path:
        shape = self._opened()
        if not self._is_published:
            done, total = self._done(), shape[0] * shape[2]
            if self._is_counted and done != total:
                raise RuntimeError(f"{self.path}: {done} of {total} frames came")
            self.claim.publish(self._complete(shape))
        try:
            self.claim.clear()
        except OutputError as error:
            if not is_held(error.__cause__):
                raise
            logger.warning("%s is complete; what is left beside it stays: %s", self.path, error)
        self._end()
        return self.path

    def abort(self) -> None:
        if self._shape is None:
            return
        try:
            if self.claim.goes_on:
                self._keep()
                self._drop()
                logger.info("%s: stopped; %d frames are in %s, --resume goes on behind them",
                            self.path, self._done(), self.claim.folder)  # fmt: skip
            else:
                logger.info("%s: stopped, nothing is left", self.path)
        finally:
            self._end()

    def _end(self) -> None:
        self._drop()
        self._shape = None
        self.claim.release()

    @property
    def buffer(self) -> Tensor | None:
        return None

    @property
    def folder(self) -> Path:
        return self.claim.path.parent

    def _opened(self) -> Shape:
        if self._shape is None:
            raise RuntimeError("a sink was used before begin() or after its end")
        return self._shape

    def _done(self) -> int:
        """Frames that are there from the start, all samples one after another."""
        total = self._opened()[2]
        whole = next((b for b, n in enumerate(self._next) if n < total), len(self._next) - 1)
        return whole * total + self._next[whole]

    def _check(self, shape: Shape) -> None:
        """OutputError for frames that the file cannot hold, before anything is made."""

    def _stored(self, dtype: torch.dtype) -> str:
        """The type of the frames by name, as the manifest has it."""
        return str(dtype).removeprefix("torch.")

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        """Makes the file, or finds what is there of it; the first frame that each sample wants.
        done: frames that the manifest knows."""
        raise NotImplementedError

    def _add(self, sample: int, number: int, frames: Tensor) -> None:
        """frames (1, C, t, H, W), the next of `sample`."""
        raise NotImplementedError

    def _complete(self, shape: Shape) -> Path:
        """What is to have the name, complete and on the disk; all frames have come."""
        raise NotImplementedError

    def _keep(self) -> None:
        """Before a stop: what can be kept is on the disk."""

    def _drop(self) -> None:
        """Lets go of what is being written; those frames are wanted again."""


class MemmapSink(_FileSink):
    """Frames (B, C, T, H, W) in -1..1 as a .npy file of float16, float32 or float64; bfloat16,
    which NumPy lacks, becomes float32.

    All blocks of the file are reserved at begin(). Pages are let go as they are written, so the
    process does not grow with the file. Of a decode that can go on, frames are recorded once they
    are on the disk.
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        super().__init__(path, claim)
        self._data = self.claim.folder / "frames.npy"
        self._map: mmap.mmap | None = None
        self._file: IO[bytes] | None = None
        self._frames: Tensor | None = None
        self._is_exact = False  # the file has the frames' own type
        self._recorded = 0

    def _stored(self, dtype: torch.dtype) -> str:
        name = super()._stored(dtype)
        return name if name in _STORED else "float32"

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        stored = self._stored(dtype)
        self._is_exact = stored == super()._stored(dtype)
        if not self._is_exact:
            logger.info("%s: %s frames are stored as float32, NumPy has no such type",
                        self.path, dtype)  # fmt: skip
        if done and not self._data.exists():
            done = 0
            self.claim.record(done)  # before there is a file again, with nothing in it
        self._recorded = done
        frame_bytes = shape[1] * math.prod(shape[3:]) * np.dtype(stored).itemsize
        self._frames_at_once = max(_PASSED_BYTES // max(frame_bytes, 1), 1)
        with output_errors(self._data):
            if not done:
                npy.open_memmap(self._data, "w+", np.dtype(stored), tuple(shape))
            self._file = open(self._data, "r+b")  # noqa: SIM115  closed in _drop()
            try:
                npy.read_magic(self._file)
                found, _, kind = npy.read_array_header_1_0(self._file)
            except ValueError as error:
                raise OutputError(
                    f"{self._data} is damaged ({error}): start again with --restart"
                ) from error
            offset, size = self._file.tell(), os.fstat(self._file.fileno()).st_size
            if found != tuple(shape) or kind != np.dtype(stored):
                raise OutputError(f"{self._data} is of shape {found}: start again with --restart")
            if size != offset + math.prod(shape) * kind.itemsize:
                raise OutputError(
                    f"{self._data} is cut at {size} bytes: start again with --restart"
                )
            self._map = reserved(self._file, size)
        self._frames = torch.from_numpy(np.frombuffer(self._map, kind, offset=offset)).view(shape)
        return [min(max(done - b * shape[2], 0), shape[2]) for b in range(shape[0])]

    def host_bytes(self, shape: Shape) -> int:
        return max(_PASSED_BYTES, math.prod(shape[3:]) * shape[1] * 8) + (4 << 20)

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        super().put(sample, first, frames)
        if self.claim.goes_on and self._done() - self._recorded >= SEGMENT_FRAMES:
            self._record(self._done())

    def _add(self, sample: int, number: int, frames: Tensor) -> None:
        assert self._frames is not None
        assert self._map is not None
        self._frames[sample, :, number : number + frames.shape[2]].copy_(frames[0])
        if hasattr(mmap, "MADV_DONTNEED"):
            # Written pages leave this process (they stay in the system's cache, and get to disk).
            self._map.madvise(mmap.MADV_DONTNEED)

    def _record(self, done: int) -> None:
        assert self._map is not None
        with output_errors(self._data):
            self._map.flush()
            settle(self._file)
        self.claim.record(done)
        self._recorded = done

    def _complete(self, shape: Shape) -> Path:
        self._record(shape[0] * shape[2])
        self._drop()
        return self._data

    def _keep(self) -> None:
        if self._frames is not None:
            self._record(self._done())

    def _drop(self) -> None:
        self._frames = self._map = None  # unmapped with the last tensor that looks at it
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def buffer(self) -> Tensor | None:
        if self._frames is None or not self._is_exact:
            return None
        self._is_counted = False
        return self._frames


class _PictureSink(_FileSink):
    """Frames of one sample as pictures uint8 (H, W, 3)."""

    def _check(self, shape: Shape) -> None:
        if shape[0] != 1:
            raise OutputError(
                f"{self.path}: the frames {tuple(shape)} are {shape[0]} videos, which one file "
                "cannot hold; decode one sample (--sample 0), or name a .npy file, which holds all"
            )
        if shape[1] not in (1, 3):
            raise OutputError(
                f"{self.path}: the frames have {shape[1]} channels, a picture has 1 or 3; name a "
                ".npy file"
            )

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        super().put(sample, first, frames)
        if self._next[0] == self._opened()[2]:
            self.claim.record(self._next[0])


class VideoSink(_PictureSink):
    """A video file, encoded as the frames come; of a decode that can go on in segments of
    SEGMENT_FRAMES.

    Each segment has an encoder of its own, so it starts with a key frame and refers to nothing
    outside (a closed group of pictures), and its bytes depend on its frames and the settings alone.
    At the end all packets are copied into one file; nothing is encoded twice.
    """

    def __init__(
        self, path: Path, settings: video.VideoSettings, claim: Claim | None = None
    ) -> None:
        super().__init__(path, claim)
        self.settings = settings
        self._length = SEGMENT_FRAMES
        self._encoder: video.Encoder | None = None

    def _check(self, shape: Shape) -> None:
        super()._check(shape)
        video.require_av(self.path)

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        self._length = SEGMENT_FRAMES if self.claim.goes_on else shape[2]
        height, width = self.settings.stored_size(shape[3], shape[4])
        if (height, width) != tuple(shape[3:]):
            logger.warning(
                "%s: %dx%d is odd, which yuv420p cannot hold; the last row or column is repeated, "
                "%dx%d (yuv444p keeps the size)",
                self.path, shape[4], shape[3], width, height,
            )  # fmt: skip
        segments = self._segments()
        complete = next((n for n, file in enumerate(segments) if not self._is_whole(n, file)),
                        len(segments))  # fmt: skip
        following = min(complete * self._length, shape[2])
        if complete:
            logger.info("%s: %d of %d frames are there, in %d segments",
                        self.path, following, shape[2], complete)  # fmt: skip
        if following < shape[2]:
            self._encoder = self._encoder_of(segments[complete])
        return [following]

    def _encoder_of(self, file: Path) -> video.Encoder:
        height, width = self._opened()[3:]
        return video.Encoder(file, (height, width), self.settings)

    def _is_whole(self, number: int, file: Path) -> bool:
        """Not one that is there but cannot be read, as after a disk's failure."""
        if not file.is_file():
            return False
        found, wanted = video.count_frames(file), self._frames_of(number)
        if found != wanted:
            logger.warning("%s has %d frames of %d and is made again", file, found, wanted)
        return found == wanted

    def _frames_of(self, number: int) -> int:
        return min(self._length, self._opened()[2] - number * self._length)

    def _segments(self) -> list[Path]:
        suffix, count = self.path.suffix.lower(), math.ceil(self._opened()[2] / self._length)
        return [self.claim.folder / f"segment_{number:06d}{suffix}" for number in range(count)]

    def host_bytes(self, shape: Shape) -> int:
        return video.encoder_bytes(shape)

    def _add(self, sample: int, number: int, frames: Tensor) -> None:
        segment = number // self._length
        if self._encoder is None:
            self._encoder = self._encoder_of(self._segments()[segment])
        self._encoder.add(video.picture(frames))
        if self._encoder.frames == self._frames_of(segment):
            self._encoder.close()
            self._encoder = None

    def _complete(self, shape: Shape) -> Path:
        segments = self._segments()
        if not self.claim.goes_on:
            return segments[0]
        joined = self.claim.folder / f"joined{self.path.suffix.lower()}"
        video.join(segments, joined, self.settings.fps)
        return joined

    def _drop(self) -> None:
        if self._encoder is not None:
            self._encoder.drop()
            self._encoder = None
            self._next = [n - n % self._length for n in self._next]


class PngSink(_PictureSink):
    """A folder of frame_000000.png and so on, which has its name when all are there."""

    def _file(self, number: int) -> Path:
        return self.claim.folder / PICTURES / f"frame_{number:06d}.png"

    def _check(self, shape: Shape) -> None:
        super()._check(shape)
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise OutputError(
                f"PNG files in {self.path} need Pillow: pip install Pillow, or name a .npy file"
            ) from None

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        with output_errors(self.path):
            self._file(0).parent.mkdir(exist_ok=True)
        return [next((n for n in range(shape[2]) if not _is_whole_png(self._file(n))), shape[2])]

    def host_bytes(self, shape: Shape) -> int:
        return 2 * 4 * math.prod(shape[3:]) + (1 << 20)

    def _add(self, sample: int, number: int, frames: Tensor) -> None:
        from PIL import Image

        with written(self._file(number), self.path) as file:
            Image.fromarray(video.picture(frames)).save(file, format="PNG")

    def _complete(self, shape: Shape) -> Path:
        with output_errors(self.path):
            settle_folder(self._file(0).parent)
        return self._file(0).parent


def _is_whole_png(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-len(_PNG_END), os.SEEK_END)
            return file.read() == _PNG_END
    except OSError:
        return False


def sink_for(
    path: Path, *, fps: Fraction, crf: int = 18, pixel_format: str = "auto",
    claim: Claim | None = None, overwrite: bool = False,
) -> Sink:  # fmt: skip
    """The sink that `path`'s suffix asks for; OutputError for one that nobody writes.

    fps, crf, pixel_format: of a video (VideoSettings). claim: of `path`, where it is held already,
    or for a decode that can be killed and go on. overwrite: without a claim, as its own.
    """
    claim = claim or Claim(path, overwrite=overwrite)
    suffix = path.suffix.lower()
    if suffix in video.SUFFIXES:
        return VideoSink(path, video.VideoSettings(fps, crf, pixel_format), claim)
    if suffix == ".npy":
        return MemmapSink(path, claim)
    if suffix == "":
        return PngSink(path, claim)
    raise OutputError(
        f"{path}: nothing here writes {suffix} files; name a .mp4 or .mkv (video), a .npy (array) "
        "or a folder (PNG pictures)"
    )
