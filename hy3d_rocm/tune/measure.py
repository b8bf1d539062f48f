"""Measuring the tiers of one shape in this process: checked, timed in turn, tiles tried."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hy3d_rocm.conv import releasing, selfcheck
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.probe.measure import make_call
from hy3d_rocm.conv.tiers import Tier, make_tier
from hy3d_rocm.conv.triton import launch
from hy3d_rocm.tune.timing import DeviceWatch, Timed, Watch, attempt, interleave

_SERIES_S = 0.15
# Tiles tried beside the guess: compiling one takes seconds.
MORE_TILES = 3


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
        watch = self._watch or DeviceWatch(spec.device)
        found: dict[str, Measured] = {}
        with torch.no_grad():
            call, timed = self._call(spec)
            if call is None:
                why = timed.reason or ""
                return dict.fromkeys(tiers, Measured("oom", detail=f"the input alone: {why}"))
            candidates = [c for name in tiers for c in self._candidates(name, call, found)]
            for candidate in candidates:
                self.running = candidate.tier
                _look(candidate, call, watch)
            self.running = ""
            sound = {str(i): c for i, c in enumerate(candidates) if c.timed.reason is None}
            sound = {name: c for name, c in sound.items() if not c.wrong}
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

    @staticmethod
    def _call(spec: ConvSpec) -> tuple[ConvCall | None, Timed]:
        timed = Timed()
        return attempt(timed, functools.partial(make_call, spec), spec.device), timed

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
    is_oom = worst.timed.kind is Kind.OUT_OF_MEMORY
    return Measured("oom" if is_oom else "error", detail=worst.timed.reason or "no time was taken")
