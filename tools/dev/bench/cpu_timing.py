"""Calls timed in tight rounds: peak, ours, torch, ours, torch ...

A processor's clock changes by half within seconds, so what is compared is timed side by side, and
the median of the rounds' ratios counts, not the ratio of two medians.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SAMPLE_S = 0.05  # short calls are repeated until a sample takes so long
_MOST_CALLS = 5000
_PEAK_S = 0.02
_MOST_GROWTH, _MOST_ROUNDS = 16, 1 << 22
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class PeakProbe:
    """The speed at which chains of f32 multiply-adds in registers run now, on `threads` threads."""

    def __init__(self, threads: int, clock: Callable[[], float]) -> None:
        self.threads, self.clock = threads, clock
        self.rounds = 1000
        for _ in range(4):  # the first calls start threads and wake the wide units
            started = self.clock()
            self._run()
            seconds = max(self.clock() - started, 1e-9)
            wanted = int(self.rounds * min(_PEAK_S / seconds, _MOST_GROWTH))
            self.rounds = max(1, min(_MOST_ROUNDS, wanted))

    def __call__(self) -> float:
        """Floating-point operations a second."""
        started = self.clock()
        operations = self._run()
        return operations / max(self.clock() - started, 1e-9)

    def _run(self) -> float:
        from hy3d_rocm import _core

        return _core.peak_run(self.threads, self.rounds)


def calls_a_sample(seconds: float, sample_s: float = SAMPLE_S) -> int:
    """How many calls of `seconds` fill a sample."""
    return max(1, min(_MOST_CALLS, math.ceil(sample_s / max(seconds, 1e-9))))


def timed_rounds(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float],
    single: Sequence[str] = (),
    peak: Callable[[], float] | None = None,
    sample_s: float = SAMPLE_S,
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds a call of each function in each round, and the peak's speed in each.

    All have run before. single: functions of which a sample is one call.
    """
    calls = dict.fromkeys(functions, 1)
    for name, function in functions.items():
        if name not in single:
            calls[name] = calls_a_sample(_seconds(function, 1, clock), sample_s)
    times: dict[str, list[float]] = {name: [] for name in functions}
    peaks: list[float] = []
    for _ in range(repeats):
        if peak is not None:
            peaks.append(peak())
        for name, function in functions.items():
            times[name].append(_seconds(function, calls[name], clock))
    return times, peaks


def _seconds(function: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(calls):
        function()
    return (clock() - started) / calls


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Median of the rounds' above / below; None where either has no round."""
    ratios = [a / b for a, b in zip(above, below, strict=False) if b > 0]
    return statistics.median(ratios) if ratios else None
