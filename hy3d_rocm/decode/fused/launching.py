"""Launching the kernels of kernels.py with little work on the host.

As conv/triton/jit.py does for the convolution tier, but compiled kernels are kept for all launches
of a process: a decode makes thousands of launches that differ in numbers and addresses alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hy3d_rocm.conv.triton import cuda, jit

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
    # By the storage's size, as Triton's HIPBackend.is_within_2gb goes.
    small = jit.is_small(tensor.untyped_storage().nbytes())
    return Operand(tensor, tensor.data_ptr(), tensor.element_size(), small)


_compiled: dict[tuple[Any, ...], Any] = {}


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
    compiled = _compiled.get(key) if jit._direct.usable else None
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
            addresses[i] = _descriptor(cuda.Base(addresses[i]), block)
        compiled.run(
            *item.grid, number, compiled.function, compiled.packed_metadata, None, None, None,
            *addresses, *item.numbers, *item.constants,
        )  # fmt: skip
    except jit._FIRST_MISFITS as error:
        jit._direct.give_up(error)  # it is the same Triton for both
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


def _descriptor(base: Any, block: Block) -> Any:
    sizes, strides, tile = block
    return cuda.descriptor(base, (list(sizes), list(strides), list(tile)))
