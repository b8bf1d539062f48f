"""Frames to a video file through PyAV: h264, the same bytes for the same frames.

There are no B-frames (bf=0): then decoding order is showing order, files can be joined packet by
packet, and no player has to read an edit list to find the first frame. It costs some 10 % of size.
The encoder's thread count is fixed, because x264's output depends on it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hy3d_rocm.files import partial_of, patiently, settle, settle_folder
from hy3d_rocm.frames.output import OutputError, Shape, output_errors

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

_THREADS = 4
_MACROBLOCK = 16
_BT709, _LIMITED_RANGE = 1, 1  # as FFmpeg numbers them
_MUXER = {"fflags": "+bitexact"}  # Matroska: no random identifiers
SUFFIXES = {".mp4": "mp4", ".mkv": "matroska"}  # and what FFmpeg calls the container
PIXEL_FORMATS = ("auto", "yuv420p", "yuv444p")


@dataclass(frozen=True)
class VideoSettings:
    """fps: frames a second. crf: 0 (lossless in yuv444p) to 51; 18 is hard to tell from lossless.

    pixel_format: "yuv420p" plays everywhere and has even sizes only: an odd one gets its last row
    or column twice. "yuv444p" keeps the size. "auto": yuv420p.
    """

    fps: Fraction
    crf: int = 18
    pixel_format: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.fps <= 1000:
            raise OutputError(f"fps is {self.fps}; give more than 0 and at most 1000")
        if not 0 <= self.crf <= 51:
            raise OutputError(f"crf is {self.crf}; give 0 (best) to 51 (smallest)")
        if self.pixel_format not in PIXEL_FORMATS:
            raise OutputError(
                f"pixel_format is {self.pixel_format!r}; give one of {', '.join(PIXEL_FORMATS)}"
            )

    @property
    def stored_format(self) -> str:
        return "yuv420p" if self.pixel_format == "auto" else self.pixel_format

    def stored_size(self, height: int, width: int) -> tuple[int, int]:
        odd = 1 if self.stored_format == "yuv420p" else 0
        return height + (height & odd), width + (width & odd)


def require_av(path: Path) -> Any:
    """The module av; OutputError where it, or its h264 encoder, is missing."""
    try:
        import av
    except ImportError:
        raise OutputError(
            f"{path}: writing video needs PyAV: pip install av, or name a .npy file"
        ) from None
    try:
        av.codec.Codec("libx264", "w")
    except ValueError:  # av's UnknownCodecError is one
        raise OutputError(
            f"{path}: this PyAV has no libx264: install the wheel (pip install av), or name a "
            ".npy file"
        ) from None
    return av


def picture(frame: Tensor) -> Any:
    """The uint8 array (H, W, 3) of one frame (1, C, 1, H, W) in -1..1, worked out where the frame
    is, so that a fourth of the bytes or less is copied."""
    import torch  # here: an Encoder, which takes arrays, needs none

    frame = frame[0, :, 0].detach().float().add(1.0).mul_(127.5).round_().clamp_(0.0, 255.0)
    made = frame.to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0)
    return made.contiguous().cpu().numpy()


def encoder_bytes(shape: Shape) -> int:
    """Planned memory of an Encoder: measured 98 bytes a pixel at 832x480 (x264 holds the frames it
    looks ahead to and those it refers to, in several forms) and 4 MB at 32x24."""
    return 128 * shape[3] * shape[4] + 8_000_000


class Encoder:
    """One video file being written, which has its name when it is complete."""

    def __init__(self, path: Path, size: tuple[int, int], settings: VideoSettings) -> None:
        """size: (height, width) of the pictures given."""
        self.path = path
        self.settings = settings
        self.frames = 0
        self._av = require_av(path)
        with output_errors(path):
            self._file = open(partial_of(path), "wb+")  # noqa: SIM115  closed in close() or drop()
        try:
            self._container = _opened(self._av, path, self._file)
            self._stream = self._open_stream(*settings.stored_size(*size))
        except BaseException:
            self._file.close()
            raise

    def _open_stream(self, height: int, width: int) -> Any:
        stream = self._container.add_stream("libx264", rate=self.settings.fps)
        stream.height, stream.width = height, width
        stream.pix_fmt = self.settings.stored_format
        context = stream.codec_context
        # rc-lookahead: 40 frames, the default, take twice the memory; a segment has only 32.
        options = {"preset": "medium", "bf": "0", "rc-lookahead": "10"}
        if -(-width // _MACROBLOCK) % 2:  # there it reads what nobody wrote (docs/decode.md)
            options["mbtree"] = "0"
        context.options = {"crf": str(self.settings.crf), **options}
        context.thread_count = _THREADS
        context.color_range = _LIMITED_RANGE
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        return stream

    def add(self, picture: Any) -> None:
        """Encodes one picture, uint8 (H, W, 3)."""
        import numpy as np

        height, width = picture.shape[:2]
        missing = self._stream.height - height, self._stream.width - width
        if any(missing):
            picture = np.pad(picture, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")
        frame = self._av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
            format=self.settings.stored_format,
            dst_colorspace="ITU709",
            dst_color_range=_LIMITED_RANGE,
        )
        frame.pts = self.frames
        frame.time_base = 1 / self.settings.fps
        with output_errors(self.path):
            self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def close(self) -> None:
        """The file is complete, on the disk, and has its name afterwards."""
        with output_errors(self.path):
            self._container.mux(self._stream.encode(None))
            self._container.close()
            settle(self._file)
            self._file.close()
            patiently(os.replace, partial_of(self.path), self.path)
            settle_folder(self.path.parent)

    def drop(self) -> None:
        # An open container writes its end when it is collected: into nothing, then.
        _drop(self._container, self._file)
        partial_of(self.path).unlink(missing_ok=True)


def _opened(av: Any, path: Path, file: IO[bytes]) -> Any:
    return av.open(file, "w", format=SUFFIXES[path.suffix.lower()], options=_MUXER)


def _drop(container: Any, file: Any) -> None:
    """Closes a container whose file is of no use; what it still writes may fail."""
    for part in (container, file):
        try:
            part.close()
        except (OSError, ValueError, RuntimeError) as error:  # a full disk, once more
            logger.debug("a video that was given up: %s", error)


def join(parts: Sequence[Path], path: Path, fps: Fraction) -> None:
    """One file of the packets of all parts in order, nothing encoded again, complete on the disk.

    The parts are Encoder's, with the same settings. Raises OutputError where they differ.
    """
    av = require_av(path)
    with output_errors(path), open(path, "wb+") as file:
        joined = _opened(av, path, file)
        try:
            _copy(av, parts, joined, fps)
            joined.close()
        except BaseException:
            _drop(joined, file)
            raise
        settle(file)


def _copy(av: Any, parts: Sequence[Path], joined: Any, fps: Fraction) -> None:
    stream, header, frames = None, None, 0
    for part in parts:
        # Opened here: FFmpeg takes a name such as 12:30.mp4 for an address.
        with open(part, "rb") as file, av.open(file) as source:
            given = source.streams.video[0]
            if stream is None:
                stream = joined.add_stream_from_template(given)
                header = given.codec_context.extradata
            elif given.codec_context.extradata != header:
                raise OutputError(
                    f"{part} was encoded with other settings than the parts before it: start "
                    "from scratch with --restart"
                )
            passed = frames / fps
            for packet in source.demux(given):
                if packet.pts is None:  # the flushing one at the end
                    continue
                frames += 1
                offset = round(passed / packet.time_base)
                packet.pts += offset
                packet.dts += offset
                packet.stream = stream
                joined.mux(packet)


def count_frames(path: Path) -> int:
    """Frames of a video file, by its packets; 0 for one that cannot be read."""
    import av

    try:
        with open(path, "rb") as file, av.open(file) as source:
            return sum(p.pts is not None for p in source.demux(source.streams.video[0]))
    except (OSError, ValueError, IndexError):  # av's errors are the first two
        return 0
