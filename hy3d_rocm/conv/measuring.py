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
from typing import NamedTuple

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
    guess: float | None = None
    runs: int = 0
    times: list[float] = field(default_factory=list)
    gone: bool = False
    reserved: float | None = None  # a run is under way whose time is not known yet

    @property
    def is_done(self) -> bool:
        return self.gone or len(self.times) >= _SAMPLES


class Step(NamedTuple):
    """What to do at one call: run `tier`; tell the watch its time if `timed`."""

    tier: str
    timed: bool


class Watch:
    """Which tier runs at each call of one layer, until every tier has been measured. follow() comes
    first, and again whenever the tiers are chosen anew."""

    def __init__(self, budget: OverheadBudget) -> None:
        self.chosen = ""
        self._budget = budget
        self._known: float | None = None
        self._worth: tuple[str, ...] = ()
        self._trials: dict[str, _Trial] = {}
        self._calls = 0

    def follow(
        self,
        chosen: str,
        worth: Sequence[tuple[str, float | None]],
        chosen_seconds: float | None = None,
    ) -> None:
        """worth: (tier, estimated seconds) of those worth measuring, best first. chosen_seconds:
        where the chosen tier has been measured before. What is measured, under way or failed stays
        so."""
        self.chosen, self._known = chosen, chosen_seconds
        self._worth = tuple(tier for tier, _ in worth)
        for tier, guess in worth:
            self._trials.setdefault(tier, _Trial(guess))

    @property
    def is_done(self) -> bool:
        if any(trial.reserved is not None for trial in self._trials.values()):
            return False
        return all(self._trials[tier].is_done for tier in self._worth)

    def next_step(self) -> Step:
        """The tier for this call."""
        self._calls += 1
        if self._calls < _FIRST_CALL:
            return Step(self.chosen, timed=False)
        if self.chosen in self._worth and not self._trials[self.chosen].is_done:
            return Step(self.chosen, timed=True)
        for tier in self._worth:
            trial = self._trials[tier]
            if trial.is_done or trial.reserved is not None:
                continue
            cost = self._cost(trial)
            if self._budget.allows(cost):
                trial.reserved = cost
                self._budget.spend(cost)
                return Step(tier, timed=True)
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
        if trial.reserved is not None:
            paid = max(0.0, seconds - (self.seconds(self.chosen) or 0.0))
            self._budget.spend(paid - trial.reserved)
            trial.reserved = None
            if trial.runs <= _WARM_UP:
                return
        trial.times.append(seconds)

    def failed(self, tier: str) -> None:
        """A tier that failed or was refused is not asked again. What was reserved is spent."""
        if tier in self._trials:
            self._trials[tier].gone, self._trials[tier].reserved = True, None

    def seconds(self, tier: str) -> float | None:
        """The median of what was measured, None before that."""
        trial = self._trials.get(tier)
        if trial is not None and trial.times:
            return statistics.median(trial.times)
        return self._known if tier == self.chosen else None

    def finished(self) -> dict[str, float]:
        """Tier -> median seconds, of those with all their samples."""
        return {
            tier: statistics.median(trial.times)
            for tier, trial in self._trials.items()
            if len(trial.times) >= _SAMPLES
        }
