"""Copies of slices between the device and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Ticket(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """Blocks this thread until it is over."""

    def join(self) -> None:
        """Makes the computing stream wait for it; this thread goes on."""


class Mover(Protocol):
    """Moves tensors between device and host."""

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        """Begins a copy on the host. `tensor` must live until the ticket was waited for."""

    def bring(self, on_host: Any) -> tuple[Tensor, Ticket]:
        """Begins a copy back, in the layout it had; not to be read before join or wait."""

    def free(self, on_host: Any) -> None:
        """The host's copy is not needed any more."""


class StreamMover:
    """Pinned host memory, one stream a direction."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        host = _host_like(tensor)
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            return host, _Event(self._out.record_event(), self.device)

    def bring(self, on_host: Any) -> tuple[Tensor, Ticket]:
        tensor = torch.empty_strided(
            on_host.size(), on_host.stride(), dtype=on_host.dtype, device=self.device
        )
        self._in.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._in):
            tensor.copy_(on_host, non_blocking=True)
            return tensor, _Event(self._in.record_event(), self.device)

    def free(self, on_host: Any) -> None:
        """Torch's host allocator itself waits for copies from and to a pinned block."""


class _Event:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event = event
        self._device = device

    def wait(self) -> None:
        self._event.synchronize()

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


def _host_like(tensor: Tensor) -> Tensor:
    """Pinned memory of the tensor's layout; pageable where the system gives no more pinned."""
    like = torch.empty_like(tensor, device="meta")
    size, stride = like.size(), like.stride()
    try:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")
