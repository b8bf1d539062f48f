"""Part "forks" of check_host.py: children of fork, of threads, of forks, and multiprocessing's.

Each child computes every sample with two threads, compares the bits with its parent's, and forks
again until the chain is as long as asked; the pool's threads are alive in every parent. In the
kind "inside" two more threads of the parent are inside calls (of BLAS too) at the moment of each
fork. A child that does not end within its alarm is killed by it and counts as failed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from core_memory import memory
from host_calls import Sample, digest, samples

ALARM_S = int(os.environ.get("HOST_ALARM", "300"))
CHAIN = 25  # forks one inside the other
KINDS = ("inside", "thread", "chain")


def bits(calls: dict[str, Sample], threads: int = 2) -> dict[str, str]:
    return {name: digest(call.run(threads, None, call.prepare())) for name, call in calls.items()}


def in_child(work: Callable[[], bool], forked: Callable[[], None] = lambda: None) -> bool:
    """Whether `work` came back with True in a child; the parent calls `forked` right after."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(ALARM_S)
            good = work()
        finally:
            os._exit(0 if good else 1)
    forked()
    return os.waitpid(child, 0)[1] == 0


def chain(calls: dict[str, Sample], wanted: dict[str, str], depth: int, busy: bool) -> bool:
    """A child that computes rightly and has such a child, `depth` of them."""

    def work() -> bool:
        return bits(calls) == wanted and (depth <= 1 or chain(calls, wanted, depth - 1, busy))

    if not busy:
        return in_child(work)
    with inside_calls(calls) as stop:
        return in_child(work, stop)


@contextmanager
def inside_calls(calls: dict[str, Sample]) -> Iterator[Callable[[], None]]:
    """Three threads that are hardly ever outside of a call, until what it gives is called."""
    done, ready = threading.Event(), threading.Barrier(4)
    # One is inside long calls and BLAS, two take the pool's lock as often as they can.
    short = ("channel_moments", "interpolate")
    each = (("conv3d f64", "conv3d fast", "rasterize"), short, short)

    def work(names: tuple[str, ...]) -> None:
        ready.wait()
        while not done.is_set():
            for name in names:
                calls[name].run(2, None, calls[name].prepare())

    threads = [threading.Thread(target=work, args=(names,)) for names in each]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(0.003)  # else the fork comes before any of them has the GIL, so outside of all calls
    try:
        yield done.set
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _in_thread(work: Callable[[], bool]) -> bool:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results == [True]


def forks(indices: range, seed: int) -> dict[str, Any]:
    """One fork an index, in chains."""
    calls = samples()
    wanted = bits(calls)
    live = memory.live()
    left, chains = len(indices), 0
    while left > 0:
        kind = KINDS[(indices.start + chains) % len(KINDS)]
        depth = min(CHAIN, left)
        if kind == "inside":
            good = chain(calls, wanted, depth, True)
        elif kind == "thread":
            good = _in_thread(lambda depth=depth: chain(calls, wanted, depth, False))
        else:
            good = chain(calls, wanted, depth, False)
        assert good, f"a child of kind {kind}, {depth} deep, failed (chain {chains})"
        assert bits(calls) == wanted, f"the parent's bits after {kind}"
        left, chains = left - depth, chains + 1
    assert memory.live() == live
    return {"forks": len(indices), "chains": chains}


def _worker(name: str) -> str:
    call = samples()[name]
    return digest(call.run(2, None, call.prepare()))


def multi(indices: range, seed: int) -> dict[str, Any]:
    """Pools of multiprocessing, one an index, by each way to start them."""
    calls = samples()
    wanted = bits(calls)
    done = 0
    for index in indices:
        way = ("fork", "forkserver", "spawn")[index % 3]
        context = multiprocessing.get_context(way)
        with context.Pool(2) as pool:
            made = pool.map_async(_worker, list(calls)).get(ALARM_S)
        assert dict(zip(calls, made, strict=True)) == wanted, f"{way}: other bits"
        done += len(made)
        assert bits(calls) == wanted, f"the parent's bits after {way}"
    return {"pools": len(indices), "calls in children": done}
