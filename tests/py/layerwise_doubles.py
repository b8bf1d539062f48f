"""Doubles for the tests of the engine that goes layer by layer."""

from __future__ import annotations

import random
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hy3d_rocm.decode.engines.layerwise import LayerEngine
from hy3d_rocm.decode.engines.spill import Keeper
from hy3d_rocm.decode.report import Step
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

CPU = torch.device("cpu")


def make_engine(slice_bytes: int, **options: Any) -> LayerEngine:
    """Float32 on the CPU; an allocator that is emptied after each fault would only take time."""
    options.setdefault("on_pressure", lambda: None)
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    return LayerEngine(backend, CPU, slice_bytes, **options)


def joined(engine: LayerEngine, handle: Any) -> Any:
    """The whole video; the frames must come in order and without a gap."""
    parts, at = [], 0
    for first, tensor in engine.leave(handle):
        assert first == at
        at += tensor.shape[2]
        parts.append(tensor.clone())
    return torch.cat(parts, 2)


class Counter:
    """Steps, and an error before the grain whose number is asked for."""

    def __init__(
        self, stop_at: int | None = None, error: type[BaseException] | None = None
    ) -> None:
        self.stop_at = stop_at
        self.error = error
        self.steps: list[Step] = []

    def check(self) -> None:
        if self.error is not None and len(self.steps) == self.stop_at:
            raise self.error("stopped")

    def tick(self, step: Step) -> None:
        self.steps.append(step)


class FailingGrains(Counter):
    """Out of memory at the grains whose numbers are given, as often as they are given."""

    def __init__(self, failures: list[int]) -> None:
        super().__init__()
        self.left = list(failures)

    def check(self) -> None:
        if len(self.steps) in self.left:
            self.left.remove(len(self.steps))
            raise torch.OutOfMemoryError("the test's")


class FailingOperators(TorchDispatchMode):
    """Out of memory in place of the operators whose numbers are given; counts them."""

    def __init__(self, failures: set[int]) -> None:
        super().__init__()
        self.failures = failures
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number = self.count
        self.count += 1
        if number in self.failures:
            raise torch.OutOfMemoryError(f"the test's, in place of {func}")
        return func(*args, **(kwargs or {}))


class LateMover:
    """A second device whose copies happen as late as they may: a copy reads its source and writes
    its target only when it is waited for (or when it has been asked about `polls` times).

    What is read too early is NaN; a source that is gone before its copy is an error.
    """

    overlaps = True

    def __init__(self, seed: int = 0, copies_that_fail: int = 0) -> None:
        self.rng = random.Random(seed)
        self.under_way: list[_Late] = []
        self.most_under_way = 0
        self.parked: set[int] = set()
        self.copies_that_fail = copies_that_fail

    def _begin(self, source: Any, target: Any) -> _Late:
        ticket = _Late(self, source, target, self.rng.randint(0, 3))
        self.under_way.append(ticket)
        out = sum(t.outward for t in self.under_way)
        self.most_under_way = max(self.most_under_way, out)
        return ticket

    def _may_fail(self) -> None:
        if self.copies_that_fail and self.rng.random() < 0.3:
            self.copies_that_fail -= 1
            raise torch.OutOfMemoryError("the test's, in a copy")

    def send(self, tensor: Any) -> Any:
        self._may_fail()
        host = _Host(torch.full_like(tensor, float("nan")))
        ticket = self._begin(weakref.ref(tensor), host.tensor)
        ticket.outward = host.pending = True
        ticket.host = host
        self.parked.add(id(host))
        return host, ticket

    def bring(self, parked: Any) -> Any:
        assert not parked.pending, "it was asked back before it was out"
        assert id(parked) in self.parked, "it was asked back after it was let go"
        self._may_fail()
        tensor = torch.full_like(parked.tensor, float("nan"))
        return tensor, self._begin(lambda: parked.tensor, tensor)

    def free(self, parked: Any) -> None:
        self.parked.remove(id(parked))

    def host_bytes(self, nbytes: int) -> int:
        return nbytes


class _Host:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.pending = False


class _Late:
    def __init__(self, mover: LateMover, source: Any, target: Any, polls: int) -> None:
        self.mover, self.source, self.target, self.polls = mover, source, target, polls
        self.outward = False
        self.host: Any = None

    def _happen(self) -> None:
        if self.source is None:
            return
        source = self.source()
        assert source is not None, "the source of a copy was let go while the copy was under way"
        with torch.utils._python_dispatch._disable_current_modes():
            self.target.copy_(source)
        self._over()

    def _over(self) -> None:
        self.source = None
        self.mover.under_way.remove(self)
        if self.host is not None:
            self.host.pending = False

    def done(self) -> bool:
        self.polls -= 1
        if self.polls < 0:
            self._happen()
        return self.source is None

    def wait(self) -> None:
        self._happen()

    def join(self) -> None:
        self._happen()

    def abandon(self) -> None:
        if self.source is not None:
            self._over()


class WatchedKeeper(Keeper):
    """Remembers the largest set of slices that a grain reads and makes."""

    largest_grain = 0

    def hold(self, pieces: Any, making: int) -> Any:
        held = sum({id(p): p.nbytes for p in pieces}.values()) + making
        self.largest_grain = max(self.largest_grain, held)
        return super().hold(pieces, making)


def watched_engine(slice_bytes: int, limit: int, mover: Any, **options: Any) -> LayerEngine:
    """An engine whose keeper is a WatchedKeeper."""
    engine = make_engine(slice_bytes, **options)
    engine.keeper = WatchedKeeper(mover, limit)
    return engine
