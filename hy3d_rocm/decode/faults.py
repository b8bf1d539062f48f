"""One grain of work, tried again after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from hy3d_rocm.conv.errors import Kind, classify

if TYPE_CHECKING:
    from hy3d_rocm.decode.report import Step

Result = TypeVar("Result")

ATTEMPTS = 3


def is_out_of_memory(error: BaseException) -> bool:
    """By type (torch's, Python's) or by the texts that drivers and allocators write."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    known = classify(error)
    return known is not None and known.kind is Kind.OUT_OF_MEMORY


def retried(work: Callable[[], Result], on_pressure: Callable[[], object] | None) -> Result:
    """work(), again up to 2 times after an out-of-memory error, with on_pressure() before each.

    `work` must leave no trace when it fails. The error is let go before the next attempt, since its
    traceback holds the failed attempt's tensors.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if on_pressure is not None:
            on_pressure()
    return work()


class Counting(Protocol):
    """What is asked of a counter (counter.Counter is one)."""

    def check(self) -> None:
        """Raises where the caller wants no more; called before each attempt at a grain."""

    def tick(self, step: Step) -> None:
        """A grain is done."""


class Grains:
    """Runs grains one after the other, each with its attempts. done, repeated: how many."""

    def __init__(self, counter: Counting | None, on_pressure: Callable[[], object]) -> None:
        self.counter = counter
        self.on_pressure = on_pressure
        self.done = self.repeated = 0

    def run(self, step: Step, work: Callable[[], Result]) -> Result:
        """work(), which must leave no trace when it fails."""

        def attempt() -> Result:
            if self.counter is not None:
                self.counter.check()
            return work()

        result = retried(attempt, self._pressed)
        self.done += 1
        if self.counter is not None:
            self.counter.tick(step)
        return result

    def _pressed(self) -> None:
        self.repeated += 1
        self.on_pressure()
