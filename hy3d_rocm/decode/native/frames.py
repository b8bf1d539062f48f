"""The frames that a convolution reads, one by one, as the C core takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm.decode.geometry import kernel_size, up_frames
from hy3d_rocm.decode.layers import Conv, Pieces, Range, read_frames, source_frame

if TYPE_CHECKING:
    from torch import Tensor


def frame_numbers(layer: Conv, source: Pieces, frames: Range, kernel_t: int) -> list[int]:
    """Of each frame of the up-sampled and padded video that outputs `frames` read, the number of
    the frame of x that it is, or -1 for zeros.

    ValueError (a sentence) where the source does not hold one of them, or where the padding is of
    no known kind.
    """
    mode = layer.modes[0]
    if mode not in ("zeros", "replicate"):
        raise ValueError(f"the padding {mode!r} is not known; known are zeros and replicate")
    first, last = read_frames(layer, frames, kernel_t)
    end = None if source.total is None else up_frames(layer, source.total)
    numbers = [_number(layer, u, end, mode == "replicate") for u in range(first, last)]
    held = source.frames
    if any(n >= 0 and not held[0] <= n < held[1] for n in numbers):
        raise ValueError(
            f"up-sampled frames {max(first, 0)} to {last if end is None else min(last, end)} are "
            f"read, but the source holds frames {held[0]} to {held[1]} only"
        )
    return numbers


def _number(layer: Conv, up_frame: int, end: int | None, replicate: bool) -> int:
    inside = max(up_frame, 0) if end is None else min(max(up_frame, 0), end - 1)
    if inside != up_frame and not replicate:
        return -1
    return source_frame(layer, inside)


def frames_of(source: Pieces, numbers: list[int]) -> list[Tensor | None]:
    """Those frames, (C, H, W) views; None for zeros."""
    wanted = {n for n in numbers if n >= 0}
    found: dict[int, Tensor] = {}
    at = source.first
    for tensor in source.tensors:
        count = tensor.shape[2]
        found |= {n: tensor[0, :, n - at] for n in range(at, at + count) if n in wanted}
        at += count
    return [found[n] if n >= 0 else None for n in numbers]


def needed(layer: Conv, source: Pieces, frames: Range, weight: Tensor) -> int:
    """How many frames of x are read."""
    numbers = frame_numbers(layer, source, frames, kernel_size(weight)[0])
    return len({n for n in numbers if n >= 0})
