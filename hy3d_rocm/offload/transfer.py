"""Moving weights with progress in bytes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload.components import (
    indexed,
    memory_key,
    same_device,
    size_bytes,
)
from hy3d_rocm.offload.policy import size_text

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")

# progress(done_bytes, total_bytes, what): what is moved, for people ("unet to cuda:0").
Progress = Callable[[int, int, str], None]
PROGRESS_SECONDS = 0.1


class Reporter:
    """Calls `progress` at most every PROGRESS_SECONDS, and always at the end."""

    def __init__(
        self,
        progress: Progress | None,
        total: int,
        what: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._progress, self.total, self.what, self._clock = progress, total, what, clock
        self.done = 0
        self._began = self._last = clock()

    def add(self, count: int) -> None:
        """`count` bytes more are moved."""
        self.done += count
        now = self._clock()
        if self._progress is not None and now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._progress(self.done, self.total, self.what)

    def finish(self) -> None:
        """The last report, and one line in the log."""
        seconds = max(self._clock() - self._began, 1e-6)
        if self._progress is not None:
            self._progress(self.total, self.total, self.what)
        logger.info(
            "%s: %s in %.1f s (%s/s)",
            *self.what.split(" to ", 1)[:1],
            f"{size_text(self.total, 2)} to {self.what.rpartition(' to ')[2]}",
            seconds,
            size_text(int(self.total / seconds)),
        )


@dataclass
class _Owner:
    """Where a module keeps a tensor."""

    module: torch.nn.Module
    name: str
    is_parameter: bool

    def get(self) -> torch.Tensor:
        table = self.module._parameters if self.is_parameter else self.module._buffers
        tensor = table[self.name]
        assert tensor is not None  # empty slots have no owner
        return tensor


def move(
    module: torch.nn.Module,
    device: torch.device | str,
    progress: Progress | None = None,
    what: str | None = None,
) -> int:
    """Moves a module's parameters and buffers to `device`; returns the bytes that were moved.

    As module.to(device), with these differences: progress(done, total, "<what> to <device>") is
    called at most ten times a second and at the end; tensors that share memory still share it
    afterwards; at no time is more than one tensor in both places; if anything raises (out of
    memory, progress itself), what had moved goes back before the exception goes on.
    Modules that have their own idea of moving (quantised ones, tensor subclasses, an own `to`)
    are moved by their own `to` in one step. what: the module's name for people.
    """
    raise NotImplementedError


@contextmanager
def reporting_transfers(pipeline: Any, progress: Progress | None) -> Iterator[None]:
    """While open, transfers made by the pipeline's model offload are reported to `progress`."""
    raise NotImplementedError
    yield
