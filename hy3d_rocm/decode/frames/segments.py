"""A video file in segments of a fixed number of frames, so that a killed decode goes on.

Each segment has an encoder of its own, so it starts with a key frame and refers to nothing outside
(a closed group of pictures), and its bytes depend on its frames and the settings alone. At the end
all packets are copied into one file; nothing is encoded twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.frames.output import (
    ALL,
    VIDEO_SUFFIXES,
    Shape,
    partial_of,
    publish,
    told,
)
from hy3d_rocm.decode.frames.video import (
    Encoder,
    VideoSettings,
    check_picture,
    count_frames,
    encoder_bytes,
    join,
    new_frames,
    pictures,
    require_av,
    say_padding,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hy3d_rocm.decode.frames.resume import Parts

logger = logging.getLogger("hy3d_rocm")

# A kill costs at most so many frames; each segment costs a key frame. x264's own distance between
# key frames is 250 at most, and 32 frames are a little more than a second of video.
SEGMENT_FRAMES = 32


class SegmentSink:
    """Frames of one sample to segments in `parts`, joined to `path` at the end."""

    def __init__(self, path: Path, settings: VideoSettings, parts: Parts) -> None:
        self.path = path
        self.settings = settings
        self.parts = parts
        self._is_taken = False
        self._shape: Shape | None = None
        self._next = 0
        self._encoder: Encoder | None = None

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        require_av(self.path)
        check_picture(shape, self.path)
        stored = str(dtype).removeprefix("torch.")
        if self._shape is not None:
            if not self.parts.is_made_by(plan):
                self._drop()
                self.parts.begin_again(shape, stored, plan)
                self._next = 0
            return
        if not self._is_taken:
            self.parts.take()
            self._is_taken = True
        done_before = self.parts.settle(shape, stored, plan)
        self._shape = shape
        if done_before == shape[2] and self.parts.is_published:
            self._next = shape[2]
            return
        say_padding(self.path, shape, self.settings)
        done = self._complete_segments()
        self._next = min(done * SEGMENT_FRAMES, shape[2])
        if done:
            logger.info("%s: %d of %d frames are there, in %d segments",
                        self.path, self._next, shape[2], done)  # fmt: skip

    def _complete_segments(self) -> int:
        """How many segments are there from the first on; one that is there but cannot be read, as
        after a disk's failure, ends them."""
        count = 0
        while count < self._segments():
            file = self._segment(count)
            if not file.is_file():
                break
            found = count_frames(file)
            if found != self._frames_of(count):
                logger.warning("%s has %d frames of %d and is made again",
                               file, found, self._frames_of(count))  # fmt: skip
                break
            count += 1
        return count

    def _segments(self) -> int:
        return -(-self._opened()[2] // SEGMENT_FRAMES)

    def _frames_of(self, number: int) -> int:
        return min(SEGMENT_FRAMES, self._opened()[2] - number * SEGMENT_FRAMES)

    def _segment(self, number: int) -> Path:
        return self.parts.folder / f"segment_{number:06d}{self.path.suffix.lower()}"

    def host_bytes(self, shape: Shape) -> int:
        return encoder_bytes(shape)

    def first_wanted(self, sample: int) -> int:
        return self._next

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        shape = self._opened()
        for picture in pictures(new_frames(first, frames, rows, columns, self._next)):
            number = self._next // SEGMENT_FRAMES
            if self._encoder is None:
                container = VIDEO_SUFFIXES[self.path.suffix.lower()]
                partial = partial_of(self._segment(number))
                self._encoder = Encoder(partial, container, (shape[3], shape[4]), self.settings)
            self._encoder.add(picture)
            self._next += 1
            if self._encoder.frames == self._frames_of(number):
                self._encoder.close()
                self._encoder = None
                with told(self.path):
                    publish(partial_of(self._segment(number)), self._segment(number))
                if self._next == shape[2]:
                    self.parts.record(self._next)

    def finish(self) -> Path:
        shape = self._opened()
        if self._next != shape[2]:
            raise RuntimeError(f"{self.path}: {self._next} of {shape[2]} frames came")
        if not self.parts.is_published:
            suffix = self.path.suffix.lower()
            joined = self.parts.folder / f"joined{suffix}.partial"
            parts = [self._segment(n) for n in range(self._segments())]
            join(parts, joined, VIDEO_SUFFIXES[suffix], self.settings.fps)
            self.parts.publish(joined)
        self.parts.remove()
        self._release()
        return self.path

    def _release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self.parts.release()

    def _drop(self) -> None:
        """The segment that is being written."""
        if self._encoder is not None:
            self._next -= self._encoder.frames
            self._encoder.drop()
            self._encoder = None

    def abort(self) -> None:
        try:
            self._drop()
            if self._shape is not None:
                logger.info(
                    "%s: stopped; %d frames are in %s, --resume goes on behind them",
                    self.path, self._next, self.parts.folder,
                )  # fmt: skip
        finally:
            self._release()

    @property
    def buffer(self) -> Tensor | None:
        return None

    @property
    def folder(self) -> Path:
        return self.path.parent

    def _opened(self) -> Shape:
        if self._shape is None:
            raise RuntimeError("a sink was used before begin()")
        return self._shape
