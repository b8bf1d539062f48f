"""Launching a kernel of kernel.py with little work on the host.

Triton's own launch path looks at every argument each time (some 100 us for 40 of them). Here a
compiled kernel belongs to its Launch, which fixes constants and types, and depends further on the
device, on which addresses are 16-byte aligned, and on which tensors are below 2 GiB, since all
sizes are declared do_not_specialize. (Triton's AMD backend reads small tensors with 32-bit offsets:
such a kernel must never meet a larger one.) The first launch goes through Triton, which compiles
the kernel or finds it in its cache; later ones call it with plain addresses, unless this Triton's
kernels are called in another way: then every launch goes through Triton.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

logger = logging.getLogger("hy3d_rocm")

_lock = threading.Lock()
# A launch that takes longer than this has compiled something.
_NOTABLE_SECONDS = 0.5
# As in HIPBackend.is_within_2gb, which goes by the size of the storage.
_SMALL_BYTES = 2**31
# What a launcher of another signature raises before it has launched anything. What a device says
# (RuntimeError) is none of these: it is not tried again.
_MISFITS: tuple[type[Exception], ...] = (TypeError, AttributeError)
_FIRST_MISFITS = (
    *_MISFITS, ValueError, LookupError, ArithmeticError, AssertionError, NotImplementedError,
    SystemError,
)  # fmt: skip


class _Direct:
    """Whether compiled kernels are called directly: yes, until this Triton turns out to be another.

    misfits: what is taken for that; fewer kinds once a direct call has succeeded.
    """

    def __init__(self) -> None:
        self.usable = True
        self.misfits: tuple[type[Exception], ...] = _FIRST_MISFITS

    def succeeded(self) -> None:
        self.misfits = _MISFITS

    def give_up(self, error: Exception) -> None:
        if self.usable:
            self.usable = False
            logger.warning(
                "this Triton launches kernels in another way than 3.3 to 3.6 (%s: %s): they go"
                " through its own launcher from now on, which costs some 100 us a launch",
                type(error).__name__, error,
            )  # fmt: skip


_direct = _Direct()

Block = tuple[list[int], list[int], list[int]]  # sizes, strides, block


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: a name in kernel.py. operands: for each pointer argument the operand's name and the
    offset in elements. numbers, constants: the arguments after the pointers, in order. blocks: for
    the first two operands the tensor descriptor, if they are read through one. compiled: the
    kernel, once it is there, by what is known of the addresses (see `launch`) and the device.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int
    blocks: tuple[Block, ...] = ()
    compiled: dict[tuple[int, int | None], Any] = field(default_factory=dict, compare=False)


def launch(item: Launch, tensors: dict[str, torch.Tensor]) -> None:
    """Runs `item` on the current stream of the current device."""
    addresses: list[Any] = []
    known = 0
    for name, offset in item.operands:
        tensor = tensors[name]
        address = tensor.data_ptr() + offset * tensor.element_size()
        small = tensor.untyped_storage().nbytes() < _SMALL_BYTES
        known = known * 4 + 2 * small + (address % 16 == 0)
        addresses.append(address)
    device = tensors["out"].device.index
    compiled = item.compiled.get((known, device)) if _direct.usable else None
    if compiled is None or not _call(item, compiled, addresses, device):
        _first(item, tensors, known, device)


def _call(item: Launch, compiled: Any, addresses: list[Any], device: Any) -> bool:
    """Calls a compiled kernel as Triton's JITFunction.run does; False: not this Triton's way.

    Nothing was launched then. CompiledKernel.run takes (grid x, y, z, stream, function,
    packed_metadata, launch_metadata, two hooks, *all arguments, constants among them) in Triton
    3.3 and 3.6, read in their sources; HIPLauncher and CudaLauncher differ in what they put in
    between for the driver, not in what they are called with, and both take a pointer as an int.
    """
    try:
        for i, block in enumerate(item.blocks):
            addresses[i] = _descriptor(_Base(addresses[i]), block)
        compiled.run(
            *item.grid, torch._C._cuda_getCurrentRawStream(device), compiled.function,
            compiled.packed_metadata, None, None, None, *addresses, *item.numbers, *item.constants,
        )  # fmt: skip
    except _direct.misfits as error:
        _direct.give_up(error)
        return False
    if _direct.misfits is not _MISFITS:
        _direct.succeeded()
    return True


def _first(item: Launch, tensors: dict[str, torch.Tensor], known: int, device: int | None) -> None:
    """The first launch of its kind: compiled now, which is said if it took long."""
    from hy3d_rocm.conv.triton import kernel

    operands: list[Any] = [_view(tensors[name], offset) for name, offset in item.operands]
    for i, block in enumerate(item.blocks):
        operands[i] = _descriptor(operands[i], block)
    function = getattr(kernel, item.kernel)
    start = time.perf_counter()
    with _lock:  # two threads need not compile the same
        launched = function[item.grid](
            *operands, *item.numbers, *item.constants,
            num_warps=item.num_warps, num_stages=item.num_stages,
        )  # fmt: skip
        if hasattr(launched, "metadata"):  # the interpreter returns none
            item.compiled[known, device] = launched
    seconds = time.perf_counter() - start
    if seconds > _NOTABLE_SECONDS:
        logger.info(
            "Triton compiled %s in %.1f s; it is kept on disk for the next time",
            item.kernel, seconds,
        )  # fmt: skip


def _view(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """One element of `tensor`'s storage, where the kernel's pointer starts."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


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
    made.shape, made.strides, made.block_shape = block
    return made
