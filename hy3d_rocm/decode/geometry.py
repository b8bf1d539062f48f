"""Which frames and rows a layer reads and makes: integers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm.decode.layers import Conv, Range, Triple, read_frames, source_frame

if TYPE_CHECKING:
    from torch import Tensor


def kernel_size(weight: Tensor) -> Triple:
    """(T, H, W) of a weight (O, C, kt, kh, kw), (O, C, kh, kw) or (O, C)."""
    sizes = tuple(int(n) for n in weight.shape[2:])
    return (1,) * (3 - len(sizes)) + sizes  # type: ignore[return-value]


def up_frames(layer: Conv, n: int) -> int:
    """Frames of the up-sampled video for a video of n frames."""
    return 1 + (n - 1) * layer.up[0] if layer.keep_first and n > 0 else n * layer.up[0]


def first_up_frame(layer: Conv, frame: int) -> int:
    """The first up-sampled frame that repeats `frame`."""
    if layer.keep_first and frame > 0:
        return 1 + (frame - 1) * layer.up[0]
    return frame * layer.up[0]


def source_range(layer: Conv, frames: Range, kernel_t: int, total: int | None) -> Range:
    """Frames of x that outputs `frames` (before the shuffle) read.

    total: frames of the video; None: its end is not read. Padding by replication reads the first
    or the last frame.
    """
    first, last = read_frames(layer, frames, kernel_t)
    first, last = max(first, 0), max(last, 1)
    if total is not None:
        end = up_frames(layer, total)
        first, last = min(first, end - 1), min(last, end)
    return source_frame(layer, first), source_frame(layer, last - 1) + 1


def padded_size(layer: Conv, size: tuple[int, int]) -> tuple[int, int]:
    """(H, W) of the up-sampled and padded input of a convolution for x of (H, W) `size`."""
    rows, columns = (
        n * layer.up[axis] + layer.before[axis] + layer.after[axis]
        for axis, n in zip((1, 2), size, strict=True)
    )
    return rows, columns


def own_size(layer: Conv, size: tuple[int, int], kernel: Triple) -> tuple[int, int]:
    """(H, W) of the convolution's output before the shuffle."""
    rows, columns = (
        (n - kernel[axis]) // layer.stride[axis] + 1
        for axis, n in zip((1, 2), padded_size(layer, size), strict=True)
    )
    return rows, columns


def own_frames(layer: Conv, n: int, kernel_t: int) -> int:
    """Frames of the convolution's output before the shuffle, for its own video of n frames."""
    padded = up_frames(layer, n) + layer.before[0] + layer.after[0]
    return max(0, (padded - kernel_t) // layer.stride[0] + 1)
