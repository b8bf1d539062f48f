"""The reference convolution of the C tests (tests/c/reference.c), for tensors and arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import c_tests

Three = Sequence[int]
Long = ctypes.c_int64
# As hy3d_dtype, hy3d_pad_mode and hy3d_activation.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
MODES = {"zeros": 0, "replicate": 1}
ACTIVATIONS = {None: 0, "silu": 1}


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("size", Long * 5),
                ("stride", Long * 5))  # fmt: skip


class Desc(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int), ("batch", Long), ("in_channels", Long), ("out_channels", Long),
        ("groups", Long), ("in_size", Long * 3), ("kernel", Long * 3), ("stride", Long * 3),
        ("dilation", Long * 3), ("pad_before", Long * 3), ("pad_after", Long * 3),
        ("pad_mode", ctypes.c_int * 3), ("upsample", Long * 3), ("accuracy", ctypes.c_int),
        ("num_threads", ctypes.c_uint32), ("workspace_limit_bytes", ctypes.c_size_t),
        ("pairs", ctypes.c_uint32),
    )  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", Long * 3))


class Fusion(ctypes.Structure):
    _fields_ = (("frames", ctypes.POINTER(Frame)), ("scale", ctypes.c_void_p),
                ("shift", ctypes.c_void_p), ("activation", ctypes.c_int),
                ("residual", ctypes.POINTER(Tensor)))  # fmt: skip


def conv3d_reference(
    x: Any, weight: Any, bias: Any, out: Any, stride: Three, dilation: Three, pad_before: Three,
    pad_after: Three, pad_modes: Any, groups: int, frames: Sequence[Any] | None = None,
    scale: Any = None, shift: Any = None, activation: str | None = None,
    upsample: Three | None = None, residual: Any = None,
) -> None:  # fmt: skip
    """What _core.conv3d must write to `out`: sums in double, one rounding at the end. Slow."""
    times = tuple(upsample or (1, 1, 1))
    if frames is None:
        batch, channels, *size = x.shape
        held = None
    else:
        first = next(frame for frame in frames if frame is not None)
        batch, channels, size = 1, first.shape[0], [len(frames), *first.shape[1:]]
        held = (Frame * len(frames))(*map(_frame, frames))
    modes = (pad_modes,) * 3 if isinstance(pad_modes, str) else pad_modes
    desc = Desc(
        dtype=_dtype(weight), batch=batch, in_channels=channels, out_channels=weight.shape[0],
        groups=groups, in_size=_three(n * k for n, k in zip(size, times, strict=True)),
        kernel=_three(weight.shape[2:]), stride=_three(stride), dilation=_three(dilation),
        pad_before=_three(pad_before), pad_after=_three(pad_after),
        pad_mode=(ctypes.c_int * 3)(*(MODES[mode] for mode in modes)), upsample=_three(times),
    )  # fmt: skip
    fusion = Fusion(held, _address(scale), _address(shift), ACTIVATIONS[activation],
                    _pointer(residual))  # fmt: skip
    status = _function()(
        ctypes.byref(desc), None if frames is not None else _pointer(x), _pointer(weight),
        None if bias is None else _pointer(bias), ctypes.byref(fusion), _pointer(out),
    )  # fmt: skip
    if status:
        raise ValueError(f"the reference refuses these arguments with status {status}")


def _function() -> Any:
    library = c_tests.library()
    sizes = (ctypes.c_size_t * 4)()
    library.reference_sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(kind) for kind in (Desc, Tensor, Frame, Fusion)]
    return library.reference_conv3d


def _three(values: Any) -> Any:
    return (Long * 3)(*values)


def _dtype(array: Any) -> int:
    return DTYPES[str(array.dtype).removeprefix("torch.")]


def _address(array: Any) -> int | None:
    if array is None:
        return None
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def _strides(array: Any) -> list[int]:
    """In elements."""
    if hasattr(array, "data_ptr"):
        return list(array.stride())
    return [step // array.itemsize for step in array.strides]


def _frame(array: Any) -> Frame:
    return Frame() if array is None else Frame(_address(array), _three(_strides(array)))


def _pointer(array: Any) -> Any:
    """Of a tensor or array of up to five dimensions; the ones that it lacks are 1, at the end."""
    if array is None:
        return None
    missing = 5 - len(array.shape)
    size, stride = [*array.shape, *[1] * missing], [*_strides(array), *[0] * missing]
    made = Tensor(_address(array), _dtype(array), (Long * 5)(*size), (Long * 5)(*stride))
    return ctypes.pointer(made)
