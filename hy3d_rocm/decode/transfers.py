"""Copies of slices between the device and the host."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Ticket(Protocol):
    """A copy under way."""

    def done(self) -> bool:
        """Whether it is over; never waits."""

    def wait(self) -> None:
        """Blocks this thread until it is over."""

    def join(self) -> None:
        """Makes the computing stream wait for it; this thread goes on."""

    def abandon(self) -> None:
        """Its result is of no use any more; its source may be let go now."""


class Mover(Protocol):
    """Moves tensors between device and host. overlaps: a copy runs beside computations."""

    overlaps: bool

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        """Begins a copy on the host. `tensor` must live until the ticket is done or abandoned."""

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        """Begins a copy back, in the layout it had; not to be read before join or wait."""

    def free(self, parked: Any) -> None:
        """The host's copy is not needed any more."""

    def host_bytes(self, nbytes: int) -> int:
        """Bytes that a slice of nbytes takes on the host."""


class Done:
    """The ticket of a copy that was over when it was made."""

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def join(self) -> None: ...

    def abandon(self) -> None: ...


def mover_for(device: torch.device, folder: str | Path | None = None) -> Mover:
    """The mover of a device. ValueError where there is nowhere to move to.

    folder: of a temporary file for the CPU, whose memory is the host's; asked for nowhere else.
    """
    if device.type == "cuda":
        return StreamMover(device)
    if device.type == "meta":
        return ShapeMover()
    if folder is None:
        raise ValueError(
            f"slices on {device} can only be moved out to a file: name a folder for it, or give "
            "no limit"
        )
    return FileMover(folder)


class StreamMover:
    """Pinned host memory, one stream a direction."""

    overlaps = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        host = _host_like(tensor)
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            return host, _Event(self._out.record_event(), self.device, tensor, self._out)

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        tensor = torch.empty_strided(
            parked.size(), parked.stride(), dtype=parked.dtype, device=self.device
        )
        self._in.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._in):
            tensor.copy_(parked, non_blocking=True)
            return tensor, _Event(self._in.record_event(), self.device, tensor, self._in)

    def free(self, parked: Any) -> None:
        """Torch's host allocator itself waits for copies from and to a pinned block."""

    def host_bytes(self, nbytes: int) -> int:
        """Torch's allocator of pinned memory rounds up to a power of two."""
        return 1 << max(nbytes - 1, 0).bit_length()


class _Event:
    def __init__(
        self, event: torch.cuda.Event, device: torch.device, tensor: Tensor, stream: Any
    ) -> None:
        self._event = event
        self._device = device
        self._tensor: Tensor | None = tensor
        self._stream = stream

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()
        self._tensor = None

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._tensor = None

    def abandon(self) -> None:
        """The allocator keeps the memory from others until the stream has passed the copy."""
        if self._tensor is not None and not self.done():
            self._tensor.record_stream(self._stream)
        self._tensor = None


def _host_like(tensor: Tensor) -> Tensor:
    """Pinned memory of the tensor's layout; pageable where the system gives no more pinned."""
    like = torch.empty_like(tensor, device="meta")
    size, stride = like.size(), like.stride()
    try:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")


@dataclass(frozen=True)
class _Layout:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0
    nbytes: int = 0

    def empty(self, device: str) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


class ShapeMover:
    """For runs on shapes alone ("meta"): what was moved out is gone from the device."""

    overlaps = True

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        like = torch.empty_like(tensor)
        return _Layout(tuple(like.size()), tuple(like.stride()), tensor.dtype), Done()

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        return parked.empty("meta"), Done()

    def free(self, parked: Any) -> None: ...

    def host_bytes(self, nbytes: int) -> int:
        return nbytes


class FileMover:
    """A temporary file, written and read, not mapped: mapped pages would count as resident memory.
    It has no name, so nothing is left behind, however the process ends."""

    overlaps = False

    def __init__(self, folder: str | Path) -> None:
        if not Path(folder).is_dir():
            raise ValueError(f"the folder {str(folder)!r} for slices does not exist: make it first")
        with tempfile.TemporaryFile(dir=folder, prefix="hy3d-slices-") as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        like = torch.empty_like(tensor, device="meta")
        dense = tensor
        if tensor.stride() != like.stride():
            dense = torch.empty_like(tensor).copy_(tensor)
        spans = self._free.get(tensor.nbytes)
        offset = spans[-1] if spans else self._end
        self._transfer(os.pwritev, _bytes_of(dense), offset)
        if spans:
            spans.pop()
        else:
            self._end += tensor.nbytes
        layout = _Layout(
            tuple(like.size()), tuple(like.stride()), tensor.dtype, offset, tensor.nbytes
        )
        return layout, Done()

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        tensor = parked.empty("cpu")
        self._transfer(os.preadv, _bytes_of(tensor), parked.offset)
        return tensor, Done()

    def free(self, parked: Any) -> None:
        self._free.setdefault(parked.nbytes, []).append(parked.offset)

    def host_bytes(self, nbytes: int) -> int:
        return nbytes

    def _transfer(self, call: Any, data: memoryview, offset: int) -> None:
        done = 0
        while done < len(data):
            count = call(self._file, [data[done:]], offset + done)
            if count <= 0:
                raise OSError(f"the file of slices ended {len(data) - done} bytes too early")
            done += count


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a dense tensor, whatever the order of its axes."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    data: Any = flat.view(torch.uint8).numpy()
    return memoryview(data)
