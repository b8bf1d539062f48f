"""Frames to files: an array, a video, a folder of pictures; and which of them a name asks for."""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.frames import video
from hy3d_rocm.decode.frames.claim import Claim, good_pictures
from hy3d_rocm.decode.frames.output import (
    ALL,
    OutputError,
    Shape,
    Sink,
    partial_of,
    publish,
    settle,
    settle_folder,
    told,
)
from hy3d_rocm.decode.frames.resume import Parts

if TYPE_CHECKING:
    from fractions import Fraction

    import torch
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

# A kill costs at most so many frames; each segment of a video costs a key frame. x264's own
# distance between key frames is 250 at most, and 32 frames are a little more than a second.
SEGMENT_FRAMES = 32
_PASSED_BYTES = 8 << 20  # of an array, written before the pages are let go
_STORED = ("float16", "float32", "float64")  # what NumPy has, too


class _FileSink:
    """What all sinks of files share: the claim of the name; how a decode begins, goes on and ends.

    claim: of `path`; Parts, for a decode that can be killed and go on. A file's kind is in
    _check(), _open(), put(), _complete(), _kept() and _drop().
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        self.path = path
        self.claim = claim or Claim(path)
        self.parts = claim if isinstance(claim, Parts) else None
        self._shape: Shape | None = None  # from begin() to the end
        self._plan: Mapping[str, Any] | None = None
        self._next: list[int] = []  # of each sample the first frame that is wanted
        self._is_published = False

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        self._check(shape)
        stored = self._stored(dtype)
        if self._shape is None:
            self.claim.take()
        elif plan == self._plan:
            return
        else:
            self._drop()
            if self.parts is not None:
                self.parts.begin_again(shape, stored, plan)
        self._shape, self._plan = shape, plan
        try:
            done = 0 if self.parts is None else self.parts.settle(shape, stored, plan)
            # Killed between the file's getting its name and the folder's end.
            self._is_published = (
                self.parts is not None and done == shape[0] * shape[2] and self.parts.is_published
            )
            self._next = [shape[2]] * shape[0]
            if not self._is_published:
                self._next = self._open(shape, dtype, done)
        except BaseException:
            self._drop()
            self._release()
            raise

    def first_wanted(self, sample: int) -> int:
        return self._next[sample] if self._next else 0

    def finish(self) -> Path:
        shape = self._opened()
        if not self._is_published:
            self.claim.publish(self._complete(shape))
        if self.parts is not None:
            self.parts.remove()
        self._release()
        return self.path

    def abort(self) -> None:
        if self._shape is None:
            return
        try:
            kept = self._kept()
            if self.parts is None:
                logger.info("%s: stopped, nothing is left", self.path)
            else:
                logger.info("%s: stopped; %d frames are in %s, --resume goes on behind them",
                            self.path, kept, self.parts.folder)  # fmt: skip
        finally:
            self._drop()
            self._release()

    def _release(self) -> None:
        self._shape = None
        self.claim.release()

    @property
    def buffer(self) -> Tensor | None:
        return None

    @property
    def folder(self) -> Path:
        return self.path.parent

    def _opened(self) -> Shape:
        if self._shape is None:
            raise RuntimeError("a sink was used before begin() or after its end")
        return self._shape

    def _came(self, count: int, total: int) -> None:
        if count != total:
            raise RuntimeError(f"{self.path}: {count} of {total} frames came")

    def _check(self, shape: Shape) -> None:
        """OutputError for frames that the file cannot hold, before anything is made."""

    def _stored(self, dtype: torch.dtype) -> str:
        """The type of the frames by name, as the manifest has it."""
        return str(dtype).removeprefix("torch.")

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        """Makes the file, or finds what is there of it; the first frame that each sample wants.
        done: frames that the manifest knows."""
        raise NotImplementedError

    def _complete(self, shape: Shape) -> Path:
        """What is to have the name, complete and on the disk; RuntimeError where frames miss."""
        raise NotImplementedError

    def _kept(self) -> int:
        """Before a stop: what can be kept is on the disk; so many frames."""
        return self._next[0]

    def _drop(self) -> None:
        """Lets go of what is being written."""


class MemmapSink(_FileSink):
    """Frames (B, C, T, H, W) in -1..1 as a .npy file of float16, float32 or float64; bfloat16,
    which NumPy lacks, becomes float32.

    All blocks of the file are reserved at begin(): on a disk that fills up, writing to mapped
    memory kills the process instead of failing. Pages are let go as they are written, so the
    process does not grow with the file. With Parts, frames that came whole and in order are
    recorded there once they are on the disk.
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        super().__init__(path, claim)
        self._data = self.claim.folder / "frames.npy"
        self._map: mmap.mmap | None = None
        self._file: Any = None
        self._frames: Tensor | None = None
        self._dtype: torch.dtype | None = None
        self._recorded = 0
        self._in_order = True  # nothing but whole frames by put()

    def _stored(self, dtype: torch.dtype) -> str:
        name = super()._stored(dtype)
        return name if name in _STORED else "float32"

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        stored = self._stored(dtype)
        if stored != super()._stored(dtype):
            logger.info("%s: %s frames are stored as float32, NumPy has no such type",
                        self.path, dtype)  # fmt: skip
        self._dtype, self._in_order = dtype, True
        if self.parts is not None and done and not self._data.exists():
            done = 0
            self.parts.record(done)  # before there is a file again, with nothing in it
        self._recorded = done
        with told(self._data):
            self._map_file(shape, stored, keep=done > 0)
        return [min(max(done - b * shape[2], 0), shape[2]) for b in range(shape[0])]

    def _map_file(self, shape: Shape, stored: str, *, keep: bool) -> None:
        import numpy as np
        import torch

        if not keep:
            np.lib.format.open_memmap(self._data, "w+", np.dtype(stored), tuple(shape))
        self._file = open(self._data, "r+b")  # noqa: SIM115  closed in _drop()
        found, kind = self._header()
        offset = self._file.tell()
        if found != tuple(shape) or kind != np.dtype(stored):
            raise OutputError(f"{self._data} is of shape {found}: start again with --restart")
        size = os.fstat(self._file.fileno()).st_size
        if size != offset + math.prod(shape) * kind.itemsize:
            raise OutputError(f"{self._data} is cut at {size} bytes: start again with --restart")
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, size)
        self._map = mmap.mmap(self._file.fileno(), size)
        array = np.frombuffer(self._map, kind, offset=offset).reshape(shape)
        self._frames = torch.from_numpy(array)

    def _header(self) -> tuple[tuple[int, ...], Any]:
        """Shape and type of the open file, which is then behind them."""
        from numpy.lib import format as npy

        try:
            version = npy.read_magic(self._file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, _, kind = read(self._file)
        except ValueError as error:
            raise OutputError(
                f"{self._data} is damaged ({error}): start again with --restart"
            ) from error
        return tuple(found), kind

    def host_bytes(self, shape: Shape) -> int:
        return max(_PASSED_BYTES, math.prod(shape[3:]) * shape[1] * 8) + (4 << 20)

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        if self._is_published:
            return
        whole = (rows, columns) == (ALL, ALL)
        stop = first + frames.shape[2]
        if whole and first < self._next[sample]:  # there already
            frames = frames[:, :, self._next[sample] - first :]
            first = min(self._next[sample], stop)
        self._in_order &= whole
        self._opened()
        assert self._frames is not None
        assert self._map is not None
        place = self._frames[sample : sample + 1, :, first:stop, rows, columns]
        frame_bytes = place[:, :, :1].numel() * place.element_size()
        step = max(_PASSED_BYTES // max(frame_bytes, 1), 1)
        for at in range(0, place.shape[2], step):
            place[:, :, at : at + step].copy_(frames[:, :, at : at + step])
            if hasattr(mmap, "MADV_DONTNEED"):
                # Written pages leave this process (they stay in the system's cache, and get to
                # disk).
                self._map.madvise(mmap.MADV_DONTNEED)
        if whole and first == self._next[sample]:
            self._next[sample] = max(stop, first)
        if self.parts is not None and self._done() - self._recorded >= SEGMENT_FRAMES:
            self._record(self._done())

    def _done(self) -> int:
        """Frames that are there from the start, all samples one after another."""
        total = self._opened()[2]
        count = 0
        for following in self._next:
            count += following
            if following < total:
                break
        return count

    def _record(self, done: int) -> None:
        assert self._map is not None
        with told(self._data):
            self._map.flush()
            settle(self._file)
        if self.parts is not None:
            self.parts.record(done)
        self._recorded = done

    def _complete(self, shape: Shape) -> Path:
        count = shape[0] * shape[2]
        if self._in_order:
            self._came(self._done(), count)
        self._record(count)
        self._drop()
        return self._data

    def _kept(self) -> int:
        if self._frames is not None and self.parts is not None:
            self._record(self._done())
        return self._recorded

    def _drop(self) -> None:
        self._frames = self._map = None  # unmapped with the last tensor that looks at it
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def buffer(self) -> Tensor | None:
        if self._frames is None or self._frames.dtype != self._dtype:
            return None
        self._in_order = False
        return self._frames


class _PictureSink(_FileSink):
    """Whole frames of one sample, in order, as pictures uint8 (H, W, 3)."""

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

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        total = self._opened()[2]
        if (rows, columns) != (ALL, ALL):
            raise OutputError(
                "parts of pictures were given where whole ones are written; put tiles together "
                "first, or name a .npy file"
            )
        if first > self._next[0]:
            raise RuntimeError(
                f"frames {self._next[0]} .. {first} were left out: frame {first} came next"
            )
        for picture in video.pictures(frames[:, :, self._next[0] - first :]):
            self._add(picture, self._next[0])
            self._next[0] += 1
            if self.parts is not None and self._next[0] == total:
                self.parts.record(total)

    def _add(self, picture: Any, number: int) -> None:
        raise NotImplementedError


class VideoSink(_PictureSink):
    """A video file, encoded as the frames come; with Parts in segments of SEGMENT_FRAMES.

    Each segment has an encoder of its own, so it starts with a key frame and refers to nothing
    outside (a closed group of pictures), and its bytes depend on its frames and the settings alone.
    At the end all packets are copied into one file; nothing is encoded twice.
    """

    def __init__(
        self, path: Path, settings: video.VideoSettings, claim: Claim | None = None
    ) -> None:
        super().__init__(path, claim)
        self.settings = settings
        self._suffix = path.suffix.lower()
        self._length = SEGMENT_FRAMES
        self._encoder: video.Encoder | None = None

    def _check(self, shape: Shape) -> None:
        super()._check(shape)
        video.require_av(self.path)

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        self._length = shape[2] if self.parts is None else SEGMENT_FRAMES
        height, width = self.settings.stored_size(shape[3], shape[4])
        if (height, width) != tuple(shape[3:]):
            logger.warning(
                "%s: %dx%d is odd, which yuv420p cannot hold; the last row or column is repeated, "
                "%dx%d (yuv444p keeps the size)",
                self.path, shape[4], shape[3], width, height,
            )  # fmt: skip
        complete = 0 if self.parts is None else self._complete_segments(shape[2])
        following = min(complete * self._length, shape[2])
        if complete:
            logger.info("%s: %d of %d frames are there, in %d segments",
                        self.path, following, shape[2], complete)  # fmt: skip
        if following < shape[2]:
            self._encoder = self._encoder_of(complete)
        return [following]

    def _complete_segments(self, total: int) -> int:
        """How many segments are there from the first on; one that is there but cannot be read, as
        after a disk's failure, ends them."""
        for count in range(math.ceil(total / self._length)):
            file = self._segment(count)
            if not file.is_file():
                return count
            found, wanted = video.count_frames(file), self._frames_of(count)
            if found != wanted:
                logger.warning("%s has %d frames of %d and is made again", file, found, wanted)
                return count
        return math.ceil(total / self._length)

    def _frames_of(self, number: int) -> int:
        return min(self._length, self._opened()[2] - number * self._length)

    def _segment(self, number: int) -> Path:
        return self.claim.folder / f"segment_{number:06d}{self._suffix}"

    def _encoder_of(self, number: int) -> video.Encoder:
        height, width = self._opened()[3:]
        partial = partial_of(self._segment(number))
        return video.Encoder(partial, video.SUFFIXES[self._suffix], (height, width), self.settings)

    def host_bytes(self, shape: Shape) -> int:
        return video.encoder_bytes(shape)

    def _add(self, picture: Any, number: int) -> None:
        segment = number // self._length
        if self._encoder is None:
            self._encoder = self._encoder_of(segment)
        self._encoder.add(picture)
        if self._encoder.frames == self._frames_of(segment):
            self._encoder.close()
            self._encoder = None
            with told(self.path):
                publish(partial_of(self._segment(segment)), self._segment(segment))

    def _complete(self, shape: Shape) -> Path:
        self._came(self._next[0], shape[2])
        files = [self._segment(n) for n in range(math.ceil(shape[2] / self._length))]
        if self.parts is None:
            return files[0]
        joined = self.claim.folder / f"joined{self._suffix}.partial"
        video.join(files, joined, video.SUFFIXES[self._suffix], self.settings.fps)
        return joined

    def _kept(self) -> int:
        self._drop()
        return self._next[0]

    def _drop(self) -> None:
        if self._encoder is not None:
            self._encoder.drop()
            self._encoder = None
            self._next = [n - n % self._length for n in self._next]


class PngSink(_PictureSink):
    """A folder of frame_000000.png and so on, which has its name when all are there."""

    @property
    def _made(self) -> Path:
        return self.claim.folder / self.claim.PICTURES

    def _check(self, shape: Shape) -> None:
        super()._check(shape)
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise OutputError(
                f"PNG files in {self.path} need Pillow: pip install Pillow, or name a .npy file"
            ) from None

    def _open(self, shape: Shape, dtype: torch.dtype, done: int) -> list[int]:
        with told(self.path):
            self._made.mkdir(exist_ok=True)
        there = 0 if self.parts is None else sum(1 for _ in good_pictures(self._made))
        return [min(there, shape[2])]

    def host_bytes(self, shape: Shape) -> int:
        return 2 * 4 * math.prod(shape[3:]) + (1 << 20)

    def _add(self, picture: Any, number: int) -> None:
        from PIL import Image

        path = self._made / f"frame_{number:06d}.png"
        with told(self.path):
            with open(partial_of(path), "wb") as file:
                Image.fromarray(picture).save(file, format="PNG")
                settle(file)
            os.replace(partial_of(path), path)

    def _complete(self, shape: Shape) -> Path:
        self._came(self._next[0], shape[2])
        with told(self.path):
            settle_folder(self._made)
        return self._made


def sink_for(
    path: Path, *, fps: Fraction, crf: int = 18, pixel_format: str = "auto",
    claim: Claim | None = None, overwrite: bool = False,
) -> Sink:  # fmt: skip
    """The sink that `path`'s suffix asks for; OutputError for one that nobody writes.

    fps, crf, pixel_format: of a video (VideoSettings). claim: of `path`, where it is held already;
    Parts for a decode that can be killed and go on. overwrite: without a claim, as its own.
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
