"""Part "cancel" of check_host.py: a flag raised from another thread at random moments.

Claimed of each cancelled call: it says HY3D_ERR_CANCELLED; its inputs are as they were, of the
in-painting texture and mask too (other outputs are partly written); nothing stays allocated; the
next call has the bits of a call that nobody disturbed.

The bound in time: a call looks at its flag before each grain and begins none after a request, so it
takes no more processor time than the rest of its own work, and as a rule the grains under way
alone. Checked is the first for each call (processor time of the whole process from the request to
the return, against the longest of some whole calls), and for half of the calls that they returned
within half of a call's time; processor time, because a busy machine may let any thread wait.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

from host_calls import Sample, _core, digest, samples

WHOLE_CALLS = 8


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
    threads = 2
    known = {name: _whole(sample, threads) for name, sample in calls.items()}
    inputs = {name: digest(sample.inputs) for name, sample in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    ended = 0
    flag = _core.CancelFlag()
    live = _core.live_allocations()
    for index in indices:
        rng = random.Random(f"{seed}:{index}")
        for name, sample in calls.items():
            wanted, longest = known[name]
            where = f"{name}: replay with --only cancel --seed {seed} --first {index} --count 1"
            flag.reset()
            got, spent, wall = _cancelled(sample, threads, rng.random() * longest / threads, flag)
            if got == "HY3D_ERR_CANCELLED":
                ended += 1
                seconds[name].append(wall)
                assert spent <= longest, (
                    f"{spent:.4f} s of work after a request, a call: {longest:.4f} s; {where}"
                )
            else:
                assert got == wanted, f"a call that was too late to cancel: other bits; {where}"
            flag.reset()
            assert digest(sample.run(threads, flag)) == wanted, f"the next call's bits; {where}"
            assert digest(sample.inputs) == inputs[name], f"inputs changed; {where}"
    assert _core.live_allocations() == live, "cancelled calls left allocations behind"
    return {"calls": len(indices) * len(calls), "cancelled": ended, **_figures(seconds, known)}


def _figures(seconds: dict[str, list[float]], known: dict[str, tuple[str, float]]) -> Any:
    every = [one for many in seconds.values() for one in many]
    for name, many in seconds.items():
        if len(many) >= 20:
            middle, whole = statistics.median(many), known[name][1]
            assert middle <= whole / 2, f"{name}: {middle:.4f} s to the return of {whole:.4f} s"
    return {
        "median ms to the return": round(1000 * statistics.median(every), 3) if every else None,
        "max ms to the return": round(1000 * max(every), 3) if every else None,
        "max ms of a whole call's work": round(1000 * max(w for _, w in known.values()), 1),
    }
