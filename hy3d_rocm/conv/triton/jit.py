"""Launching a kernel of kernel.py with little work on the host.

Triton's own launch path looks at every argument each time (some 100 us for 40 of them). Here a
compiled kernel belongs to its Launch, which fixes constants and types, and depends further on the
device, on which addresses are 16-byte aligned, and on which tensors are below 2 GiB, since all
sizes are declared do_not_specialize. (Triton's AMD backend reads small tensors with 32-bit offsets:
such a kernel must never meet a larger one.) The first launch goes through Triton, which compiles
the kernel or finds it in its cache; later ones call it with plain addresses, by a closure that is
kept under what little of the addresses differs from call to call, unless this Triton's kernels are
called in another way: then every launch goes through Triton.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from hy3d_rocm.conv.triton import cuda, first_use
from hy3d_rocm.conv.triton.item import Call, Launch

logger = logging.getLogger("hy3d_rocm")

# Called before each kernel is compiled, with its name and number in the series, from 1, by the
# thread that waits for it. For a host's progress bar, and its cancel: what it raises passes to the
# convolution's caller, nothing is compiled, and the next call tries again. None: nobody listens.
on_compile: Callable[[str, int], None] | None = None
_progress = first_use.Progress()
# As in HIPBackend.is_within_2gb, which goes by the size of the storage, where ours goes by what a
# tensor reaches of it: a kernel of 32-bit offsets computes them from the address it is given.
_SMALL_BYTES = 2**31
# What a launcher of another signature raises before it has launched anything. What a device says
# (RuntimeError) is none of these: it is not tried again.
_MISFITS: tuple[type[Exception], ...] = (TypeError, AttributeError)
_FIRST_MISFITS: tuple[type[Exception], ...] = (
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

# Operands by number, as in Operands.addresses. "unpacked" is the weight as the call has it,
# "weight" that which the kernels read: the same, or packed in the workspace, where "rows" and
# "sums" are too.
NAMES = ("x", "unpacked", "weight", "bias", "out", "rows", "sums")
_NUMBER = {name: number for number, name in enumerate(NAMES)}


class Operands:
    """The tensors of one convolution as its launches see them.

    addresses: in the order of NAMES. far: names of those that reach beyond 2 GiB. tensors: makes
    them, by name, for a first launch. key: what of the addresses a compiled kernel depends on,
    beside `far`, which is the same for all calls of a Launch.
    """

    __slots__ = ("addresses", "device", "dtype", "far", "key", "tensors")

    def __init__(
        self, addresses: tuple[int, ...], dtype: torch.dtype, device: int | None,
        far: Collection[str], tensors: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        self.addresses, self.dtype = addresses, dtype
        self.device: Any = device  # None, without a GPU, only ever meets doubles
        self.far, self.tensors = far, tensors
        x, unpacked, weight, bias, out, rows, sums = addresses
        aligned = None
        if (x | unpacked | weight | bias | out | rows | sums) & 15:
            aligned = tuple([address & 15 for address in addresses])
        self.key: Hashable = (aligned, device)

    def at(self, item: Launch) -> list[tuple[int, int]]:
        """Number and offset in bytes of each operand of a launch."""
        size = self.dtype.itemsize
        return [(_NUMBER[n], offset * (4 if n == "sums" else size)) for n, offset in item.operands]


def launch_ready(calls: Sequence[Call], addresses: Sequence[int], device: Any) -> int:
    """Launches one after the other on the current stream of the current device; how many were
    launched: fewer than all where this Triton turns out to be another."""
    if not _direct.usable:
        return 0
    done = 0
    try:
        stream = torch._C._cuda_getCurrentRawStream(device)
        for call in calls:
            call(addresses, stream)
            done += 1
    except _direct.misfits as error:
        _direct.give_up(error)
    else:
        if _direct.misfits is not _MISFITS:
            _direct.succeeded()
    return done


def launch_all(items: Sequence[Launch], operands: Operands) -> tuple[Call, ...] | None:
    """Runs `items` as `launch_ready` does, ready or not; all their calls, if they are ready now."""
    calls = []
    for item in items:
        call = item.calls.get(operands.key)
        if call is None or not launch_ready((call,), operands.addresses, operands.device):
            launch(item, operands)
        calls.append(item.calls.get(operands.key))
    ready = tuple([call for call in calls if call is not None])
    return ready if len(ready) == len(items) else None


def launch(item: Launch, operands: Operands) -> None:
    """Runs `item`, for which there is no ready call: the first of its kind, or the first here."""
    known = 0
    for (name, _), (number, offset) in zip(item.operands, operands.at(item), strict=True):
        is_aligned = (operands.addresses[number] + offset) % 16 == 0
        known = known_with(known, name not in operands.far, is_aligned)
    compiled = item.compiled.get((known, operands.device))
    call = ready(item, compiled, operands.at(item), operands.addresses, operands.device)
    if call is None:
        _first(item, operands, known)
    else:
        item.calls[operands.key] = call


def is_small(size_bytes: int) -> bool:
    """Whether 32-bit offsets reach all of a tensor."""
    return size_bytes < _SMALL_BYTES


def known_with(known: int, small: bool, is_aligned: bool) -> int:
    """`known`, what a kernel may rely on of its operands' addresses, with one operand more."""
    return known * 4 + 2 * small + is_aligned


def ready(
    item: Launch, compiled: Any, at: Sequence[tuple[int, int]], addresses: Sequence[int],
    device: Any,
) -> Call | None:  # fmt: skip
    """Launches a compiled kernel; the call for the next time. None where none is compiled yet, or
    it is not this Triton's way: nothing was launched then. at: as bind()."""
    if compiled is None or not _direct.usable:
        return None
    try:
        call = bind(item, compiled, at)
    except _direct.misfits as error:
        _direct.give_up(error)
        return None
    return call if launch_ready((call,), addresses, device) else None


def bind(item: Launch, compiled: Any, at: Sequence[tuple[int, int]]) -> Call:
    """A compiled kernel as a function of addresses and stream, which calls it as Triton's
    JITFunction.run does.

    CompiledKernel.run takes (grid x, y, z, stream, function, packed_metadata, launch_metadata, two
    hooks, *all arguments, constants among them) in Triton 3.3 and 3.6, read in their sources;
    HIPLauncher and CudaLauncher differ in what they put in between for the driver, not in what they
    are called with, and both take a pointer as an int.
    """
    short = cuda.bind(item, compiled, at)
    if short is not None:
        return short
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    (x, y, z), blocks = item.grid, item.blocks
    rest = (*item.numbers, *item.constants)

    def call(addresses: Sequence[int], stream: int) -> None:
        pointers: list[Any] = [addresses[number] + offset for number, offset in at]
        for i, block in enumerate(blocks):
            pointers[i] = cuda.descriptor(cuda.Base(pointers[i]), block)
        run(x, y, z, stream, function, packed, None, None, None, *pointers, *rest)

    return call


def _first(item: Launch, operands: Operands, known: int) -> None:
    """The first launch of its kind: compiled now, which is shown, or read from Triton's cache."""
    from hy3d_rocm.conv.triton import kernel

    tensors, device = operands.tensors(), operands.device
    through_triton = by_triton(kernel, item, tensors)
    if (known, device) in item.compiled:  # it is launched this way for good
        through_triton()
        return
    dtypes = [tensors[name].dtype for name, _ in item.operands]
    name = first_use.name_of(item, dtypes, known, device)
    with first_use.lock_of(name):  # two threads need not compile the same
        launched = (
            _shown(item.kernel, through_triton) if first_use.is_new(name) else through_triton()
        )
        is_compiled = hasattr(launched, "metadata")  # the interpreter returns none
        if is_compiled:
            item.compiled[known, device] = launched
        first_use.note(name, on_disk=is_compiled)


def by_triton(kernels: Any, item: Launch, tensors: Mapping[str, torch.Tensor]) -> Callable[[], Any]:
    """Launches `item`, a kernel of the module `kernels`, by Triton's own call. tensors: the
    operands, by name."""
    pointers: list[Any] = [_view(tensors[name], offset) for name, offset in item.operands]
    for i, block in enumerate(item.blocks):
        pointers[i] = cuda.descriptor(pointers[i], block)
    function = getattr(kernels, item.kernel)
    return lambda: function[item.grid](
        *pointers, *item.numbers, *item.constants,
        num_warps=item.num_warps, num_stages=item.num_stages,
    )  # fmt: skip


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
