"""Which sink a path's name asks for; and the folder of pictures."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.frames import arrays, segments, video
from hy3d_rocm.decode.frames.claim import Claim, good_pictures
from hy3d_rocm.decode.frames.output import (
    ALL,
    VIDEO_SUFFIXES,
    OutputError,
    Shape,
    Sink,
    partial_of,
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

ARRAY_SUFFIX = ".npy"


class PngSink:
    """A folder of frame_000000.png and so on, which has its name when all are there.

    claim: of Parts for a decode that can go on behind the pictures that are there.
    """

    def __init__(self, folder: Path, claim: Claim) -> None:
        self.path = folder
        self.claim = claim
        self.parts = claim if isinstance(claim, Parts) else None
        self._is_taken = False
        self._made = claim.folder / claim.PICTURES
        self._count = 0
        self._next = 0
        self._plan: Mapping[str, Any] | None = None

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        video.check_picture(shape, self.path)
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise OutputError(
                f"PNG files in {self.path} need Pillow: pip install Pillow, or name a .npy file"
            ) from None
        stored = str(dtype).removeprefix("torch.")
        if not self._is_taken:
            self.claim.take()
            self._is_taken = True
            self._next = self._begun(shape, stored, plan)
        elif plan != self._plan:
            self._next = 0
            if self.parts is not None:
                self.parts.begin_again(shape, stored, plan)
        self._plan, self._count = plan, shape[2]
        with told(self.path):
            self._made.mkdir(exist_ok=True)

    def _begun(self, shape: Shape, stored: str, plan: Mapping[str, Any] | None) -> int:
        """How many pictures are there."""
        if self.parts is None:
            return 0
        done = self.parts.settle(shape, stored, plan)
        if done == shape[2] and self.parts.is_published:
            return shape[2]
        return min(sum(1 for _ in good_pictures(self._made)), shape[2])

    def host_bytes(self, shape: Shape) -> int:
        return 2 * 4 * math.prod(shape[3:]) + (1 << 20)

    def first_wanted(self, sample: int) -> int:
        return self._next

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        from PIL import Image

        for picture in video.pictures(video.new_frames(first, frames, rows, columns, self._next)):
            path = self._made / f"frame_{self._next:06d}.png"
            partial = partial_of(path)
            with told(self.path):
                with open(partial, "wb") as file:
                    Image.fromarray(picture).save(file, format="PNG")
                    settle(file)
                os.replace(partial, path)
            self._next += 1
            if self.parts is not None and self._next == self._count:
                self.parts.record(self._next)

    def finish(self) -> Path:
        if self._next != self._count:
            raise RuntimeError(f"{self.path}: {self._next} of {self._count} frames came")
        if self.parts is None or not self.parts.is_published:
            with told(self.path):
                settle_folder(self._made)
            self.claim.publish(self._made)
        if self.parts is not None:
            self.parts.remove()
        self._release()
        logger.info("%s: %d pictures", self.path, self._next)
        return self.path

    def abort(self) -> None:
        if not self._is_taken:
            return
        left = "nothing is left" if self.parts is None else "--resume goes on behind them"
        logger.info("%s: stopped after %d pictures, %s", self.path, self._next, left)
        self._release()

    def _release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self.claim.release()

    @property
    def buffer(self) -> Tensor | None:
        return None

    @property
    def folder(self) -> Path:
        return self.path.parent


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
    if suffix in VIDEO_SUFFIXES:
        settings = video.VideoSettings(fps, crf, pixel_format)
        if isinstance(claim, Parts):
            return segments.SegmentSink(path, settings, claim)
        return video.VideoSink(path, settings, claim)
    if suffix == ARRAY_SUFFIX:
        return arrays.MemmapSink(path, claim)
    if suffix == "":
        return PngSink(path, claim)
    raise OutputError(
        f"{path}: nothing here writes {suffix} files; name a .mp4 or .mkv (video), a .npy (array) "
        "or a folder (PNG pictures)"
    )
