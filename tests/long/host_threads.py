"""Part "threads" of check_host.py: eight threads that share everything, or nothing.

Each thread makes its calls in an order of its own, with one to three threads inside; every result
is compared bit for bit. In half of the cases all of them share the prepared weights and one flag,
in the others each has its own; every sixteenth call has a raised flag and must say so.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from core_memory import memory
from host_calls import Sample, _core, digest, samples

THREADS = 8


class Caller(threading.Thread):
    def __init__(
        self, calls: dict[str, Sample], wanted: dict[str, str], words: str, count: int, shared: Any
    ) -> None:
        super().__init__()
        self.calls, self.wanted, self.count = calls, wanted, count
        self.rng, self.words = random.Random(words), words
        self.shared = shared  # (flag, raised flag, prepared by name), or None
        self.failure = ""
        self.made = 0

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self.failure = f"{self.words}: {error!r}"

    def _own(self) -> Any:
        flag, raised = _core.CancelFlag(), _core.CancelFlag()
        raised.request()
        return flag, raised, {name: call.prepare() for name, call in self.calls.items()}

    def _work(self) -> None:
        flag, raised, prepared = self._own() if self.shared is None else self.shared
        names = list(self.calls)
        for turn in range(self.count):
            name = self.rng.choice(names)
            threads = self.rng.randint(1, 3)
            ready = prepared[name] if self.rng.random() < 0.7 else None
            cancelled = turn % 16 == 5
            try:
                got = digest(self.calls[name].run(threads, raised if cancelled else flag, ready))
            except _core.Hy3dError as error:
                got = error.name
            wanted = "HY3D_ERR_CANCELLED" if cancelled else self.wanted[name]
            assert got == wanted, f"{name}: call {turn} gave {got}"
            self.made += 1


def threads(indices: range, seed: int, turns: int = 100) -> dict[str, Any]:
    """Eight threads an index, with `turns` calls each."""
    calls = samples()
    wanted = {name: digest(call.run(1)) for name, call in calls.items()}
    live = memory.live()
    made = 0
    for index in indices:
        flag, raised = _core.CancelFlag(), _core.CancelFlag()
        raised.request()
        prepared = {name: call.prepare() for name, call in calls.items()}
        shared = (flag, raised, prepared) if index % 2 == 0 else None
        callers = [
            Caller(calls, wanted, f"{seed}:{index}:{k}", turns, shared) for k in range(THREADS)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        failed = [caller.failure for caller in callers if caller.failure]
        assert not failed, f"--only threads --seed {seed} --first {index} --count 1: {failed[0]}"
        made += sum(caller.made for caller in callers)
        del flag, raised, prepared, shared, callers, caller
    assert memory.live() == live, "threads left allocations behind"
    return {"calls": made, "threads at once": THREADS}
