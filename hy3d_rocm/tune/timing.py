"""Timing convolutions on a device: queued calls between two events, candidates in turn.

A small kernel is over before the host has launched the next one, and one wait costs more than it;
so a sample is as many calls in a row as fill some milliseconds, as a decode queues them.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hy3d_rocm.conv import errors, releasing
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.meter import PeakMeter

_SAMPLE_S = 2e-3
_MOST_CALLS = 20
_MOST_ROUNDS = 7
_FEWEST_ROUNDS = 3
# Of a call that takes longer than this two samples have to do.
_LONG_S = 0.25
# Below this the waits in a guess are no longer small.
_WAITS_MATTER_S = 5e-3


class Watch(Protocol):
    """What times calls; a test has one with a clock of its own."""

    def seconds(self, function: Callable[[], Any], calls: int) -> float:
        """Seconds of one call, the mean over `calls` in a row."""

    def watched(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int | None]:
        """The result, and the bytes that the call took at its peak beyond that result (None where
        no allocator counts)."""


class DeviceWatch:
    """CUDA's or HIP's events and allocator; the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, function: Callable[[], Any], calls: int) -> float:
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(calls):
                function()
            return (time.perf_counter() - start) / calls
        begin, end = _event(), _event()
        if calls > 1:  # the device is still at this one while the host launches the next
            function()
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls

    def watched(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int | None]:
        if self.device.type != "cuda":
            return function(), None
        with PeakMeter(self.device, interval=0, keeps_cache=True) as meter:
            result = function()
            torch.cuda.synchronize(self.device)
        return result, max(0, meter.peak_bytes - result.numel() * result.element_size())


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass
class Timed:
    """One candidate: seconds a call of each sample; why it stopped, if it did.

    guess: what a call takes, waits of the host included.
    """

    guess: float | None = None
    samples: list[float] = field(default_factory=list)
    calls: int = 1
    reason: str | None = None
    kind: errors.Kind | None = None

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.samples) if self.samples and self.reason is None else None


def share(seconds: float, series_s: float) -> tuple[int, int]:
    """(calls a sample, samples) for a call of `seconds`, where all may take about `series_s`."""
    calls = max(1, min(_MOST_CALLS, math.ceil(_SAMPLE_S / max(seconds, 1e-9))))
    fewest = 2 if seconds > _LONG_S else _FEWEST_ROUNDS
    rounds = int(series_s / max(seconds * calls, 1e-9))
    return calls, max(fewest, min(_MOST_ROUNDS, rounds))


def attempt(timed: Timed, function: Callable[[], Any], device: torch.device) -> Any:
    """function(), or None where it failed; then `timed` says why, and the memory is given back.

    A fault that the device does not survive, and what is no error of a back-end, passes through.
    """
    try:
        return function()
    except Exception as error:
        found = errors.classify_own(error)
        if found is None or found.kind is errors.Kind.DEVICE_LOST:
            raise
        timed.reason, timed.kind = first_line(error), found.kind
    # After the except block: the frames of the failed call kept its tensors alive.
    releasing.release(device)
    return None


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    timed: Mapping[str, Timed],
    watch: Watch,
    device: torch.device,
    series_s: float,
) -> None:
    """Adds samples to `timed`, all candidates in turn, round after round. Each has run before."""
    rounds: dict[str, int] = {}
    for name, function in functions.items():
        one = timed[name]
        seconds = one.guess
        if seconds is None or seconds < _WAITS_MATTER_S:
            seconds = attempt(one, functools.partial(watch.seconds, function, 1), device)
        if seconds is not None:
            one.calls, rounds[name] = share(seconds, series_s)
    for turn in range(max(rounds.values(), default=0)):
        for name, function in functions.items():
            one = timed[name]
            if one.reason is None and turn < rounds[name]:
                taken = attempt(one, functools.partial(watch.seconds, function, one.calls), device)
                if taken is not None:
                    one.samples.append(taken)
