"""Measuring the tiers of one shape in this process: checked, timed in turn, tiles tried. Timed are
queued calls between two events, candidates in turn.

A small kernel is over before the host has launched the next one, and one wait costs more than it;
so a sample is as many calls in a row as fill some milliseconds, as a decode queues them.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm.conv import errors, releasing, selfcheck
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.probe.child import make_call
from hy3d_rocm.conv.tiers import Tier, make_tier
from hy3d_rocm.conv.triton import launch
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
_SERIES_S = 0.15
# Tiles tried beside the guess: compiling one takes seconds.
MORE_TILES = 3


class Watch:
    """Times calls: by CUDA's or HIP's events and allocator, by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, function: Callable[[], Any], calls: int) -> float:
        """Seconds of one call, the mean over `calls` in a row."""
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
        """The result, and the bytes that the call took at its peak beyond that result (None where
        no allocator counts)."""
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


@dataclass(frozen=True)
class Measured:
    """One tier at one shape. verdict: as in a store's Record, or "refused" or "oom", which are
    none; seconds and peak_bytes as there. detail: why, or the Triton tier's best tile."""

    verdict: str
    seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""


@dataclass
class _Candidate:
    tier: str
    function: Callable[[], torch.Tensor]
    detail: str = ""
    timed: Timed = field(default_factory=Timed)
    first_seconds: float | None = None
    peak_bytes: int | None = None
    wrong: str = ""


# The Triton tier's tiles for a call: (words for the record, the call with that tile).
Tiles = Callable[[ConvCall], Sequence[tuple[str, Callable[[], torch.Tensor]]]]


def triton_tiles(call: ConvCall) -> list[tuple[str, Callable[[], torch.Tensor]]]:
    """The guess and those predicted next best."""
    guess, others = launch.candidates(call)
    every = (*guess, *others[:MORE_TILES])
    return [(launch.detail_of(c), functools.partial(launch.run, call, c)) for c in every]


class Lab:
    """Measures on the device of the specs. A test has tiers, a watch and tiles of its own."""

    def __init__(
        self, watch: Watch | None = None, make: Callable[[str], Tier] = make_tier,
        tiles: Tiles = triton_tiles,
    ) -> None:  # fmt: skip
        self._watch, self._make, self._tiles = watch, make, tiles
        # Whose first calls are under way: who is to blame if the device is lost.
        self.running = ""

    def measure(self, spec: ConvSpec, tiers: Sequence[str]) -> dict[str, Measured]:
        """By tier. Raises what a lost device and Ctrl-C raise."""
        watch = self._watch or Watch(spec.device)
        found: dict[str, Measured] = {}
        with torch.no_grad():
            timed = Timed()
            call = attempt(timed, functools.partial(make_call, spec), spec.device)
            if call is None:
                why = timed.reason or ""
                return dict.fromkeys(tiers, Measured("oom", detail=f"the input alone: {why}"))
            candidates = [c for name in tiers for c in self._candidates(name, call, found)]
            for candidate in candidates:
                self.running = candidate.tier
                _look(candidate, call, watch)
            self.running = ""
            fit = (c for c in candidates if c.timed.reason is None and not c.wrong)
            sound = {str(number): c for number, c in enumerate(fit)}
            interleave(
                {name: c.function for name, c in sound.items()},
                {name: c.timed for name, c in sound.items()}, watch, spec.device, _SERIES_S,
            )  # fmt: skip
        for name in tiers:
            mine = [c for c in candidates if c.tier == name]
            if mine:
                found[name] = _conclude(mine)
        del call, candidates, sound
        releasing.release(spec.device)
        return {name: found[name] for name in tiers if name in found}

    def _candidates(
        self, name: str, call: ConvCall, found: dict[str, Measured]
    ) -> list[_Candidate]:
        tier = self._make(name)
        refusal = tier.refusal(call, call.limits)
        if refusal is not None:
            found[name] = Measured("refused", detail=refusal)
            return []
        if name == "triton":
            return [_Candidate(name, run, words) for words, run in self._tiles(call)]
        return [_Candidate(name, functools.partial(tier.run, call))]


def _look(candidate: _Candidate, call: ConvCall, watch: Watch) -> None:
    """The first call, whose result is checked, and a second one, whose memory counts."""
    timed, device = candidate.timed, call.spec.device
    start = time.perf_counter()
    seen = attempt(timed, functools.partial(watch.watched, candidate.function), device)
    if seen is None:
        return
    candidate.first_seconds = time.perf_counter() - start
    finding = attempt(
        timed, functools.partial(selfcheck.check, candidate.tier, call, seen[0]), device
    )
    if finding is not None and finding.fault == "tier":
        candidate.wrong = finding.detail
        return
    del seen
    start = time.perf_counter()
    again = attempt(timed, functools.partial(watch.watched, candidate.function), device)
    if again is not None:
        timed.guess, candidate.peak_bytes = time.perf_counter() - start, again[1]


def _conclude(candidates: Sequence[_Candidate]) -> Measured:
    """Of a tier's candidates the fastest sound one; else what was wrong with the first."""
    timed = [(c.timed.seconds, c) for c in candidates if not c.wrong]
    sound = [(seconds, c) for seconds, c in timed if seconds is not None]
    if sound:
        seconds, best = min(sound, key=lambda pair: pair[0])
        first = max(c.first_seconds or 0.0 for c in candidates)
        return Measured("ok", seconds, first, best.peak_bytes, best.detail)
    worst = next((c for c in candidates if c.wrong), candidates[0])
    if worst.wrong:
        return Measured("wrong", detail=worst.wrong)
    is_oom = worst.timed.kind is errors.Kind.OUT_OF_MEMORY
    return Measured("oom" if is_oom else "error", detail=worst.timed.reason or "no time was taken")
