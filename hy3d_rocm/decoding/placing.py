"""What leaves the device: slices that go to host memory (meter.HostMemory) and come back, and the
frames of a decode, which go to a tensor or a sink (output.py) as they are made.

A GPU goes on while its frames are on their way: they are copied to pinned memory behind the work
that made them, and into the result once they are there. So many may be on their way that frames
which come wait for earlier ones at most, never for their own work: the thread that launches the
next frames' work would be late, and the GPU idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hy3d_rocm import meter
from hy3d_rocm.decoding.precision import NonFiniteError
from hy3d_rocm.frames.output import Sink, scratch

_AT_ONCE = 32  # frames handed to a sink at a time from what was put together beside it
#: of the frames that are on their way at a time, and that are copied at a time, but one frame at
#: least
ON_THEIR_WAY_BYTES = 128 << 20
PART_BYTES = 8 << 20


class _Part(NamedTuple):
    """Frames in pinned memory, with their least and largest values, on their way to `place`, which
    begins at frame `first` of the result."""

    frames: Tensor
    ends: Tensor
    place: Tensor
    first: int
    event: Any


class Placing:
    """Takes frames in order of time, or a tensor that tiles are added up in.

    out: the caller's own tensor, or None. sink: instead of a tensor.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, out: Tensor | None, sink: Sink | None
    ) -> None:
        self.shape, self.dtype, self.result, self.sink = shape, dtype, out, sink
        self._come = [0] * shape[0]  # frames of each sample
        self._on_their_way: deque[_Part] = deque()

    def begin(self, made: dict[str, Any]) -> None:
        """A way starts. made: what its frames depend on; a sink that has frames of another making
        throws them away."""
        if self.sink is not None:
            self.sink.begin(self.shape, self.dtype, made)
            self.result = None  # a sink that began anew has another buffer
        self._come = [self.first_wanted(sample) for sample in range(self.shape[0])]
        self._on_their_way.clear()

    def populate(self) -> None:
        """For a decode on a GPU: a result that has no memory yet gets it from the system in a
        thread of its own, while the GPU computes, and not page by page when frames arrive."""
        if self.sink is None and self.result is None:
            whole = self.whole()  # the thread keeps it
            threading.Thread(
                target=lambda: meter.populate(whole.data_ptr(), whole.nbytes), daemon=True
            ).start()

    def first_wanted(self, sample: int) -> int:
        return 0 if self.sink is None else self.sink.first_wanted(sample)

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        """frames (1, C, t, H, W), on any device. NonFiniteError where they, or those that were on
        their way, hold NaN or infinity."""
        on_gpu, stop = frames.device.type == "cuda", first + frames.shape[2]
        self._come[sample] = stop
        if self.sink is None and on_gpu:
            whole, (most, held) = self.whole(), on_their_way(self.shape, self.dtype)
            count = min(max(1, PART_BYTES * most // held), most)
            for at in range(first, stop, count):
                part = frames[:, :, at - first : at - first + count]
                self.arrive(most - part.shape[2])
                self._leave(part, whole[sample : sample + 1, :, at : at + part.shape[2]], at)
            while self._on_their_way and self._on_their_way[0].event.query():
                self._land()
            return
        self.arrive()
        check_finite(least_and_largest(frames), first, stop)
        if self.sink is not None:
            self.sink.put(sample, first, frames)
        elif self.result is None and tuple(frames.shape) == self.shape:
            self.result = frames.to(self.dtype)
        else:
            self.whole()[sample : sample + 1, :, first:stop].copy_(frames)

    def _leave(self, frames: Tensor, place: Tensor, first: int) -> None:
        """Frames begin their way from a GPU to their place in the result."""
        ends = least_and_largest(frames)
        held_ends = pinned(ends.shape, (1,), ends.dtype).copy_(ends, non_blocking=True)
        held = pinned(place.shape, torch.empty(place.shape, device="meta").stride(), place.dtype)
        for channel in range(frames.shape[1]):  # one as it lies is copied without a buffer
            held[:, channel].copy_(frames[:, channel], non_blocking=True)
        event = torch.cuda.current_stream(frames.device).record_event()
        self._on_their_way.append(_Part(held, held_ends, place, first, event))

    def arrive(self, left: int = 0) -> None:
        """Of the frames that are on their way all but the last ones, at most `left`, are in the
        result. NonFiniteError as of put()."""
        while sum(part.frames.shape[2] for part in self._on_their_way) > left:
            self._land()

    def _land(self) -> None:
        """The first of the parts that are on their way."""
        frames, ends, place, first, event = self._on_their_way.popleft()
        event.synchronize()
        check_finite(ends, first, first + frames.shape[2])
        place.copy_(frames)

    def whole(self) -> Tensor:
        """All frames as a tensor to be written in place; finished by put_whole()."""
        if self.result is None and self.sink is not None:
            folder, self.result = self.sink.folder, self.sink.buffer
            if self.result is None and folder is not None:
                self.result = scratch(folder, self.shape, self.dtype)
        if self.result is None:
            self.result = torch.empty(self.shape, dtype=self.dtype, device="cpu")
            meter.in_large_pages(self.result.data_ptr(), self.result.nbytes)
        return self.result

    def put_whole(self, sample: int) -> None:
        """The sample's part of whole() is complete."""
        whole = self.whole()
        self._come[sample] = self.shape[2]
        for first in range(self.first_wanted(sample), self.shape[2], _AT_ONCE):
            frames = whole[sample : sample + 1, :, first : first + _AT_ONCE]
            check_finite(least_and_largest(frames), first, first + frames.shape[2])
            if self.sink is not None and self.sink.buffer is None:
                self.sink.put(sample, first, frames)

    def finish(self) -> Any:
        """The tensor, or what the sink gives."""
        if any(n != self.shape[2] for n in self._come):
            raise RuntimeError(
                f"the decode made {self._come} frames of its samples where {self.shape[2]} each "
                "were due: this is a defect of hy3d_rocm, please report it with the VAE's class"
            )
        return self.whole() if self.sink is None else self.sink.finish()


def on_their_way(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, int]:
    """How many frames of a result (B, C, T, H, W) are on their way from a GPU at a time, and their
    bytes in host memory."""
    frame = shape[1] * shape[3] * shape[4] * dtype.itemsize
    count = min(max(1, ON_THEIR_WAY_BYTES // frame), shape[2])
    return count, count * frame


def least_and_largest(frames: Tensor) -> Tensor:
    """Of each channel of each frame, where the frames are. NaN is both. A frame at a time, which
    takes no memory of the size of the frames."""
    ends = [torch.aminmax(frames[:, c, t]) for t in range(frames.shape[2])
            for c in range(frames.shape[1])]  # fmt: skip
    return torch.stack([value for pair in ends for value in pair])


def check_finite(ends: Tensor, first: int, stop: int) -> None:
    """NonFiniteError (a sentence) unless the least and largest values of frames `first` to `stop`
    are finite."""
    if not bool(ends.isfinite().all()):
        raise NonFiniteError(f"frames {first} to {stop - 1} hold NaN or infinite values")


class Transfers:
    """Moves tensors between the device and host memory of `size_bytes`, in which each copy has its
    place, as the program says: one stream a direction. MemoryError where there is none."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        self.device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.memory = meter.host_memory(device, size_bytes)

    def store(self, tensor: Tensor, at: int) -> tuple[Any, Ticket]:
        """Begins a copy to place `at` on the host. `tensor` must live until the ticket was waited
        for."""
        like: Any = torch.empty_like(tensor, device="meta")
        return (at, like), self._copied(self._out, at, tensor, like)

    def load(self, on_host: Any) -> tuple[Tensor, Ticket]:
        """Begins a copy back, in the layout it had; not to be read before join or wait."""
        at, like = on_host
        tensor = torch.empty_strided(
            like.size(), like.stride(), dtype=like.dtype, device=self.device
        )
        return tensor, self._copied(self._in, at, tensor, None)

    def _copied(self, stream: Any, at: int, tensor: Tensor, like: Tensor | None) -> Ticket:
        """like: how it lies on the host, where it leaves; else it comes."""
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            if like is not None and like.stride() != tensor.stride():
                tensor = tensor.clone()  # what lies with gaps
            there = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            first = 0
            for here in self.memory.parts(at, at + len(there)):
                pair = here, there[first : first + len(here)]
                target, source = pair if like is not None else pair[::-1]
                target.copy_(source, non_blocking=True)
                first += len(here)
            return Ticket(stream.record_event(), self.device)

    def close(self, is_kept: bool = False) -> None:
        """is_kept: the next decode may have the memory."""
        try:
            with suppress(RuntimeError):  # of a device that does nothing any more
                self._out.synchronize()
                self._in.synchronize()
        except BaseException:  # an interrupt: copies may be under way for as long as the process is
            _abandoned.append(self.memory)
            raise
        (self.memory.leave if is_kept else self.memory.close)()


_abandoned: list[meter.HostMemory] = []


class Ticket:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
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
