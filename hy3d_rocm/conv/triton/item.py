"""One launch of a kernel, as data: jit.py carries it out, cuda.py and first_use.py read it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

Block = tuple[list[int], list[int], list[int]]  # sizes, strides, block
Call = Callable[[Sequence[int], int], None]  # of Operands.addresses and a stream


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: a name in kernel.py. operands: for each pointer argument the operand's name and the
    offset in elements. numbers, constants: the arguments after the pointers, in order. blocks: for
    the first two operands the tensor descriptor, if they are read through one. compiled: the
    kernel, once it is there, by what is known of the addresses (see `known_with`) and the device.
    calls: the same, ready to be called, by Operands.key.
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
    calls: dict[Hashable, Call] = field(default_factory=dict, compare=False)
