"""Launching a kernel of kernel.py with little work on the host.

Triton's own launch path looks at every argument each time (some 100 us for 40 of them). Here
everything that a compiled kernel depends on is in a small key: the constants, and of each pointer
the dtype, whether it is 16-byte aligned and whether its tensor is small (all sizes are declared
do_not_specialize). For tensors below 2 GiB Triton's AMD backend makes buffer loads with 32-bit
offsets, which must never meet a larger one. The first launch of a key goes through Triton, which
compiles or finds the kernel in its cache on disk; later ones call the compiled kernel with plain
addresses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

logger = logging.getLogger("hy3d_rocm")

_compiled: dict[Hashable, Any] = {}
_lock = threading.Lock()
# A launch that takes longer than this has compiled something.
_NOTABLE_SECONDS = 0.5
# As in HIPBackend.is_within_2gb, which goes by the size of the storage.
_SMALL_BYTES = 2**31


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: a name in kernel.py. operands: for each pointer argument the operand's name and the
    offset in elements. numbers, constants: the arguments after the pointers, in order. blocks: for
    the first two operands the shape of a tensor descriptor (sizes, strides, block) or None.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int
    blocks: tuple[tuple[list[int], list[int], list[int]], ...] = ()


def launch(item: Launch, tensors: dict[str, torch.Tensor]) -> None:
    """Runs `item` on the current stream of the current device."""
    addresses: list[Any] = []
    known: list[Hashable] = []
    for name, offset in item.operands:
        tensor = tensors[name]
        address = tensor.data_ptr() + offset * tensor.element_size()
        small = tensor.untyped_storage().nbytes() < _SMALL_BYTES
        known += (tensor.dtype, address % 16 == 0, small)
        addresses.append(address)
    key = (
        item.kernel, item.constants, tensors["out"].device, *known,
        item.num_warps, item.num_stages, bool(item.blocks),
    )  # fmt: skip
    compiled = _compiled.get(key)
    if compiled is None:
        _first(item, tensors, key)
        return
    if item.blocks:
        addresses[:2] = _descriptors(item, tensors)
    compiled[item.grid](*addresses, *item.numbers, *item.constants)


def _first(item: Launch, tensors: dict[str, torch.Tensor], key: Hashable) -> None:
    """The first launch of a key: compiled now, which is said if it took long."""
    from hy3d_rocm.conv.triton import kernel

    operands: list[Any] = [_view(tensors[name], offset) for name, offset in item.operands]
    if item.blocks:
        operands[:2] = _descriptors(item, tensors)
    function = getattr(kernel, item.kernel)
    start = time.perf_counter()
    with _lock:  # two threads need not compile the same
        compiled = function[item.grid](
            *operands, *item.numbers, *item.constants,
            num_warps=item.num_warps, num_stages=item.num_stages,
        )  # fmt: skip
    seconds = time.perf_counter() - start
    if seconds > _NOTABLE_SECONDS:
        logger.info(
            "Triton compiled %s in %.1f s; it is kept on disk for the next time",
            item.kernel, seconds,
        )  # fmt: skip
    if hasattr(compiled, "metadata"):  # the interpreter returns none
        _compiled[key] = compiled


def _view(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """One element of `tensor`'s storage, where the kernel's pointer starts."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def _descriptors(item: Launch, tensors: dict[str, torch.Tensor]) -> list[Any]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    made = []
    for (name, offset), (sizes, strides, block) in zip(item.operands, item.blocks, strict=False):
        base = tensors[name] if offset == 0 else _view(tensors[name], offset)
        made.append(TensorDescriptor(base, sizes, strides, block))
    return made
