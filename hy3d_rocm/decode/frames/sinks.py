"""Which sink a path's name asks for; and the folder of pictures."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.frames import arrays, segments, video
from hy3d_rocm.decode.frames.output import (
    ALL,
    VIDEO_SUFFIXES,
    OutputError,
    Shape,
    Sink,
    partial_of,
    told,
)

if TYPE_CHECKING:
    from fractions import Fraction

    import torch
    from torch import Tensor

    from hy3d_rocm.decode.frames.resume import Parts

logger = logging.getLogger("hy3d_rocm")

ARRAY_SUFFIX = ".npy"


class PngSink:
    """A folder of frame_000000.png and so on; each file is whole under its name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
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

        for picture in video.pictures(video.new_frames(first, frames, rows, columns, self._next)):
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
