"""Ranks of a group as threads of one process, and what goes wrong on one of them."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar
from unittest import mock

import torch.distributed as dist

from hy3d_rocm.decoding import execution
from hy3d_rocm.decoding.group import Group
from hy3d_rocm.decoding.shared_run import SharedRun

_numbers = itertools.count()
#: beyond which a rank that has not ended hangs, in seconds
PATIENCE = 60.0


class HungError(AssertionError):
    """A rank did not end."""


def backends(size: int, seconds: float = PATIENCE) -> list[Any]:
    """A process group's ranks."""
    store, name = dist.HashStore(), f"ranks{next(_numbers)}"

    def join(rank: int) -> Any:
        own = dist.PrefixStore(name, store)
        return dist.ProcessGroupGloo(own, rank, size, timedelta(seconds=seconds))

    return in_threads([lambda rank=rank: join(rank) for rank in range(size)])  # type: ignore[misc]


def groups(size: int, timeout: float = 20.0) -> list[Group]:
    """A group's ranks, each to be used by a thread."""
    return [Group(control, timeout=timeout) for control in backends(size)]


def each(ranks: Sequence[Group], work: Callable[[Group], Any]) -> list[Any]:
    """What work(group) gives, or raises, on each rank."""
    return in_threads([lambda group=group: work(group) for group in ranks])  # type: ignore[misc]


def in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives, or the exception that it raises. HungError where one does not end."""
    ends: list[Any] = [None] * len(works)

    def carry_out(number: int) -> None:
        try:
            ends[number] = works[number]()
        except BaseException as error:  # noqa: BLE001 - it is what this rank gives
            ends[number] = error.with_traceback(None)

    threads = [
        threading.Thread(target=carry_out, args=(n,), daemon=True) for n in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for number, thread in enumerate(threads):
        thread.join(PATIENCE)
        if thread.is_alive():
            raise HungError(f"rank {number} of {len(works)} has not ended after {PATIENCE:g} s")
    return ends


class Fault:
    """On one rank the SharedRun's method `where` fails: of its calls number first .. first + times.

    happen: called in its place, with the method and its arguments; it may raise. calls: so far.
    """

    def __init__(
        self, rank: int, where: str, happen: Callable[..., Any], times: int = 1, first: int = 0
    ) -> None:
        self.rank, self.where, self.happen = rank, where, happen
        self.first, self.stop, self.calls = first, first + times, 0

    def method(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for it."""

        def call(*given: Any) -> Any:
            self.calls += 1
            if self.first < self.calls <= self.stop:
                return self.happen(real, *given)
            return real(*given)

        return call


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    """What a Fault lets happen."""

    def happen(*_: Any) -> None:
        raise make()

    return happen


class _FaultyRun(SharedRun):
    fault: Fault | None = None
    alive: ClassVar[weakref.WeakSet[SharedRun]] = weakref.WeakSet()

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.alive.add(self)
        fault = self.fault
        if fault is not None and self.group.rank == fault.rank:
            setattr(self, fault.where, fault.method(getattr(self, fault.where)))


@contextmanager
def faults(fault: Fault | None) -> Iterator[weakref.WeakSet[SharedRun]]:
    """Decodes in this block have the fault; gives their runs that are still held."""
    _FaultyRun.fault = fault
    _FaultyRun.alive.clear()
    with mock.patch.object(execution, "SharedRun", _FaultyRun):
        yield _FaultyRun.alive
    _FaultyRun.fault = None
