"""Measuring other tiers in passing, on layers that run many times.

A Watch belongs to one call signature within one protect(). It says, call by call, which tier to
run and whether to time it: the chosen tier, and now and then another one in its place (its result
is as good and is used). What that costs more than the chosen tier would have taken is the overhead,
and the overheads of a scope stay within a share of the time that it has lasted. Pure: no torch, and
the caller brings the clock.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SHARE = 0.02
# A layer is one that "runs many times" from this call on.
_FIRST_CALL = 4
# The first run of a tier compiles, searches and is checked: it is not timed.
_WARM_UP = 1
_SAMPLES = 3


class OverheadBudget:
    """What one scope may still spend on measuring, over all its layers. Thread-safe."""

    def __init__(self, clock: Callable[[], float], share: float = SHARE) -> None:
        self._clock = clock
        self._share = share
        self._start = clock()
        self._lock = threading.Lock()
        self.spent = 0.0

    def allows(self, seconds: float) -> bool:
        """Whether an outlay of `seconds` stays within the share of the time so far."""
        with self._lock:
            lasted = self._clock() - self._start
            return self.spent + seconds <= self._share * lasted

    def spend(self, seconds: float) -> None:
        """Books an outlay; a negative one gives back what was reserved in vain."""
        with self._lock:
            self.spent += seconds


@dataclass
class _Trial:
    tier: str
    guess: float | None = None
    runs: int = 0
    times: list[float] = field(default_factory=list)
    gone: bool = False
    away: bool = False  # not worth it, or without memory, as things are now
    reserved: float | None = None  # a run is under way whose time is not known yet

    @property
    def is_done(self) -> bool:
        return self.gone or self.away or len(self.times) >= _SAMPLES


@dataclass(frozen=True)
class Step:
    """What to do at one call: run `tier`; tell the watch its time if `timed`."""

    tier: str
    timed: bool


class Watch:
    """Which tier runs at each call of one layer, until every tier has been measured."""

    def __init__(
        self,
        budget: OverheadBudget,
        chosen: str,
        others: Sequence[tuple[str, float | None]],
        chosen_seconds: float | None = None,
    ) -> None:
        """others: (tier, estimated seconds) of those worth measuring, best first. chosen_seconds:
        where the chosen tier has been measured before."""
        self.chosen = chosen
        self._budget = budget
        self._known = chosen_seconds
        self._trials = {chosen: _Trial(chosen, gone=chosen_seconds is not None)}
        self._calls = 0
        self.offer(others)

    @property
    def is_done(self) -> bool:
        return all(trial.is_done for trial in self._trials.values())

    def _others(self) -> list[_Trial]:
        return [trial for tier, trial in self._trials.items() if tier != self.chosen]

    def offer(self, others: Sequence[tuple[str, float | None]]) -> None:
        """Which tiers are worth measuring from now on. What is measured, under way or failed
        stays so."""
        now = dict(others)
        for trial in self._others():
            trial.away = trial.tier not in now
        for tier, guess in others:
            self._trials.setdefault(tier, _Trial(tier, guess))

    def drop(self) -> None:
        """Gives back what is reserved for runs whose time nobody will tell."""
        for trial in self._others():
            self._budget.spend(-(trial.reserved or 0.0))
            trial.reserved = None

    def next_step(self) -> Step:
        """The tier for this call."""
        self._calls += 1
        if self._calls < _FIRST_CALL:
            return Step(self.chosen, timed=False)
        if not self._trials[self.chosen].is_done:
            return Step(self.chosen, timed=True)
        for trial in self._others():
            if trial.is_done or trial.reserved is not None:
                continue
            cost = self._cost(trial)
            if self._budget.allows(cost):
                trial.reserved = cost
                self._budget.spend(cost)
                return Step(trial.tier, timed=True)
        return Step(self.chosen, timed=False)

    def _cost(self, trial: _Trial) -> float:
        """What one more run is expected to cost beyond the chosen tier's time.

        A tier that nobody knows anything about is taken to need ten times as long.
        """
        usual = self.seconds(self.chosen) or 0.0
        known = statistics.median(trial.times) if trial.times else trial.guess
        cost = 9 * usual if known is None else known - usual
        # The run that is not timed compiles or searches: as long again, at the least.
        return max(0.0, cost) + (usual if trial.runs < _WARM_UP else 0.0)

    def told(self, tier: str, seconds: float) -> None:
        """The time of a timed step."""
        trial = self._trials[tier]
        trial.runs += 1
        if tier != self.chosen:
            paid = max(0.0, seconds - (self.seconds(self.chosen) or 0.0))
            self._budget.spend(paid - (trial.reserved or 0.0))
            trial.reserved = None
            if trial.runs <= _WARM_UP:
                return
        trial.times.append(seconds)

    def failed(self, tier: str) -> None:
        """A tier that failed or was refused is not asked again."""
        if tier in self._trials:
            self._trials[tier].gone = True

    def seconds(self, tier: str) -> float | None:
        """The median of what was measured, None before that."""
        trial = self._trials.get(tier)
        if trial is not None and trial.times:
            return statistics.median(trial.times)
        return self._known if tier == self.chosen else None

    def finished(self) -> dict[str, float]:
        """Tier -> median seconds, of those with all their samples."""
        done = [t for t in self._trials.values() if len(t.times) >= _SAMPLES]
        return {t.tier: statistics.median(t.times) for t in done}
