"""What the C convolution takes beside its operands, before anything runs."""

from __future__ import annotations

import functools

import torch

from hy3d_rocm import _native
from hy3d_rocm.decode.engines.geometry import padded_size
from hy3d_rocm.decode.layers import Conv, Range, Triple, read_frames

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def inside_bytes(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> int:
    """Workspace and plan of the layer on x of (H, W) `size`, making outputs `frames`, by the
    threads that torch has now; prepared weights aside."""
    return max(_asked(_call(layer, weight, size, frames, dtype), torch.get_num_threads()))


def prepared_bytes(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> tuple[int, int]:
    """Layout of the weights that the layer takes there, and their bytes in it; (0, 0) for none."""
    return _layout(_call(layer, weight, size, frames, dtype))


_Call = tuple[Triple, int, int, Triple, Triple, Triple, Triple, tuple[str, str, str], str, Triple]


def _call(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> _Call:
    kt, kh, kw = ((1,) * 3 + weight[2:])[-3:]
    kernel = (kt, kh, kw)
    first, last = read_frames(layer, frames, kt)
    rows, columns = padded_size(layer, size)
    (_, top, left), (_, bottom, right) = layer.before, layer.after
    inner = (last - first, rows - top - bottom, columns - left - right)
    modes = ("zeros", layer.modes[1], layer.modes[2])
    up = (1, layer.up[1], layer.up[2])
    return (
        inner, weight[1], weight[0], kernel, layer.stride, (0, top, left), (0, bottom, right),
        modes, NAMES[dtype], up,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _asked(call: _Call, threads: int) -> tuple[int, int]:
    inner, c, o, kernel, stride, before, after, modes, name, up = call
    return _native.conv3d_memory(
        inner, c, o, kernel, stride, (1, 1, 1), before, after, modes, 1, name, "fast", up, 1,
        threads,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _layout(call: _Call) -> tuple[int, int]:
    inner, c, o, kernel, stride, before, after, modes, name, up = call
    number, _, nbytes = _native.conv3d_format(
        inner, c, o, kernel, stride, (1, 1, 1), before, after, modes, 1, name, "fast", up
    )
    return number, nbytes
