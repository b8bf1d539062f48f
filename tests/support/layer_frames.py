"""Which frames a layer makes and reads, for the tests of the back-ends."""

from __future__ import annotations

from dataclasses import replace

from hy3d_rocm.decoding.geometry import out_frames, read_frames, source_frame, up_frames
from hy3d_rocm.decoding.layers import Conv, Range


def own_frames(layer: Conv, n: int, kernel_t: int) -> int:
    """Frames of the convolution's output before the shuffle, for its own video of n frames."""
    return out_frames(replace(layer, shuffle=None), n, kernel_t)


def source_range(layer: Conv, frames: Range, kernel_t: int, total: int) -> Range:
    """Frames of x that outputs `frames` (before the shuffle) read; padding by replication reads the
    first or the last one."""
    last_up = up_frames(layer, total) - 1
    low, top = (min(max(n, 0), last_up) for n in _ends(layer, frames, kernel_t))
    return source_frame(layer, low), source_frame(layer, top) + 1


def _ends(layer: Conv, frames: Range, kernel_t: int) -> Range:
    first, stop = read_frames(layer, frames, kernel_t)
    return first, stop - 1
