"""Part "cancel" of check_host.py: a flag raised from another thread at random moments.

Claimed of each cancelled call: it says HY3D_ERR_CANCELLED; its inputs are as they were, of the
in-painting texture and mask too (other outputs are partly written); nothing stays allocated; the
next call has the bits of a call that nobody disturbed.

The bound in time: a call looks at its flag before each grain and begins none after a request, so
what is left to do are the grains under way, a part of the call's own work. Seconds depend on the
machine and on who else computes there (a virtual one counts stolen time as work), so that none is
promised: checked is that each call returns within LIMIT_S, which no sample's whole work takes on a
busy machine, and that of each function some calls end cancelled (the flag comes after the start, so
one that is looked at only there cancels none). Printed are the seconds, and the share of a call's
work (processor time of the process) that was done after the request.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

from core_memory import memory
from host_calls import Sample, _core, digest, samples

WHOLE_CALLS = 5
LIMIT_S = 20.0
LEAST_CANCELLED = 20  # of so many calls one at least must be cancelled at a random moment


def _whole(sample: Sample, threads: int) -> tuple[str, float]:
    """The bits, and the most processor time that a call took."""
    wanted, longest = digest(sample.run(threads)), 0.0
    for _ in range(WHOLE_CALLS):
        began = time.process_time()
        sample.run(threads)
        longest = max(longest, time.process_time() - began)
    return wanted, longest


def _cancelled(sample: Sample, threads: int, delay: float, flag: Any) -> tuple[str, float, float]:
    """What came of a call whose flag is raised `delay` seconds after its start: bits or the error's
    name, and processor and wall seconds from the request to the return."""
    at, go = [0.0, 0.0], threading.Event()

    def raise_flag() -> None:
        go.wait()
        time.sleep(delay)
        at[:] = time.process_time(), time.perf_counter()
        flag.request()

    other = threading.Thread(target=raise_flag)
    other.start()
    go.set()
    try:
        got = digest(sample.run(threads, flag))
    except _core.Hy3dError as error:
        got = error.name
    spent, wall = time.process_time(), time.perf_counter()
    other.join()
    return got, spent - at[0], wall - at[1]


def cancel(indices: range, seed: int) -> dict[str, Any]:
    """One case an index, each with every function."""
    calls = samples(long=True)
    known = {name: _whole(sample, 2) for name, sample in calls.items()}
    inputs = {name: digest(sample.inputs) for name, sample in calls.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    asked = dict.fromkeys(calls, 0)
    flag = _core.CancelFlag()
    live = memory.live()
    for index in indices:
        rng = random.Random(f"{seed}:{index}")
        for name, sample in calls.items():
            wanted, longest = known[name]
            asked[name] += 1
            where = f"{name}: replay with --only cancel --seed {seed} --first {index} --count 1"
            flag.reset()
            threads = 1 + index % 2
            delay = rng.random() * longest / threads / 2
            got, spent, wall = _cancelled(sample, threads, delay, flag)
            if got == "HY3D_ERR_CANCELLED":
                seconds[name].append((spent, wall))
                assert wall < LIMIT_S, f"{wall:.1f} s from the request to the return; {where}"
            else:
                assert got == wanted, f"a call that was too late to cancel: other bits; {where}"
            flag.reset()
            assert digest(sample.run(threads, flag)) == wanted, f"the next call's bits; {where}"
            assert digest(sample.inputs) == inputs[name], f"inputs changed; {where}"
    assert memory.live() == live, "cancelled calls left allocations behind"
    return {
        "calls": sum(asked.values()),
        "cancelled": sum(map(len, seconds.values())),
        **_figures(seconds, known, asked),
    }


def _figures(
    seconds: dict[str, list[tuple[float, float]]],
    known: dict[str, tuple[str, float]],
    asked: dict[str, int],
) -> dict[str, Any]:
    every = [wall for many in seconds.values() for _, wall in many]
    for name, many in seconds.items():
        if asked[name] >= LEAST_CANCELLED:
            assert many, f"{name}: none of {asked[name]} calls was cancelled"
    shares = [spent / known[name][1] for name, many in seconds.items() for spent, _ in many]
    return {
        "median ms to the return": round(1000 * statistics.median(every), 3) if every else None,
        "max ms to the return": round(1000 * max(every), 3) if every else None,
        "median share of a call's work": round(statistics.median(shares), 3) if shares else None,
        "max ms of a whole call's work": round(1000 * max(w for _, w in known.values()), 1),
    }
