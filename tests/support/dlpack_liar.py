"""DLPack producers made by hand: honest ones that count their deletions, and liars."""

from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA, GPU = 1, 2, 10  # DLPack's kDLCPU, kDLCUDA and kDLROCM
FLOAT, BFLOAT = 2, 4
READ_ONLY, IS_COPIED = 1, 2  # flags of DLPack 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """One float array behind `__dlpack__`; every field can be made a lie.

    version: (major, minor) of a capsule of DLPack 1, with flags; None: the kind before it.
    knows_version: whether `__dlpack__` takes max_version; `asked` is what it was called with.
    `deleted` counts calls of the deleter: 1 after any call that took the capsule, no more.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        ndim: int | None = None,
        dtype: tuple[int, int, int] = (FLOAT, 32, 1),
        device: int = CPU,
        said_device: object = (CPU, 0),
        no_data: bool = False,
        no_shape: bool = False,
        no_deleter: bool = False,
        byte_offset: int = 0,
        capsule_name: bytes | None = None,
        version: tuple[int, int] | None = None,
        flags: int = 0,
        knows_version: bool = True,
        bytes_behind: int = 4096,
        raising_deleter: bool = False,
    ) -> None:
        self.deleted = 0
        self._raises = raising_deleter
        self.said_device = said_device
        self._name = capsule_name or (b"dltensor_versioned" if version else b"dltensor")
        self._knows_version = knows_version
        self.asked: list[dict[str, object]] = []
        self._memory = ctypes.create_string_buffer(bytes_behind + 64)
        start = -(-ctypes.addressof(self._memory) // 64) * 64
        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self._deleter = _Deleter(self._delete)
        managed: Any = _Versioned() if version else _Managed()
        self._managed = managed
        if version:
            managed.major, managed.minor = version
            managed.flags = flags
        tensor = managed.tensor
        tensor.data = None if no_data else start
        tensor.device = _Device(device, 0)
        tensor.ndim = len(shape) if ndim is None else ndim
        tensor.dtype = _DType(*dtype)
        if not no_shape:
            tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if self._strides is not None:
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = byte_offset
        if not no_deleter:
            managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p).value

    def _delete(self, _managed: int) -> None:
        self.deleted += 1
        if self._raises:
            raise RuntimeError("the deleter fails")

    def __dlpack_device__(self) -> Any:
        return self.said_device

    def __dlpack__(self, **keywords: object) -> Any:
        self.asked.append(keywords)
        if keywords and not self._knows_version:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return new_capsule(ctypes.addressof(self._managed), self._name, None)


LIES: dict[str, dict[str, Any]] = {
    "a version to come": {"shape": (1, 2, 3, 4, 4), "version": (2, 0)},
    "a version that never was": {"shape": (1, 2, 3, 4, 4), "version": (0, 9)},
    "versioned, no dimensions": {"shape": (), "version": (1, 0)},
    "versioned, no memory": {"shape": (1, 2, 3, 4, 4), "version": (1, 1), "no_data": True},
    "versioned, no shape": {"shape": (1, 2, 3, 4, 4), "version": (1, 1), "no_shape": True},
    "versioned GPU memory": {"shape": (1, 2, 3, 4, 4), "version": (1, 1), "device": GPU},
    "versioned, already used": {
        "shape": (1, 2, 3, 4, 4),
        "version": (1, 1),
        "capsule_name": b"used_dltensor_versioned",
    },
    "no dimensions": {"shape": ()},
    "negative number of dimensions": {"shape": (2,), "ndim": -3},
    "two thousand million dimensions": {"shape": (2,), "ndim": 2**31 - 1},
    "six dimensions": {"shape": (1, 1, 1, 1, 1, 1)},
    "negative size": {"shape": (1, 1, -2, 2, 2)},
    "product of sizes beyond 2**63": {"shape": (2**40, 2**40, 1, 1, 1), "strides": (0,) * 5},
    "strides beyond 2**63": {"shape": (2, 2, 2, 2, 2), "strides": (2**62, 2**62, 1, 1, 1)},
    "the lowest stride there is": {"shape": (1, 1, 1, 1, 2), "strides": (1, 1, 1, 1, -(2**63))},
    "no memory": {"shape": (1, 2, 3, 4, 4), "no_data": True},
    "no shape": {"shape": (1, 2, 3, 4, 4), "no_shape": True},
    "two lanes": {"shape": (1, 2, 3, 4, 4), "dtype": (FLOAT, 32, 2)},
    "float of 7 bits": {"shape": (1, 2, 3, 4, 4), "dtype": (FLOAT, 7, 1)},
    "int32": {"shape": (1, 2, 3, 4, 4), "dtype": (0, 32, 1)},
    "bfloat of 32 bits": {"shape": (1, 2, 3, 4, 4), "dtype": (BFLOAT, 32, 1)},
    "misaligned": {"shape": (1, 2, 3, 4, 4), "byte_offset": 3},
    "GPU memory, said too": {"shape": (1, 2, 3, 4, 4), "device": GPU, "said_device": (GPU, 0)},
    "GPU memory, the CPU said": {"shape": (1, 2, 3, 4, 4), "device": GPU},
    "device of text": {"shape": (1, 2, 3, 4, 4), "said_device": ("cpu", 0)},
    "device of one number": {"shape": (1, 2, 3, 4, 4), "said_device": (1,)},
    "device of nothing": {"shape": (1, 2, 3, 4, 4), "said_device": None},
    "capsule already used": {"shape": (1, 2, 3, 4, 4), "capsule_name": b"used_dltensor"},
    "capsule of another kind": {"shape": (1, 2, 3, 4, 4), "capsule_name": b"arrow_array"},
}


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


_Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))


class Described:
    """What an Exchange describes: a float array; ndim, shape and strides can be lies."""

    def __init__(
        self,
        shape: tuple[int, ...] | None = (2, 3),
        *,
        strides: tuple[int, ...] | None = (3, 1),
        ndim: int | None = None,
    ) -> None:
        self.shape, self.strides = (
            None if numbers is None else (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
            for numbers in (shape, strides)
        )
        self.ndim = len(shape or ()) if ndim is None else ndim


class Exchange:
    """DLPack's table of functions for the type Described; `capsule` is what such a type offers."""

    def __init__(self, *, version: tuple[int, int] = (1, 3), describes: bool = True) -> None:
        self._describe = _Describe(self._fill)
        describe = ctypes.cast(self._describe, ctypes.c_void_p).value if describes else None
        self._table = _Exchange(*version, describe=describe)
        self.capsule = new_capsule(ctypes.addressof(self._table), b"dlpack_exchange_api", None)

    @staticmethod
    def _fill(found: Described, out: Any) -> int:
        tensor = out.contents
        tensor.device, tensor.dtype = _Device(CPU, 0), _DType(FLOAT, 32, 1)
        tensor.ndim = found.ndim
        for name, numbers in (("shape", found.shape), ("strides", found.strides)):
            pointer = ctypes.POINTER(ctypes.c_int64)
            setattr(tensor, name, pointer() if numbers is None else ctypes.cast(numbers, pointer))
        return 0
