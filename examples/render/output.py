"""Pictures and a turntable on the disk: each file has its name only when it is complete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3d_rocm.frames.output import OutputError, output_errors, written

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hy3d_rocm.frames.video import Encoder

_VIDEO_CRF = 16


def make_folder(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """`folder` is there afterwards. OutputError where files of these names are already."""
    with output_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; name a folder to write to with --out")
        folder.mkdir(parents=True, exist_ok=True)
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise OutputError(
            f"{folder / there[0]}{more} would be overwritten: give --force, or another --out"
        )


def require_pillow() -> None:
    """OutputError where pictures cannot be written."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise OutputError("writing pictures needs Pillow: pip install Pillow") from None


def write_png(path: Path, picture: npt.NDArray[Any]) -> Path:
    """picture: uint8 (H, W), (H, W, 3) or (H, W, 4), or uint16 (H, W)."""
    from PIL import Image

    with written(path) as file:
        # Level 1 takes a fifth of the default's time and 10 to 20 % more room.
        Image.fromarray(picture).save(file, format="PNG", compress_level=1)
    return path


def write_json(path: Path, data: Any) -> Path:
    with written(path) as file:
        file.write((json.dumps(data, indent=1) + "\n").encode())
    return path


class Turntable:
    """A video being written; leaving the block early removes what there is of it."""

    def __init__(self, path: Path, size: tuple[int, int], fps: Fraction) -> None:
        """size: (height, width). OutputError without PyAV and its h264 encoder."""
        from hy3d_rocm.frames.video import Encoder, VideoSettings

        self.path = path
        settings = VideoSettings(fps, crf=_VIDEO_CRF)
        self._encoder: Encoder = Encoder(path, size, settings)
        self._complete = False

    def __enter__(self) -> Turntable:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._complete:
            self._encoder.drop()

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """picture: (H, W, 3)."""
        self._encoder.add(picture)

    def finish(self) -> Path:
        self._encoder.close()
        self._complete = True
        return self.path


def require_video(path: Path) -> None:
    """OutputError where `path` cannot be written for want of PyAV or its h264 encoder."""
    from hy3d_rocm.frames.video import require_av

    try:
        require_av(path)
    except OutputError:
        raise OutputError(
            f"{path}: writing video needs PyAV with libx264: pip install av, or give --frames 0"
        ) from None
