"""A convolution's arguments as torch takes them, put into the C core's words."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["check_dims", "default_threads", "geometry_of", "modes_of", "numbers_of"]

_AXES = {2: "(H, W)", 3: "(T, H, W)"}
_LAYOUT = {2: "(N, C, H, W) or (C, H, W)", 3: "(N, C, T, H, W) or (C, T, H, W)"}
_MODES = ("zeros", "replicate")
_Pads = tuple[tuple[int, ...], tuple[int, ...]]  # before and after, one number an axis


def numbers_of(value: int | Sequence[int], name: str, ndim: int) -> tuple[int, ...]:
    """One number an axis."""
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(items) == 1:
        items *= ndim
    try:
        numbers = tuple(operator.index(item) for item in items)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: give an integer or {_AXES[ndim]}") from None
    if len(numbers) != ndim:
        raise ValueError(f"{name} is {value!r}: give an integer or {_AXES[ndim]}")
    return numbers


def _pads(
    padding: int | str | Sequence[int | Sequence[int]],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> _Pads:
    """Padding before and after, one number an axis."""
    ndim = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * ndim, (0,) * ndim
        if padding != "same":
            raise ValueError(f"padding is {padding!r}: the words are 'valid' and 'same'")
        if any(step != 1 for step in stride):
            raise ValueError(f"padding='same' needs stride 1, not {stride}: give numbers")
        total = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        before = tuple(t // 2 for t in total)
        return before, tuple(t - b for t, b in zip(total, before, strict=True))
    items = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    if not any(isinstance(item, (tuple, list)) for item in items):
        numbers = numbers_of(items, "padding", ndim)
        return numbers, numbers
    pairs = [tuple(i) if isinstance(i, (tuple, list)) else (i, i) for i in items]
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"padding is {padding!r}: give a number, {_AXES[ndim]}, or a pair (before, after) for "
            f"each of {_AXES[ndim]}"
        )
    return (
        numbers_of(tuple(p[0] for p in pairs), "padding", ndim),
        numbers_of(tuple(p[1] for p in pairs), "padding", ndim),
    )


def geometry_of(
    ndim: int,
    kernel: tuple[int, ...],
    stride: int | Sequence[int],
    padding: int | str | Sequence[int | Sequence[int]],
    dilation: int | Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Stride, dilation, padding before and after as (T, H, W); the kernel is that already."""
    step = numbers_of(stride, "stride", ndim)
    spread = numbers_of(dilation, "dilation", ndim)
    before, after = _pads(padding, kernel[3 - ndim :], step, spread)
    one, none = (1,) * (3 - ndim), (0,) * (3 - ndim)
    return one + step, one + spread, none + before, none + after


def modes_of(padding_mode: str | Sequence[str], ndim: int) -> tuple[str, ...]:
    modes = (padding_mode,) * ndim if isinstance(padding_mode, str) else tuple(padding_mode)
    if len(modes) != ndim or any(mode not in _MODES for mode in modes):
        raise ValueError(
            f"padding_mode is {padding_mode!r}: it must be 'zeros' or 'replicate', or one of them "
            f"for each of {_AXES[ndim]}; pad the input yourself for another"
        )
    return modes


def default_threads(threads: int | None) -> int:
    if threads is None:
        torch = sys.modules.get("torch")
        return int(torch.get_num_threads()) if torch is not None else 0
    if threads < 1:
        raise ValueError(f"threads is {threads}: it must be at least 1, or None")
    return threads


def check_dims(ndim: int, named: dict[str, Any]) -> bool:
    """Whether x has a batch dimension; a sentence where any array has a wrong number of them."""
    wanted = {"x": (ndim + 1, ndim + 2), "weight": (ndim + 2,), "bias": (1,)}
    wanted["out"] = (named["x"].ndim,)
    for name, value in named.items():
        if value.ndim not in wanted[name]:
            layout = {
                "x": f"x must be {_LAYOUT[ndim]}",
                "weight": f"weight must be (Cout, C / groups, ...) with a kernel {_AXES[ndim]}",
                "bias": "bias must be (Cout)",
                "out": "out needs as many dimensions as x",
            }[name]
            shape = tuple(int(size) for size in value.shape)
            raise ValueError(f"{name} has shape {shape}: {layout}")
    return bool(named["x"].ndim == ndim + 2)
