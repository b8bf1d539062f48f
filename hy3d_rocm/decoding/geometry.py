"""Which frames and rows a layer reads and makes: integers, and the frames of a source by number."""

from __future__ import annotations

from torch import Tensor

from hy3d_rocm.decoding.layers import Conv, Pieces, Range, Shuffle, Triple


def kernel_size(weight: Tensor) -> Triple:
    """(T, H, W) of a weight (O, C, kt, kh, kw), (O, C, kh, kw) or (O, C)."""
    sizes = tuple(int(n) for n in weight.shape[2:])
    return (1,) * (3 - len(sizes)) + sizes  # type: ignore[return-value]


def padded_size(layer: Conv, size: tuple[int, int]) -> tuple[int, int]:
    """(H, W) of the up-sampled and padded input of a convolution for x of (H, W) `size`."""
    rows = size[0] * layer.up[1] + layer.before[1] + layer.after[1]
    return rows, size[1] * layer.up[2] + layer.before[2] + layer.after[2]


def own_size(layer: Conv, size: tuple[int, int], kernel: Triple) -> tuple[int, int]:
    """(H, W) of the convolution's output before the shuffle."""
    rows, columns = padded_size(layer, size)
    _, down, across = layer.stride
    return (rows - kernel[1]) // down + 1, (columns - kernel[2]) // across + 1


def up_frames(layer: Conv, n: int) -> int:
    """Frames of the up-sampled video for a video of n frames, at least one."""
    return 1 + (n - 1) * layer.up[0] if layer.keep_first else n * layer.up[0]


def out_frames(layer: Conv, n: int, kernel_t: int) -> int:
    """Frames of the layer's output for a video of n frames, shuffle included; kernel_t: the
    kernel's size in time."""
    passing = min(n, layer.skip_first)
    n -= layer.skip_first - layer.reread
    own = (up_frames(layer, n) + layer.before[0] + layer.after[0] - kernel_t) // layer.stride[0] + 1
    if n <= 0 or own <= 0:
        return passing
    if layer.shuffle is not None:
        own = shuffled_frames(layer.shuffle, (0, own)) - layer.shuffle.drop
    return own + passing


def shuffled_frames(shuffle: Shuffle, frames: Range) -> int:
    """Frames that the convolution's outputs `frames` have after the shuffle, nothing dropped."""
    count = (frames[1] - frames[0]) * shuffle.factor[0]
    if shuffle.first is not None and frames[0] == 0 < frames[1]:
        count += shuffle.first[0] - shuffle.factor[0]
    return count


def source_frame(layer: Conv, up_frame: int) -> int:
    """The frame of x that frame `up_frame` of the up-sampled video repeats (before 0 and beyond the
    end: the caller's affair)."""
    if layer.keep_first:
        return up_frame if up_frame <= 0 else 1 + (up_frame - 1) // layer.up[0]
    return up_frame // layer.up[0]


def read_frames(layer: Conv, frames: Range, kernel_t: int) -> Range:
    """Frames of the up-sampled input that outputs `frames` read; may begin below 0 and end beyond
    the video, which is padding."""
    first = frames[0] * layer.stride[0] - layer.before[0]
    last = (frames[1] - 1) * layer.stride[0] - layer.before[0] + kernel_t - 1
    return first, last + 1


def frame_numbers(layer: Conv, source: Pieces, frames: Range, kernel_t: int) -> list[int]:
    """Of each frame of the up-sampled and padded video that outputs `frames` read, the number of
    the frame of x that it is, or -1 for zeros. ValueError (a sentence) where the source does not
    hold one of them, or where the padding is of no known kind."""
    mode = layer.modes[0]
    if mode not in ("zeros", "replicate"):
        raise ValueError(f"the padding {mode!r} is not known; known are zeros and replicate")
    first, last = read_frames(layer, frames, kernel_t)
    end = None if source.total is None else up_frames(layer, source.total)
    numbers = []
    for frame in range(first, last):
        inside = max(frame, 0) if end is None else min(max(frame, 0), end - 1)
        is_zero = inside != frame and mode == "zeros"
        numbers.append(-1 if is_zero else source_frame(layer, inside))
    held = source.frames
    if any(n >= 0 and not held[0] <= n < held[1] for n in numbers):
        raise ValueError(
            f"up-sampled frames {max(first, 0)} to {last if end is None else min(last, end)} are "
            f"read, but the source holds frames {held[0]} to {held[1]} only"
        )
    return numbers


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
