"""conv3d and conv2d on the CPU, for torch tensors and NumPy arrays.

The sums are those of torch.nn.functional.conv3d (cross-correlation), computed by the C core in
bounded memory: a blocked implicit GEMM, never a whole im2col. Forward only.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

from hy3d_rocm import _fallback, _native

_AXES = {2: "(H, W)", 3: "(T, H, W)"}
_LAYOUT = {2: "(N, C, H, W) or (C, H, W)", 3: "(N, C, T, H, W) or (C, T, H, W)"}
_MODES = ("zeros", "replicate")
_Pads = tuple[tuple[int, ...], tuple[int, ...]]  # before and after, one number an axis


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str | Sequence[str] = "zeros",
    accuracy: str = "exact",
    threads: int | None = None,
    workspace_limit: int | None = None,
    out: Any = None,
    cancel: Any = None,
) -> Any:
    """3D convolution on the CPU; a drop-in for torch.nn.functional.conv3d without autograd.

    x: (N, C, T, H, W) or (C, T, H, W), f32, f64, f16 or bf16 (torch only); any strides, read
        without a copy; N may be 0. torch tensors and NumPy arrays are not mixed in one call.
    weight: (Cout, C / groups, kT, kH, kW).  bias: (Cout) or None.  All of one dtype.
    stride, dilation: a number or (T, H, W), at least 1.
    padding: a number, (T, H, W), pairs ((before, after), ...) where the sides differ
        (causal in time: ((2, 0), (1, 1), (1, 1))), "valid" (none) or "same" (stride 1 only; an odd
        rest goes behind, as in torch).
    padding_mode: "zeros", "replicate", or one of them an axis.
    accuracy: "exact" is the direct sum. "fast" allows faster algorithms with a larger rounding
        error; there is none yet, so both give the same bits today.
    threads: None takes torch.get_num_threads() of the calling thread where torch is imported, else
        every CPU this process may use. No thread count changes a bit of the result.
    workspace_limit: bytes of scratch memory, all threads together; None is 64 MB a thread. A
        tighter limit is slower, never different.
    out: array to write; returned. It must not lie in the memory of the others.
    cancel: a CancelFlag of hy3d_rocm._native, looked at while computing.

    Returns what x is, torch tensor or NumPy array: (N, Cout, T', H', W'), channels_last_3d where x
    is; without N where x has none. f16 and bf16 are summed in f32 and rounded once.

    Raises ValueError for shapes and values that do not fit, TypeError for other kinds of objects,
    MemoryError, and Hy3dError (cancelled, workspace_limit too small, no C core, no BLAS).
    Source: the definition in torch.nn.functional.conv3d's documentation.
    """
    return _convolve(3, x, weight, bias, stride, padding, dilation, groups, padding_mode,
                     accuracy, threads, workspace_limit, out, cancel)  # fmt: skip


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str | Sequence[str] = "zeros",
    accuracy: str = "exact",
    threads: int | None = None,
    workspace_limit: int | None = None,
    out: Any = None,
    cancel: Any = None,
) -> Any:
    """2D convolution on the CPU: `conv3d` with T = 1.

    x (N, C, H, W) or (C, H, W), weight (Cout, C / groups, kH, kW); axes are (H, W); channels_last
    is kept. Everything else, errors included, as in conv3d.
    """
    return _convolve(2, x, weight, bias, stride, padding, dilation, groups, padding_mode,
                     accuracy, threads, workspace_limit, out, cancel)  # fmt: skip


class _Numpy:
    """What the convolution needs of NumPy arrays."""

    @staticmethod
    def owns(value: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(value, numpy.ndarray)

    @staticmethod
    def operand(value: Any, name: str) -> Any:
        if value.dtype.kind != "f" or value.dtype.itemsize not in (2, 4, 8):
            raise ValueError(
                f"{name} is {value.dtype}: conv3d takes float32, float64 and float16 arrays "
                "(bfloat16 as torch tensors); convert it with .astype"
            )
        whole = all(step % value.itemsize == 0 for step in value.strides)
        if value.flags.aligned and value.dtype.isnative and whole:
            return value
        return value.astype(value.dtype.newbyteorder("="), order="C", copy=True)

    @staticmethod
    def target(value: Any) -> Any:
        return value  # never a copy: what the core cannot write to, it refuses

    @staticmethod
    def empty(size: tuple[int, ...], like: Any) -> Any:
        import numpy as np

        return np.empty(size, dtype=like.dtype)

    @staticmethod
    def insert(value: Any, axis: int) -> Any:
        return value.reshape((*value.shape[:axis], 1, *value.shape[axis:]))

    @staticmethod
    def remove(value: Any, axis: int) -> Any:
        return value.squeeze(axis)


class _Torch:
    """The same of torch tensors."""

    @staticmethod
    def owns(value: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Tensor)

    @staticmethod
    def operand(value: Any, name: str) -> Any:
        import torch

        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise ValueError(
                f"{name} is a {value.layout} tensor on {value.device}: conv3d computes on the CPU "
                f"with dense tensors; pass {name}.cpu(), or let hy3d_rocm.protect() choose"
            )
        if value.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is {value.dtype}: conv3d takes float32, float64, float16 and bfloat16"
            )
        if value.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires grad, and this conv3d has no backward pass: call it under "
                f"torch.no_grad(), or pass {name}.detach()"
            )
        return value.detach().resolve_neg()

    @classmethod
    def target(cls, value: Any) -> Any:
        if value.is_neg():
            raise ValueError("out is a lazily negated view: pass an ordinary tensor")
        return cls.operand(value, "out")

    @staticmethod
    def empty(size: tuple[int, ...], like: Any) -> Any:
        import torch

        last = like.is_contiguous(memory_format=torch.channels_last_3d)
        kept = torch.channels_last_3d if last and not like.is_contiguous() else None
        return torch.empty(
            size, dtype=like.dtype, device="cpu", memory_format=kept or torch.contiguous_format
        )

    @staticmethod
    def insert(value: Any, axis: int) -> Any:
        return value.unsqueeze(axis)

    @staticmethod
    def remove(value: Any, axis: int) -> Any:
        return value.squeeze(axis)


_Kind = type[_Numpy] | type[_Torch]


def _kind_of(named: dict[str, Any]) -> _Kind:
    """The one kind that all arrays are of."""
    x = named["x"]
    kind: _Kind | None = _Torch if _Torch.owns(x) else _Numpy if _Numpy.owns(x) else None
    if kind is None:
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    for name, value in named.items():
        if not kind.owns(value):
            raise TypeError(
                f"{name} is {type(value).__name__} but x is {type(x).__name__}: pass all as torch "
                "tensors or all as NumPy arrays"
            )
    return kind


def _numbers(value: int | Sequence[int], name: str, ndim: int) -> tuple[int, ...]:
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
        numbers = _numbers(items, "padding", ndim)
        return numbers, numbers
    pairs = [tuple(i) if isinstance(i, (tuple, list)) else (i, i) for i in items]
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"padding is {padding!r}: give a number, {_AXES[ndim]}, or a pair (before, after) for "
            f"each of {_AXES[ndim]}"
        )
    return (
        _numbers(tuple(p[0] for p in pairs), "padding", ndim),
        _numbers(tuple(p[1] for p in pairs), "padding", ndim),
    )


def _geometry(
    ndim: int,
    kernel: tuple[int, ...],
    stride: int | Sequence[int],
    padding: int | str | Sequence[int | Sequence[int]],
    dilation: int | Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Stride, dilation, padding before and after as (T, H, W); the kernel is that already."""
    step = _numbers(stride, "stride", ndim)
    spread = _numbers(dilation, "dilation", ndim)
    before, after = _pads(padding, kernel[3 - ndim :], step, spread)
    one, none = (1,) * (3 - ndim), (0,) * (3 - ndim)
    return one + step, one + spread, none + before, none + after


def _modes(padding_mode: str | Sequence[str], ndim: int) -> tuple[str, ...]:
    modes = (padding_mode,) * ndim if isinstance(padding_mode, str) else tuple(padding_mode)
    if len(modes) != ndim or any(mode not in _MODES for mode in modes):
        raise ValueError(
            f"padding_mode is {padding_mode!r}: it must be 'zeros' or 'replicate', or one of them "
            f"for each of {_AXES[ndim]}; pad the input yourself for another"
        )
    return modes


def _default_threads(threads: int | None) -> int:
    if threads is None:
        torch = sys.modules.get("torch")
        return int(torch.get_num_threads()) if torch is not None else 0
    if threads < 1:
        raise ValueError(f"threads is {threads}: it must be at least 1, or None")
    return threads


def _check_dims(ndim: int, named: dict[str, Any]) -> bool:
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
            raise ValueError(f"{name} has shape {tuple(value.shape)}: {layout}")
    return bool(named["x"].ndim == ndim + 2)


def _convolve(
    ndim: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int | Sequence[int]],
    dilation: int | Sequence[int],
    groups: int,
    padding_mode: str | Sequence[str],
    accuracy: str,
    threads: int | None,
    workspace_limit: int | None,
    out: Any,
    cancel: Any,
) -> Any:
    if not _native.available:
        _fallback.conv3d()  # refuses with a sentence
    if accuracy not in ("exact", "fast"):
        raise ValueError(f"accuracy is {accuracy!r}: it must be 'exact' or 'fast'")
    optional = {name: value for name, value in (("bias", bias), ("out", out)) if value is not None}
    named = {"x": x, "weight": weight, **optional}
    kind = _kind_of(named)
    batched = _check_dims(ndim, named)

    def lift(array: Any) -> Any:
        """As (N, C, T, H, W): a view with the missing dimensions put in."""
        whole = array if array.ndim == ndim + 2 else kind.insert(array, 0)
        return whole if ndim == 3 else kind.insert(whole, 2)

    source, filters = lift(kind.operand(x, "x")), lift(kind.operand(weight, "weight"))
    addend = None if bias is None else kind.operand(bias, "bias")
    kernel = tuple(int(size) for size in filters.shape[2:])
    geometry = _geometry(ndim, kernel, stride, padding, dilation)
    modes = ("zeros",) * (3 - ndim) + _modes(padding_mode, ndim)
    if out is None:
        space = _native.conv3d_out_size(tuple(source.shape[2:]), kernel, *geometry)
        target = kind.empty((source.shape[0], filters.shape[0], *space), source)
    else:
        target = lift(kind.target(out))
    limit = 0 if workspace_limit is None else workspace_limit
    _native.conv3d(
        source, filters, addend, target, *geometry, modes, groups, _default_threads(threads),
        limit, cancel,
    )  # fmt: skip
    if out is not None:
        return out
    result = target if ndim == 3 else kind.remove(target, 2)
    return result if batched else kind.remove(result, 0)
