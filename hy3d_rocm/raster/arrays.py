"""NumPy arrays and torch tensors as the flat arrays that the C rasteriser takes, and back.

A `Door` is made for the arrays of one call. What comes in is read as C-contiguous float32 or int32
in main memory, without a copy where it is that already; what goes out is of the kind, and on the
device, of what came in. Subclasses of NumPy's array, such as matrix and memmap, are read as plain
arrays and give plain ones; masked arrays are refused, as their masks would be lost. And what the
rasteriser's functions return: arrays or tensors, as their inputs were.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hy3d_rocm.conv.functional import default_threads
from hy3d_rocm.units import brief

MOST_PIXELS_A_SIDE = 32768  # HY3D_RASTER_MOST_PIXELS_A_SIDE
MOST_THREADS = 1024  # of one call: hy3d_context_desc
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MASKS = ("uint8", "bool")
Shape = tuple["str | int", ...]  # a size that is free has a letter


class Door:
    """NumPy's arrays (device None), or torch's of one device, copied out and back where that is not
    the CPU's."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    @property
    def on_gpu(self) -> bool:
        """Whether the arrays are where kernels can be run."""
        return self.device is not None and bool(self.device.type == "cuda")  # HIP's name too

    def floats(self, value: Any, name: str, shape: Shape) -> Any:
        """`value` as float32; TypeError for other kinds of numbers, ValueError for the shape."""
        remedy = ".astype('float32')" if self.device is None else ".float()"
        wanted = f"floating-point numbers, such as {name}{remedy}"
        with np.errstate(over="ignore"):  # the infinity is refused, or asked for
            found = self._read(value, name, shape, _FLOATS, wanted, "float32")
            return np.require(found, np.float32, ["C", "A"])

    def indices(self, value: Any, name: str, shape: Shape) -> Any:
        """`value` as int32; TypeError where it isn't of integers, ValueError where one is too
        large for that."""
        remedy = ".astype('int32')" if self.device is None else ".int()"
        wanted = f"integers, such as {name}{remedy}"
        return _as_int32(self._read(value, name, shape, _INTEGERS, wanted), name)

    def bytes_of(self, value: Any, name: str, shape: Shape) -> Any:
        """A copy of a mask as uint8: bool, or uint8 as it is."""
        wanted = "uint8 or bool" if self.device is None else "torch.uint8 or torch.bool"
        found = self._read(value, name, shape, _MASKS, f"a mask of {wanted}", "uint8")
        return np.array(found, dtype=np.uint8, order="C")

    def _read(
        self, value: Any, name: str, shape: Shape, types: Container[str], wanted: str,
        dtype: str = "",
    ) -> Any:  # fmt: skip
        """In main memory as a plain array, if its type is one of `types`; a tensor's as `dtype`,
        and no part of a graph."""
        check_shape(value, name, shape)
        dtype_of = value.dtype  # NumPy's in any order of bytes, or torch's
        kind = getattr(dtype_of, "name", None) or str(dtype_of).removeprefix("torch.")
        if kind not in types:
            raise TypeError(f"{name} is {dtype_of}: give {wanted}")
        if self.device is None:
            return np.asarray(value)
        import torch

        dense = value.detach().resolve_conj().resolve_neg()
        return dense.to("cpu", getattr(torch, dtype, value.dtype)).contiguous().numpy()

    def give(self, array: Any, like: Any = None) -> Any:
        """A result as the caller's kind of array; `like`: of this one's type as well."""
        if self.device is None:
            return array if like is None else array.astype(like.dtype, copy=False)
        import torch

        tensor = torch.from_numpy(array)
        return tensor.to(self.device, tensor.dtype if like is None else like.dtype)


def door_of(named: Mapping[str, Any], **optional: Any) -> Door:
    """The door for arrays that belong together; optional: those of them that may be None.

    TypeError where they are not all NumPy arrays or all torch tensors, and for masked arrays;
    ValueError where tensors are on several devices or have no dense data.
    """
    given = {**named, **{name: value for name, value in optional.items() if value is not None}}
    torch = sys.modules.get("torch")
    tensors = {n for n, v in given.items() if torch is not None and isinstance(v, torch.Tensor)}
    for name, value in given.items():
        if name not in tensors and not isinstance(value, np.ndarray):
            kind = type(value).__name__
            raise TypeError(f"{name} is {kind}: give a NumPy array or a torch tensor")
        plain(value, name)
    if not tensors:
        return Door()
    if strangers := [name for name in given if name not in tensors]:
        raise TypeError(
            f"{strangers[0]} is a NumPy array and {min(tensors)} a torch tensor: pass all as NumPy "
            "arrays or all as torch tensors (torch.from_numpy shares the memory)"
        )
    return Door(_one_device(given))


def _one_device(tensors: Mapping[str, Any]) -> Any:
    first, *_ = tensors
    device = tensors[first].device
    for name, value in tensors.items():
        if value.device != device:
            raise ValueError(
                f"{first} is on {device} and {name} on {value.device}: pass them on one device, "
                f"such as {name}.to({first}.device)"
            )
        if value.device.type == "meta" or str(value.layout) != "torch.strided":
            what = "no data (device meta)" if value.device.type == "meta" else str(value.layout)
            raise ValueError(f"{name} has {what}: give a dense tensor with data")
    return device


def checked_size(size: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a picture. TypeError or ValueError where that can be none."""
    try:
        sides = tuple(operator.index(side) for side in size)
    except TypeError:
        raise TypeError(f"size is {brief(size)}: give two integers, (height, width)") from None
    if len(sides) != 2:
        raise ValueError(f"size is {brief(size)}: give two integers, (height, width)")
    if not all(1 <= side <= MOST_PIXELS_A_SIDE for side in sides):
        raise ValueError(
            f"size is {brief(sides[0])} x {brief(sides[1])} (height x width): each is 1 to "
            f"{MOST_PIXELS_A_SIDE}"
        )
    return sides[0], sides[1]


def checked_threads(threads: Any) -> int:
    """The number of threads that the core is asked for; 0 leaves it to the core. TypeError or
    ValueError where it can be none."""
    if threads is None:
        return min(default_threads(None), MOST_THREADS)
    try:
        number = operator.index(threads)
    except TypeError:
        raise TypeError(
            f"threads is {brief(threads)}: give an integer of 1 to {MOST_THREADS}, or None"
        ) from None
    if not 1 <= number <= MOST_THREADS:
        raise ValueError(
            f"threads is {brief(number)}: it must be at least 1 and at most {MOST_THREADS}, or None"
        )
    return number


def plain(value: Any, name: str) -> Any:
    """`value`, or what it holds as a plain array if it is of a subclass of NumPy's; TypeError for
    a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost: give {name}.filled(...) or "
            f"{name}.data"
        )
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def check_shape(value: Any, name: str, shape: Shape) -> None:
    """ValueError unless `value` has this shape; letters in it stand for any size."""
    found = tuple(value.shape)
    if not _fits(found, shape):
        wanted = ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} has shape {found}: it must be ({wanted})")


def _fits(found: tuple[int, ...], shape: Shape) -> bool:
    return len(found) == len(shape) and all(
        isinstance(wanted, str) or wanted == size for wanted, size in zip(shape, found, strict=True)
    )


def leading(value: Any, name: str, last: Shape) -> tuple[tuple[int, ...], Any]:
    """The leading sizes of (..., *last), and `value` with these made one."""
    value = plain(value, name)
    found = tuple(value.shape)
    at = max(len(found) - len(last), 0)
    if not _fits(found[at:], last):
        wanted = ", ".join(["...", *(str(size) for size in last)])
        raise ValueError(f"{name} has shape {found}: it must be ({wanted})")
    pixels = int(np.prod(found[:at], dtype=np.int64))
    return found[:at], value.reshape((pixels, *found[at:]))


def _as_int32(value: Any, name: str) -> Any:
    limits = np.iinfo(np.int32)
    fits = np.can_cast(value.dtype, np.int32)
    if not fits and value.size and (value.max() > limits.max or value.min() < limits.min):
        wrong = (value > limits.max) | (value < limits.min)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = ", ".join(map(str, at))
        raise ValueError(
            f"{name}[{where}] is {value[at]}: that is no index of anything here; check what made it"
        )
    return np.require(value, np.int32, ["C", "A"])


class Raster(NamedTuple):
    """A picture of triangles.

    face_index: (H, W) int32, 0 where nothing was drawn, else the face's number + 1.
    barycentric: (H, W, 3) float32, perspective-correct, 0 where nothing was drawn.
    depth: (H, W) float32, Z/W; +inf where nothing was drawn.
    """

    face_index: Any
    barycentric: Any
    depth: Any


class Scattered(NamedTuple):
    """Values put into a texture.

    texture: (H, W, C) float32, the weighted mean, 0 where nothing fell.
    total: (H, W) float32, the sum of the weights.
    """

    texture: Any
    total: Any
