"""Launching the kernels of kernels.py with little work on the host.

As conv/triton/jit.py does for the convolution tier, but compiled kernels are kept for all launches
of a process: a decode makes thousands of launches that differ in numbers and addresses alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hy3d_rocm.conv.triton import jit

logger = logging.getLogger("hy3d_rocm")

Block = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # sizes, strides, block


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, but for its addresses.

    kernel: a name in kernels.py. operands: for each pointer argument the tensor's name and an
    offset in elements. numbers, constants: the arguments after the pointers, in order. blocks: for
    the first two operands the tensor descriptor, if they are read through one.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[float, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int
    blocks: tuple[Block, ...] = ()


class Operand(NamedTuple):
    """What a launch asks of a tensor: address, bytes of an element, below 2 GiB."""

    tensor: torch.Tensor
    address: int
    itemsize: int
    is_small: bool


def operand(tensor: torch.Tensor) -> Operand:
    """The facts of a tensor, asked once."""
    small = tensor.untyped_storage().nbytes() < _SMALL_BYTES
    return Operand(tensor, tensor.data_ptr(), tensor.element_size(), small)


_compiled: dict[tuple[Any, ...], Any] = {}
_SMALL_BYTES = 2**31  # as in Triton's HIPBackend.is_within_2gb, which goes by the storage's size
# What a launcher of another signature raises before it has launched anything. What a device says
# (RuntimeError) is none of these: it is not tried again.
_MISFITS = (
    TypeError, AttributeError, ValueError, LookupError, ArithmeticError, AssertionError,
    NotImplementedError, SystemError,
)  # fmt: skip
_direct = {"usable": True}


def launch(
    item: Launch, operands: Mapping[str, Operand], device: int | None,
    stream: torch.cuda.Stream | None = None,
) -> None:  # fmt: skip
    """Runs `item` on a stream (None: the current one) of the current device, which is `device`."""
    addresses: list[Any] = []
    facts: list[Any] = []
    for name, offset in item.operands:
        tensor, base, size, small = operands[name]
        address = base + offset * size
        facts.append((tensor.dtype, small, address % 16 == 0))
        addresses.append(address)
    key = (
        item.kernel, item.constants, item.num_warps, item.num_stages,
        tuple([block for _, _, block in item.blocks]), tuple(facts), device,
    )  # fmt: skip
    compiled = _compiled.get(key) if _direct["usable"] else None
    if compiled is None or not _call(item, compiled, addresses, device, stream):
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            _first(item, operands, key)


def _call(
    item: Launch, compiled: Any, addresses: list[Any], device: Any, stream: torch.cuda.Stream | None
) -> bool:
    """Calls a compiled kernel as Triton's JITFunction.run does; False: not this Triton's way, and
    nothing was launched (jit.py of the convolution tier says what was read where)."""
    try:
        number = (
            torch._C._cuda_getCurrentRawStream(device) if stream is None else stream.cuda_stream
        )
        for i, block in enumerate(item.blocks):
            addresses[i] = _descriptor(_Base(addresses[i]), block)
        compiled.run(
            *item.grid, number, compiled.function, compiled.packed_metadata, None, None, None,
            *addresses, *item.numbers, *item.constants,
        )  # fmt: skip
    except _MISFITS as error:
        _direct["usable"] = False
        logger.warning(
            "this Triton launches kernels in another way than 3.3 to 3.6 (%s: %s): they go through"
            " its own launcher from now on, which costs some 100 us a launch",
            type(error).__name__, error,
        )  # fmt: skip
        return False
    return True


def _first(item: Launch, operands: Mapping[str, Operand], key: tuple[Any, ...]) -> None:
    """Through Triton, which compiles the kernel or finds it in its cache."""
    from hy3d_rocm.decode.fused import kernels

    views: list[Any] = []
    for name, offset in item.operands:
        tensor = operands[name].tensor
        views.append(tensor.as_strided((1,), (1,), tensor.storage_offset() + offset))
    for i, block in enumerate(item.blocks):
        views[i] = _descriptor(views[i], block)
    function = getattr(kernels, item.kernel)

    def through_triton() -> Any:
        return function[item.grid](
            *views, *item.numbers, *item.constants,
            num_warps=item.num_warps, num_stages=item.num_stages,
        )  # fmt: skip

    if key in _compiled:  # launched this way for good
        through_triton()
        return
    launched = jit._shown(item.kernel, through_triton)
    if hasattr(launched, "metadata"):  # the interpreter returns none
        _compiled[key] = launched


class _Base:
    """An address where a tensor is expected."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def _descriptor(base: Any, block: Block) -> Any:
    """A TensorDescriptor without its checks, which look at a real tensor and take their time."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    made = TensorDescriptor.__new__(TensorDescriptor)
    made.base, made.padding = base, "zero"
    made.shape, made.strides, made.block_shape = (list(part) for part in block)
    return made
