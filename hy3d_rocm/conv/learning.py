"""What a decode learns on its way: what failed and worked, how fast, and what a child tried.

`tune` has measured a shape with patience (time, peak, the Triton tier's tile, a slow find); what a
decode learns in passing is added to that row of the verdict store.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.choice import HEALTHY
from hy3d_rocm.conv.errors import Kind, Rule, is_lasting
from hy3d_rocm.conv.policy import Plan
from hy3d_rocm.conv.stats import Audience, Named
from hy3d_rocm.conv.verdicts import VERDICTS

if TYPE_CHECKING:
    from hy3d_rocm.conv.verdict_store.records import Record

# As probe.probe()'s: a first call that takes so much longer than later ones is a slow find.
SLOW_SECONDS = 2.0
_TILE = re.compile(r"\btile \S+")  # triton/launch.py writes it


def failed(spec: ConvSpec, tier: str, found: Rule, error: BaseException) -> None:
    """Keeps the failure, if the next process would meet it too."""
    if is_lasting(found, error):
        verdict = "wrong" if found.kind is Kind.WRONG_RESULT else "error"
        old = _known(spec, tier)
        _put(spec, tier, verdict, old, detail="; ".join((found.reason, *_tile_of(old))))


def worked(spec: ConvSpec, tier: str, took: float) -> None:
    """A first call of the vendor's library that went well here, after `took` seconds."""
    # Late: importing the router imports no probe.
    from hy3d_rocm.conv.probe.parent import timed_verdict

    old = _known(spec, tier)
    if old is not None and old.verdict in HEALTHY:
        return
    later = policy.expected_seconds(spec, tier) or 0.0
    verdict = timed_verdict(took, later, SLOW_SECONDS)
    _put(spec, tier, verdict, old, first_seconds=took)


def recovered(spec: ConvSpec, tier: str) -> None:
    """A tier that a record of an error kept away has computed the shape."""
    old = _known(spec, tier)
    if old is not None and old.verdict == "error":
        _put(spec, tier, "ok", old)


def measured(spec: ConvSpec, tier: str, seconds: float) -> None:
    """The time of a call, measured in passing."""
    old = _known(spec, tier)
    verdict = old.verdict if old is not None and old.verdict in HEALTHY else "ok"
    _put(spec, tier, verdict, old, seconds=seconds, measured_by="passing")


def _known(spec: ConvSpec, tier: str) -> Record | None:
    return policy.memory_for(spec.device).records(spec).get(tier)


def _tile_of(old: Record | None) -> list[str]:
    return [] if old is None else _TILE.findall(old.detail)[:1]


def _put(spec: ConvSpec, tier: str, verdict: str, old: Record | None, **fields: Any) -> None:
    """What the old row has stays, unless `fields` say otherwise; of a failure's words its tile."""
    kept: dict[str, Any] = {"measured_by": "decode"}
    if old is not None:
        for name in ("seconds", "first_seconds", "peak_bytes"):
            kept[name] = getattr(old, name)
        kept["detail"] = old.detail if old.verdict in HEALTHY else "".join(_tile_of(old))
    policy.memory_for(spec.device).put(spec, tier, verdict, **{**kept, **fields})


# Of a whole decode. A probe is only begun with its full time left: a find that was cut short would
# be on record as a hang.
SCOPE_SECONDS = 60.0


class ProbeBudget:
    """How much a decode, the outermost protect() of a thread, may wait for child processes that try
    the vendor's library.

    Shapes come one by one, as the decode reaches them, so each probe is a child of its own;
    `hy3d-rocm tune` lets one child try a whole list. OOM is remembered by this object's identity.
    """

    def __init__(self) -> None:
        self._spent = 0.0
        self._asked: set[Hashable] = set()
        self._ended = ""  # why no more children are started
        self._has_said = False

    def probe(
        self, spec: ConvSpec, tier: str, config: Hashable, what: Named, audience: Audience
    ) -> bool:
        """Has a child try the shape, once a scope and while there is time; whether one did."""
        if VERDICTS.is_sound(f"probed {tier}", config) or (tier, config) in self._asked:
            return False
        if not self._ended and self._spent + policy.PROBE_SECONDS > SCOPE_SECONDS:
            self._ended = f"the {SCOPE_SECONDS:.0f} s for them are spent"
        if self._ended:
            if not self._has_said:
                self._has_said = True
                audience.say(f"no more child processes in this decode: {self._ended}")
            return False
        audience.say(
            f"{what}: a child process tries the vendor library first (at most"
            f" {policy.PROBE_SECONDS:.0f} s; hy3d-rocm tune does that ahead)"
        )

        def cancel() -> None:  # what a listener raises ends the probe and the call
            audience.tell(time.perf_counter(), tier, what, 0.0, "probing")

        self._asked.add((tier, config))
        start = time.monotonic()
        try:
            verdict = policy.prove(spec, tier, cancel)
        finally:
            self._spent += time.monotonic() - start
        self._heed(tier, config, verdict)
        return True

    def _heed(self, tier: str, config: Hashable, verdict: str) -> None:
        """Only a verdict holds beyond the scope."""
        # Late: importing the router imports no probe.
        from hy3d_rocm.conv.probe import parent

        if verdict in parent.VERDICTS:
            VERDICTS.mark_sound(f"probed {tier}", config)
        if verdict == parent.HANG:
            self._ended = "one of them hung"
        elif verdict == parent.NOT_RUN:
            self._ended = "none can be started now"


# Measuring other tiers in passing, on layers that run many times.

SHARE = 0.02
# A layer is one that "runs many times" from this call on.
_FIRST_CALL = 4
# The first run of a tier compiles, searches and is checked: it is not timed.
_WARM_UP = 1
_SAMPLES = 3


class OverheadBudget:
    """What one scope may still spend on measuring, over all its layers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start = clock, clock()
        self.spent = 0.0

    def allows(self, seconds: float) -> bool:
        """Whether an outlay of `seconds` stays within the share of the time so far."""
        return self.spent + seconds <= SHARE * (self._clock() - self._start)

    def spend(self, seconds: float) -> None:
        """Books an outlay; a negative one gives back what was reserved in vain."""
        self.spent += seconds


@dataclass
class _Trial:
    guess: float | None = None
    runs: int = 0
    times: list[float] = field(default_factory=list)
    gone: bool = False  # it failed or was refused
    reserved: float | None = None  # a run is under way whose time is not known yet
    written: bool = False

    @property
    def is_done(self) -> bool:
        return self.gone or len(self.times) >= _SAMPLES


class Watching:
    """Which tier runs at each call of one signature within one protect(), until all are measured.

    Mostly that is the chosen one, and now and then another in its place, whose result is as good
    and is used. What that takes longer than the chosen one would have is the overhead; a scope's
    overheads stay within a share of the time that it has lasted. Not shared between threads.
    """

    def __init__(self, spec: ConvSpec, budget: OverheadBudget, plan: Plan) -> None:
        self._spec, self._budget = spec, budget
        self._trials: dict[str, _Trial] = {}
        self._calls = 0
        self._late: list[tuple[str, Any, Any]] = []  # a GPU's events that have not passed yet
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """Whenever the tiers are chosen anew: what is measured, under way or failed stays so. With
        none to choose from, nothing is measured."""
        self._plan, self.chosen = plan, plan.tiers[0].name
        worth = plan.unmeasured if len(plan.tiers) > 1 else ()
        self._worth = tuple(tier for tier, _ in worth)
        for tier, guess in worth:
            self._trials.setdefault(tier, _Trial(guess))

    @property
    def is_done(self) -> bool:
        if self._late or any(trial.reserved is not None for trial in self._trials.values()):
            return False
        return all(self._trials[tier].is_done for tier in self._worth)

    def to_time(self) -> str | None:
        """The tier to run and to time at this call; None: the chosen one, untimed."""
        self._calls += 1
        if self._calls < _FIRST_CALL:
            return None
        if self.chosen in self._worth and not self._trials[self.chosen].is_done:
            return self.chosen
        for tier in self._worth:
            trial = self._trials[tier]
            if trial.is_done or trial.reserved is not None:
                continue
            cost = self._cost(trial)
            if self._budget.allows(cost):
                trial.reserved = cost
                self._budget.spend(cost)
                return tier
        return None

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
        """The time of a call of to_time()."""
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
        """It did not compute the call that it was given, and is not asked again. What was reserved
        is spent."""
        self._late = [row for row in self._late if row[0] != tier]
        if tier in self._trials:
            self._trials[tier].gone, self._trials[tier].reserved = True, None

    def seconds(self, tier: str) -> float | None:
        """The median of what was measured, None before that."""
        trial = self._trials.get(tier)
        if trial is not None and trial.times:
            return statistics.median(trial.times)
        return self._plan.first_seconds if tier == self.chosen else None

    @contextlib.contextmanager
    def timing(self, tier: str) -> Iterator[None]:
        """Around a timed call. Does not wait for the device: its time is known some calls later."""
        is_on_gpu = self._spec.device.type == "cuda"
        start = self._event() if is_on_gpu else time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed(tier)
            raise
        if is_on_gpu:
            self._late.append((tier, start, self._event()))
        else:
            self.told(tier, time.perf_counter() - start)

    def _event(self) -> Any:
        """On the stream that the call's device works on: it need not be the current one."""
        made: Any = torch.cuda.Event  # torch has no annotation
        event = made(enable_timing=True)
        with torch.cuda.device(self._spec.device):
            event.record(torch.cuda.current_stream(self._spec.device))
        return event

    def collect(self) -> bool:
        """Takes in what has been measured meanwhile; whether the verdict store has grown."""
        while self._late and self._late[0][2].query():
            tier, first, last = self._late.pop(0)
            self.told(tier, first.elapsed_time(last) / 1e3)
        done = [(tier, t) for tier, t in self._trials.items() if len(t.times) >= _SAMPLES]
        new = [(tier, trial) for tier, trial in done if not trial.written]
        for tier, trial in new:
            trial.written = True
            name = policy.known_as(tier, self._plan.setting)
            measured(self._spec, name, statistics.median(trial.times))
        return bool(new)
