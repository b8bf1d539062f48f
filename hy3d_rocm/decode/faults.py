"""One grain of work, tried again after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from hy3d_rocm.conv.errors import Kind, classify

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
