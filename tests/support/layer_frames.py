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


def strip_of(layer: Conv, size: int, kernel_h: int, rows: Range) -> tuple[Conv, Range]:
    """The layer that makes outputs `rows` (before the shuffle) of a picture of `size` rows from
    fewer of them, and which: padded at the picture's border only, cropped at inner sides where
    copies of a row are not read."""
    up, down, before = layer.up[1], layer.stride[1], layer.before[1]
    first = rows[0] * down - before
    last = (rows[1] - 1) * down - before + kernel_h
    low, high = max(first, 0) // up, -(-min(last, size * up) // up)
    sides = low * up - first, last - high * up
    (bt, _, bw), (at, _, aw) = layer.before, layer.after
    return replace(layer, before=(bt, sides[0], bw), after=(at, sides[1], aw)), (low, high)
