"""One launch of a kernel, as data: jit.py carries it out, first_use.py names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[Sequence[int], int], None]  # of Operands.addresses and a stream


@dataclass(frozen=True)
class Launch:
    """One launch, but for its addresses.

    kernel: its name. operands: for each pointer argument the operand's name and the offset in
    elements. numbers, constants: the arguments after the pointers, in order.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int

    @property
    def compiled_for(self) -> tuple[Any, ...]:
        """What of it a compiled kernel depends on."""
        return self.kernel, self.constants, self.num_warps, self.num_stages
