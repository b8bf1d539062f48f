"""Copies of slices between the device and the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StreamMover:
    """Moves tensors between the device and pinned host memory, one stream a direction. Torch's host
    allocator waits itself for copies from and to a pinned block that is given back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        """Begins a copy on the host. `tensor` must live until the ticket was waited for."""
        like: Any = torch.empty_like(tensor, device="meta")
        host = pinned(like.size(), like.stride(), tensor.dtype)
        return host, self._copied(self._out, host, tensor)

    def bring(self, on_host: Any) -> tuple[Tensor, Ticket]:
        """Begins a copy back, in the layout it had; not to be read before join or wait."""
        tensor = torch.empty_strided(
            on_host.size(), on_host.stride(), dtype=on_host.dtype, device=self.device
        )
        return tensor, self._copied(self._in, tensor, on_host)

    def _copied(self, stream: Any, target: Tensor, source: Tensor) -> Ticket:
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            return Ticket(stream.record_event(), self.device)


class Ticket:
    """A copy under way."""

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        """Blocks this thread until it is over."""
        self._event.synchronize()

    def join(self) -> None:
        """Makes the computing stream wait for it; this thread goes on."""
        torch.cuda.current_stream(self._device).wait_event(self._event)


def pinned(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Pinned memory; pageable where the system gives no more of it."""
    try:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
