"""Launching kernels with little work on the host, for the convolution tier and the fused back-end.

Triton's own launch path looks at every argument each time (some 100 us for 40 of them). Here a
compiled kernel is kept by all that it was compiled for: constants, the operands' types, the device,
which addresses are 16-byte aligned, and which tensors are below 2 GiB; all sizes are declared
do_not_specialize. (Triton's AMD backend reads small tensors with 32-bit offsets: such a kernel must
never meet a larger one.) The first launch goes through Triton, which compiles the kernel or finds
it in its cache; later ones call it with plain addresses, by a closure that the caller keeps with
its launches, unless this Triton's kernels are called in another way: then every launch goes through
Triton.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from hy3d_rocm.conv.tiers import base
from hy3d_rocm.conv.triton import ahead
from hy3d_rocm.conv.triton.ahead import Facts
from hy3d_rocm.conv.triton.plan import Call, Launch

logger = logging.getLogger("hy3d_rocm")

# Called before each kernel is compiled, with its name and number in the series, from 1, by the
# thread that waits for it; several times a second while another process compiles it (ahead.py). For
# a host's progress bar, and its cancel: what it raises passes to the convolution's caller, nothing
# is launched, and the next call tries again. None: nobody listens.
on_compile: Callable[[str, int], None] | None = None
_progress = ahead.Progress()
# As in HIPBackend.is_within_2gb.
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

    def give_up(self, error: Exception) -> None:
        if self.usable:
            self.usable = False
            logger.warning(
                "this Triton launches kernels in another way than 3.3 to 3.6 (%s: %s): they go"
                " through its own launcher from now on, which costs some 100 us a launch",
                type(error).__name__, error,
            )  # fmt: skip


_direct = _Direct()
# Compiled kernels by all that they depend on. A decode makes thousands of launches that differ in
# numbers and addresses alone.
_compiled: dict[tuple[Any, ...], Any] = {}


class Operands(NamedTuple):
    """The operands of one call as its launches see them, by number.

    small: whether 32-bit offsets reach all of each (is_small). tensors: None for one that no launch
    of this call has.
    """

    names: Sequence[str]
    addresses: Sequence[int]
    small: Sequence[bool]
    device: int | None  # None, without a GPU, for the interpreter and doubles
    tensors: Sequence[torch.Tensor | None]


def launch_ready(calls: Sequence[Call], addresses: Sequence[int], device: int | None) -> int:
    """Launches one after the other on the current stream of the current device; how many were
    launched: fewer than all where this Triton turns out to be another."""
    if not _direct.usable:
        return 0
    done = 0
    try:
        stream = torch._C._cuda_getCurrentRawStream(device)  # type: ignore[arg-type]
        for call in calls:
            call(addresses, stream)
            done += 1
    except _direct.misfits as error:
        _direct.give_up(error)
    else:
        _direct.misfits = _MISFITS
    return done


class Launches(Protocol):
    """Launches, and the calls of all of them that are ready, by what compiled kernels depend on."""

    calls: dict[Hashable, tuple[Call, ...]]

    @property
    def launches(self) -> tuple[Launch, ...]: ...


def launch_all(made: Launches, form: Hashable, operands: Operands, done: int) -> None:
    """Runs all but the first `done`, of which not all are ready; their calls are kept for
    launch_ready, if they are ready now. form: what they depend on of the operands."""
    calls = [launch(item, operands) for item in made.launches[done:]]
    found = tuple(call for call in calls if call is not None)
    if not done and len(found) == len(calls):
        made.calls[form] = found


def launch(item: Launch, operands: Operands) -> Call | None:
    """Runs one launch; its call for the next time, None where it went through Triton."""
    at: list[tuple[int, int]] = []
    facts: list[Facts] = []
    given: list[torch.Tensor] = []
    for name, offset in item.operands:
        number = operands.names.index(name)
        tensor = operands.tensors[number]
        assert tensor is not None, f"a launch without its operand {name}"
        distance = offset * tensor.element_size()
        is_aligned = (operands.addresses[number] + distance) % 16 == 0
        at.append((number, distance))
        facts.append(Facts(tensor.dtype, operands.small[number], is_aligned))
        given.append(_view(tensor, offset))
    key = (*item.compiled_for, *facts, operands.device)
    compiled = _compiled.get(key)
    call = bind(item, compiled, at)
    if call is not None and launch_ready((call,), operands.addresses, operands.device):
        return call
    if compiled is not None:  # it is launched this way for good
        by_triton(item, given)()
        return None
    name = ahead.name_of(item, facts, operands.device)
    with ahead.lock_of(name):  # two threads need not compile the same
        compile_and_launch = by_triton(item, given)
        is_new = ahead.is_new(name)
        try:
            launched = (
                _shown(item.kernel, name, compile_and_launch) if is_new else compile_and_launch()
            )
        except Exception as error:
            if not type(error).__module__.startswith("triton."):
                raise
            text = str(error).strip().splitlines() or [""]
            raise RuntimeError(f"Triton can't compile {item.kernel}: {text[-1]}") from error
        is_compiled = hasattr(launched, "metadata")  # the interpreter returns none
        if is_compiled:
            _compiled[key] = launched
        ahead.note(name, on_disk=is_compiled)
    return None


def is_small(size_bytes: int) -> bool:
    """Whether 32-bit offsets reach all of a tensor."""
    return size_bytes < _SMALL_BYTES


def bind(item: Launch, compiled: Any, at: Sequence[tuple[int, int]]) -> Call | None:
    """A compiled kernel as a function of addresses and stream, which calls it as Triton's
    JITFunction.run does. at: number and offset in bytes of each operand. None where nothing is
    compiled yet, or it is not this Triton's way.

    CompiledKernel.run takes (grid x, y, z, stream, function, packed_metadata, launch_metadata, two
    hooks, *all arguments, constants among them) in Triton 3.3 and 3.6, read in their sources;
    HIPLauncher and CudaLauncher differ in what they put in between for the driver, not in what they
    are called with, and both take a pointer as an int.
    """
    if compiled is None or not _direct.usable:
        return None
    try:
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    except _direct.misfits as error:
        _direct.give_up(error)
        return None
    (x, y, z), rest = item.grid, (*item.numbers, *item.constants)

    def call(addresses: Sequence[int], stream: int) -> None:
        pointers = [addresses[number] + offset for number, offset in at]
        run(x, y, z, stream, function, packed, None, None, None, *pointers, *rest)

    return call


def by_triton(item: Launch, operands: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """Launches `item` by Triton's own call. operands: where the kernel's pointers start."""
    function = getattr(importlib.import_module(item.module), item.kernel)
    return lambda: function[item.grid](
        *operands, *item.numbers, *item.constants,
        num_warps=item.num_warps, num_stages=item.num_stages,
    )  # fmt: skip


def _shown(kernel: str, name: str, compile_and_launch: Callable[[], Any]) -> Any:
    """The result of `compile_and_launch`, which is told to whoever waits for it."""
    number = _progress.before()
    start = time.perf_counter()

    def look() -> None:
        if on_compile is not None:
            on_compile(kernel, number)

    try:
        look()
        ahead.wait_for(name, look)
        with base.THREAD.around():
            return compile_and_launch()
    finally:
        _progress.after(time.perf_counter() - start)


def _view(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """One element of `tensor`'s storage, where the kernel's pointer starts."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)
