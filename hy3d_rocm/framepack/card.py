"""The memory of one card as the sections need it: what is free, the peak, the allocator's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from hy3d_rocm.memory import gpu_bytes


class Card(Protocol):
    """Asked and told by a SectionRunner. All sizes in bytes."""

    def free(self) -> int:
        """What can still be allocated."""

    def empty(self) -> None:
        """Give the allocator's cache back."""

    def start(self) -> None:
        """Begin to measure."""

    def need(self) -> int:
        """The most that was allocated above what was at `start`."""

    def retries(self) -> int:
        """How often since `start` the allocator had to give its cache back to get memory."""


class TorchCard:
    """A GPU of torch's. free: what is free on it, if something else than the driver knows it."""

    def __init__(self, device: torch.device, free: Callable[[], int] | None = None) -> None:
        self.device = device
        self._free = free
        self._base = 0
        self._retries = 0

    def free(self) -> int:
        if self._free is not None:
            return max(self._free(), 0)
        return max(gpu_bytes(self.device)[0], 0)

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def start(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._base = int(torch.cuda.memory_allocated(self.device))
        self._retries = self._all_retries()

    def need(self) -> int:
        return max(int(torch.cuda.max_memory_allocated(self.device)) - self._base, 0)

    def retries(self) -> int:
        return self._all_retries() - self._retries

    def _all_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))


def card_of(device: torch.device, free: Callable[[], int] | None = None) -> TorchCard | None:
    """The card behind `device`; None where there is none that torch.cuda could be asked about,
    and nothing needs to be moved or measured."""
    return TorchCard(device, free) if device.type == "cuda" else None
