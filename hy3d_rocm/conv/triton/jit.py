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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm.conv.triton import seen
from hy3d_rocm.conv.triton.progress import Progress

logger = logging.getLogger("hy3d_rocm")

# Called before each kernel is compiled, with its name and number in the series, from 1, by the
# thread that waits for it. For a host's progress bar, and its cancel: what it raises passes to the
# convolution's caller, nothing is compiled, and the next call tries again. None: nobody listens.
on_compile: Callable[[str, int], None] | None = None
_progress = Progress()
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


class Operands(dict[str, torch.Tensor]):
    """The tensors of one convolution by name, and what its launches ask of each, asked once.

    facts: address, bytes of an element, and whether the storage ends below 2 GiB.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.facts = {
            name: (
                tensor.data_ptr(), tensor.element_size(),
                is_small(tensor.untyped_storage().nbytes()),
            )
            for name, tensor in tensors.items()
        }  # fmt: skip
        self.device = tensors["out"].device.index


def launch(item: Launch, tensors: Mapping[str, torch.Tensor]) -> None:
    """Runs `item` on the current stream of the current device."""
    operands = tensors if isinstance(tensors, Operands) else Operands(tensors)
    facts, addresses, known = operands.facts, [], 0
    for name, offset in item.operands:
        base, size, small = facts[name]
        address = base + offset * size
        known = known_with(known, small, address % 16 == 0)
        addresses.append(address)
    device = operands.device
    compiled = item.compiled.get((known, device)) if _direct.usable else None
    if compiled is None or not _call(item, compiled, addresses, device):
        _first(item, operands, known, device)


def is_small(storage_bytes: int) -> bool:
    """Whether 32-bit offsets reach all of a storage."""
    return storage_bytes < _SMALL_BYTES


def known_with(known: int, small: bool, is_aligned: bool) -> int:
    """`known`, what a kernel may rely on of its operands' addresses, with one operand more."""
    return known * 4 + 2 * small + is_aligned


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
    """The first launch of its kind: compiled now, which is shown, or read from Triton's cache."""
    from hy3d_rocm.conv.triton import kernel

    operands: list[Any] = [_view(tensors[name], offset) for name, offset in item.operands]
    for i, block in enumerate(item.blocks):
        operands[i] = _descriptor(operands[i], block)
    function = getattr(kernel, item.kernel)

    def through_triton() -> Any:
        return function[item.grid](
            *operands, *item.numbers, *item.constants,
            num_warps=item.num_warps, num_stages=item.num_stages,
        )  # fmt: skip

    if (known, device) in item.compiled:  # it is launched this way for good
        through_triton()
        return
    dtypes = [tensors[name].dtype for name, _ in item.operands]
    name = seen.name_of(item, dtypes, known, device)
    with seen.lock_of(name):  # two threads need not compile the same
        launched = _shown(item.kernel, through_triton) if seen.is_new(name) else through_triton()
        is_compiled = hasattr(launched, "metadata")  # the interpreter returns none
        if is_compiled:
            item.compiled[known, device] = launched
        seen.note(name, on_disk=is_compiled)


def _shown(kernel: str, compile_and_launch: Callable[[], Any]) -> Any:
    """The result of `compile_and_launch`, which is told to whoever waits for it."""
    number = _progress.before()
    start = time.perf_counter()
    try:
        if on_compile is not None:
            on_compile(kernel, number)
        return compile_and_launch()
    finally:
        _progress.after(time.perf_counter() - start)


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
