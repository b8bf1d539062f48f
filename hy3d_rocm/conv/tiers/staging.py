"""Work on the host for tensors that lie elsewhere: copies in and out overlap the computing.

Two staging buffers each way. While a piece is computed, the next one's input is on its way in and
the last one's result on its way out. Host and device memory stay bounded however large the call is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import windows
from hy3d_rocm.conv.tiers.windows import Geometry, Sizes, geometry

_SLOTS = 2
Wait = Callable[[], None]
Compute = Callable[[torch.Tensor, torch.Tensor], None]


class Lanes:
    """How values travel: `fetch` and `store` start a copy and return what waits for its end. Here
    copies are done when they return."""

    def buffer(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elems, dtype=dtype, device="cpu")

    def fetch(self, make: Callable[[], torch.Tensor], into: torch.Tensor) -> Wait:
        into.copy_(make())
        return _done

    def store(self, values: torch.Tensor, place: torch.Tensor) -> Wait:
        place.copy_(values)
        return _done

    def join(self) -> None:
        """All copies before what comes after."""


class GpuLanes(Lanes):
    """A CUDA or HIP stream each way, and pinned buffers where the host gives them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # torch leaves both constructors unannotated.
        self.incoming: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.outgoing: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.home = torch.cuda.current_stream(device)
        for stream in (self.incoming, self.outgoing):
            stream.wait_stream(self.home)

    def buffer(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        try:
            return torch.empty(elems, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # a host may allow little or no locked memory: slower, not wrong
            return torch.empty(elems, dtype=dtype, device="cpu")

    def fetch(self, make: Callable[[], torch.Tensor], into: torch.Tensor) -> Wait:
        with torch.cuda.stream(self.incoming):
            piece = torch.empty_strided(
                into.shape, into.stride(), dtype=into.dtype, device=self.device
            )
            piece.copy_(make())
            into.copy_(piece, non_blocking=True)
            return self._end_of(self.incoming)

    def store(self, values: torch.Tensor, place: torch.Tensor) -> Wait:
        with torch.cuda.stream(self.outgoing):
            piece = torch.empty_strided(
                values.shape, values.stride(), dtype=values.dtype, device=self.device
            )
            piece.copy_(values, non_blocking=True)
            place.copy_(piece)
            return self._end_of(self.outgoing)

    def join(self) -> None:
        for stream in (self.incoming, self.outgoing):
            self.home.wait_stream(stream)

    @staticmethod
    def _end_of(stream: torch.cuda.Stream) -> Wait:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # as above
        event.record(stream)
        wait: Wait = event.synchronize
        return wait


def _done() -> None:
    pass


def lanes_for(device: torch.device) -> Lanes:
    return GpuLanes(device) if device.type == "cuda" else Lanes()


def buffer_bytes(spec: ConvSpec, steps: Sizes) -> int:
    """Host bytes of the staging buffers."""
    return _SLOTS * sum(_elems(geometry(spec), steps)) * spec.dtype.itemsize


def device_bytes(spec: ConvSpec, steps: Sizes) -> int:
    """What is on its way takes as much on the device; a padded window once more."""
    read, made = _elems(geometry(spec), steps)
    padded = read if geometry(spec).is_padded else 0
    return (_SLOTS * (read + made) + padded) * spec.dtype.itemsize


def _elems(shape: Geometry, steps: Sizes) -> tuple[int, int]:
    return shape.cin * math.prod(shape.window_sizes(steps)), shape.cout * math.prod(steps)


def steps_within(spec: ConvSpec, host: int, device: int | None = None) -> Sizes | None:
    """The largest boxes that take at most `host` bytes there and `device` bytes on the device, or
    None."""

    def excess(steps: Sizes) -> int:
        over = buffer_bytes(spec, steps) - host
        return over if device is None else max(over, device_bytes(spec, steps) - device)

    return windows.steps_that_fit(geometry(spec), excess, 0, cut_width=True)


def run(
    spec: ConvSpec, x: torch.Tensor, out: torch.Tensor, steps: Sizes, lanes: Lanes, compute: Compute
) -> None:
    """compute(window, result) for each box of each sample, both on the host.

    x and out are (N, C, T, H, W) anywhere; the window holds its padding.
    """
    shape = geometry(spec)
    jobs = [(n, box) for n in range(shape.batch) for box in windows.boxes(shape.box, steps)]
    sizes = _elems(shape, steps)
    taken = [lanes.buffer(sizes[0], spec.dtype) for _ in range(_SLOTS)]
    given = [lanes.buffer(sizes[1], spec.dtype) for _ in range(_SLOTS)]
    arrived: list[Wait] = [_done] * _SLOTS
    left: list[Wait] = [_done] * _SLOTS

    def fetch(index: int) -> torch.Tensor:
        n, box = jobs[index]
        counts = windows.counts(box)
        into = _shaped(taken[index % _SLOTS], shape.cin, shape.window_sizes(counts), spec)
        make = functools.partial(windows.window, x[n : n + 1], shape, box)
        arrived[index % _SLOTS] = lanes.fetch(make, into)
        return into

    try:
        following = fetch(0)
        for index, (n, box) in enumerate(jobs):
            window, slot = following, index % _SLOTS
            if index + 1 < len(jobs):
                following = fetch(index + 1)
            arrived[slot]()
            left[slot]()
            result = _shaped(given[slot], shape.cout, windows.counts(box), spec)
            compute(window, result)
            left[slot] = lanes.store(result, windows.target(out[n : n + 1], box))
    finally:
        lanes.join()


def _shaped(flat: torch.Tensor, channels: int, sizes: Sizes, spec: ConvSpec) -> torch.Tensor:
    """(1, C, T, H, W) over the start of a buffer, in the memory format of the call."""
    flat = flat[: channels * math.prod(sizes)]
    if spec.channels_last:
        return flat.view(1, *sizes, channels).permute(0, 4, 1, 2, 3)
    return flat.view(1, channels, *sizes)
