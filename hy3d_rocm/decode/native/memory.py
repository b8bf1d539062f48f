"""What the C convolution takes beside its operands, before anything runs."""

from __future__ import annotations

import functools
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv.prepared import cache
from hy3d_rocm.decode.engines.geometry import padded_size
from hy3d_rocm.decode.layers import Conv, Range, Triple, read_frames

# The same layer on more or fewer frames may take its weights in another layout.
_LAYOUTS = 2
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def inside_bytes(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> int:
    """Workspace and plan of the layer on x of (H, W) `size`, making outputs `frames`, by the
    threads that torch has now; prepared weights aside."""
    return max(_asked(_call(layer, weight, size, frames, dtype), torch.get_num_threads()))


def room_bytes(family: Any, left_bytes: int) -> int:
    """By how much prepared weights may grow in a decode whose budget has so much left: no further
    than two layouts of each convolution of the decoder take, nor than the cache's limit."""
    held = cache().stats()
    tensors = [p for p in family.decoder.parameters() if p.dim() in (4, 5)]
    most = _LAYOUTS * sum(_most_bytes(tuple(p.shape)) for p in tensors)
    return max(min(left_bytes, most, held.limit_bytes - held.bytes), 0)


def _most_bytes(weight: tuple[int, ...]) -> int:
    """In the largest layout: 7 x 7 points, four for each of three taps in time, channels in whole
    vectors and panels."""
    o, c, kt, kh, kw = weight[:2] + ((1,) * 3 + weight[2:])[-3:]
    if (kh, kw) != (3, 3) or kt > 3:
        return 0
    return 49 * (4 if kt == 3 else kt) * -(-o // 32) * 32 * -(-c // 16) * 16 * 4


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
