"""Writes frames as a small H.264 clip through PyAV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def write_mp4(path: Path, frames: npt.NDArray[np.uint8], fps: int, crf: int = 18) -> None:
    """Write `frames` (T, H, W, 3), uint8 RGB, as an mp4 that browsers play.

    H and W must be even (4:2:0 chroma). `crf` is x264's quality: lower is better and larger.
    """
    import av

    if frames.ndim != 4 or frames.shape[3] != 3 or frames.shape[1] % 2 or frames.shape[2] % 2:
        raise ValueError(
            f"frames must be (T, even H, even W, 3), got {frames.shape}: crop to an even size"
        )
    with av.open(str(path), mode="w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": str(crf)})
        stream.width, stream.height = frames.shape[2], frames.shape[1]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
