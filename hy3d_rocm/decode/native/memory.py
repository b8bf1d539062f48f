"""What the C convolution takes beside its operands, before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv.prepared import cache
from hy3d_rocm.decode.geometry import padded_size
from hy3d_rocm.decode.layers import Conv, Range, Triple, read_frames

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def inside_bytes(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> int:
    """Workspace and plan of the layer on x of (H, W) `size`, making outputs `frames`, by the
    threads that torch has now; prepared weights aside."""
    return max(_asked(_call(layer, weight, size, frames, dtype), torch.get_num_threads()))


def prepared_layout(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> tuple[int, int]:
    """Number (0: none of its own) and bytes of the layout that the call may keep its weights in."""
    return _layout(_call(layer, weight, size, frames, dtype))


def growth_bytes(decoder: Any, wanted: Iterable[tuple[int, int, int]]) -> int:
    """By how much the cache grows if all that is `wanted` is kept, (id of a module, layout, bytes):
    no further than its limit."""
    kept = cache()
    held = kept.stats()
    modules = {id(module): module for module in decoder.modules()}
    missing = sum(
        nbytes for name, layout, nbytes in wanted
        if name not in modules or not kept.holds(getattr(modules[name], "weight", None), layout)
    )  # fmt: skip
    return max(min(missing, held.limit_bytes - held.bytes), 0)


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
def _layout(call: _Call) -> tuple[int, int]:
    """Number (0: none of its own) and bytes of the layout that the weights are prepared in."""
    inner, c, o, kernel, stride, before, after, modes, name, up = call
    number, _, nbytes = _native.conv3d_format(
        inner, c, o, kernel, stride, (1, 1, 1), before, after, modes, 1, name, "fast", up, 1
    )
    return number, nbytes


@functools.lru_cache(maxsize=4096)
def _asked(call: _Call, threads: int) -> tuple[int, int]:
    inner, c, o, kernel, stride, before, after, modes, name, up = call
    return _native.conv3d_memory(
        inner, c, o, kernel, stride, (1, 1, 1), before, after, modes, 1, name, "fast", up, 1,
        threads,
    )  # fmt: skip
