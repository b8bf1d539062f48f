"""A layer that is measured in passing: passing.Watch with a GPU's clock, and where results go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from hy3d_rocm.conv import learning, policy
from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.passing import Purse, Step, Watch
from hy3d_rocm.conv.policy import Plan


class Watching:
    """The watch of one call signature. Not shared between threads."""

    def __init__(self, plan: Plan, spec: ConvSpec, purse: Purse) -> None:
        self._watch = Watch(purse, plan.tiers[0].name, _others(plan), plan.first_seconds)
        self._before: Watching | None = None
        self._setting, self._spec = plan.setting, spec
        self._written: set[str] = set()
        self._late: list[tuple[str, Any, Any]] = []  # a GPU's events that have not passed yet

    @classmethod
    def after(
        cls, before: Watching | None, plan: Plan, spec: ConvSpec, purse: Purse
    ) -> Watching | None:
        """For a plan made anew, under memory pressure once a second: with the same first tier the
        watch goes on; under another one what is still under way is taken in."""
        worthwhile = bool(plan.unmeasured) and len(plan.tiers) > 1
        if before is not None and plan.tiers and before._watch.chosen == plan.tiers[0].name:
            before._watch.offer(_others(plan) if worthwhile else [])
            return before
        if worthwhile:
            new = cls(plan, spec, purse)
            new._before = before
            return new
        if before is not None:
            before._watch.drop()
        return None

    def next_step(self) -> Step:
        """What to do at this call."""
        return self._watch.next_step()

    @contextlib.contextmanager
    def timing(self, tier: str) -> Iterator[None]:
        """Around a timed call. Does not wait for the device: its time is known some calls later."""
        if self._spec.device.type != "cuda":
            start = time.perf_counter()
            yield
            self._watch.told(tier, time.perf_counter() - start)
            return
        make: Any = torch.cuda.Event  # torch has no annotation
        first, last = (make(enable_timing=True) for _ in range(2))
        self._record(first)
        yield
        self._record(last)
        self._late.append((tier, first, last))

    def _record(self, event: Any) -> None:
        """On the stream that the call's device works on: it need not be the current one."""
        with torch.cuda.device(self._spec.device):
            event.record(torch.cuda.current_stream(self._spec.device))

    def failed(self, tier: str) -> None:
        """It did not compute the call that it was given."""
        self._late = [row for row in self._late if row[0] != tier]
        self._watch.failed(tier)

    def collect(self) -> bool:
        """Takes in what has been measured meanwhile; whether the verdict store has grown."""
        while self._late and self._late[0][2].query():
            tier, first, last = self._late.pop(0)
            self._watch.told(tier, first.elapsed_time(last) / 1e3)
        grown = self._before is not None and self._before.collect()
        if self._before is not None and not self._before._late:
            self._before = None
        for tier, seconds in self._watch.finished().items():
            if tier not in self._written:
                self._written.add(tier)
                name = policy.known_as(tier, self._setting)
                learning.measured(self._spec, name, seconds)
                grown = True
        return grown

    @property
    def is_done(self) -> bool:
        return self._watch.is_done and self._before is None and not self._late


def _others(plan: Plan) -> list[tuple[str, float | None]]:
    return [(tier, guess) for tier, guess in plan.unmeasured if tier != plan.tiers[0].name]
