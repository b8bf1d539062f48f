"""Many threads in the extension at once, on the same objects: for a Python without the GIL.

    python3.14t tests/long/check_free_threaded.py [--threads 8] [--rounds 2000]

One kind of call after the other, all threads at once: conv3d with and without shared prepared
weights, schedule_tile on a dictionary that others change, resolve_device on a tree that others
change, CancelFlag, rasterize, and DLPack capsules that all of them are handed at the same moment.
Every result is compared with the one computed before, alone. With the GIL the same calls run and
less is shown: the closing line says which it was.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

if sys.platform != "win32":
    from core_memory import memory  # builds with make
else:
    memory = None

from hy3d_rocm import _core

ONE = (1, 1, 1)
ZERO = (0, 0, 0)


class Same:
    """Hands out one capsule of an array, to whoever asks: only one may take what is in it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.capsule = array.__dlpack__()
        self.taken: list[int] = []

    def __dlpack__(self) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Node:
    def __init__(self) -> None:
        self.components: dict[str, Any] = {}


def convolution(threads: int) -> Callable[[int], str]:
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (1, 8, 4, 12, 12)).astype("f4")
    weight = rng.integers(-3, 4, (8, 8, 3, 3, 3)).astype("f4")
    wanted = np.zeros((1, 8, 4, 12, 12), "f4")
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
    for t, h, w in np.ndindex(3, 3, 3):
        part = padded[:, :, t : t + 4, h : h + 12, w : w + 12]
        wanted += np.einsum("oc,ncthw->nothw", weight[:, :, t, h, w], part)
    sizes = ((4, 12, 12), 8, 8, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1, "f32")
    number = _core.conv3d_format(*sizes, "exact")[0]
    shared = _core.conv3d_prepare(weight, number) if number else None

    def call(turn: int) -> str:
        out = np.empty_like(wanted)
        prepared = shared if turn % 2 else None
        _core.conv3d(x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 1, prepared=prepared)
        return "" if (out == wanted).all() else "conv3d differs"

    return call


def plans(threads: int) -> Callable[[int], str]:
    made = _core.schedule_plan(latent=(5, 32, 32), factor=(4, 8, 8), budget_bytes=0)
    wanted = _core.schedule_tile(made, 0)
    kept = dict(made["desc"])

    def call(turn: int) -> str:
        for _ in range(20):
            made["desc"] = kept.copy()  # the old one goes while others read it
        return "" if _core.schedule_tile(made, 0) == wanted else "schedule_tile differs"

    return call


def devices(threads: int) -> Callable[[int], str]:
    root = Node()
    root.components = {str(i): Node() for i in range(20)}

    def call(turn: int) -> str:
        root.components["7"] = Node()
        root.components = dict(root.components)
        found = _core.resolve_device(root, "cpu")
        return "" if found == ("cpu", "default") else f"resolve_device gave {found}"

    return call


def capsules(threads: int) -> Callable[[int], str]:
    window = np.ones(4, "f4")
    made = [Same(np.full((1, 1, 1, 1, 4), 2, "f4"))]

    def renew() -> None:
        made[0] = Same(np.full((1, 1, 1, 1, 4), 2, "f4"))

    together = threading.Barrier(threads, renew)

    def call(turn: int) -> str:
        together.wait(60)
        mine = made[0]
        out = np.zeros((1, 1, 1, 1, 4), "f4")
        try:
            _core.blend_accumulate(mine, None, None, window, out)
        except TypeError as error:
            return "" if "no fresh 'dltensor' capsule" in str(error) else str(error)
        mine.taken.append(turn)
        if len(mine.taken) != 1:
            return f"one capsule was taken {len(mine.taken)} times"
        return "" if (out == 2).all() else "blend_accumulate differs"

    return call


def flags(threads: int) -> Callable[[int], str]:
    shared = _core.CancelFlag()

    def call(turn: int) -> str:
        shared.request()
        shared.reset()
        own = _core.CancelFlag()
        own.request()
        return "" if own.requested else "a flag of one's own was reset"

    return call


def pictures(threads: int) -> Callable[[int], str]:
    rng = np.random.default_rng(5)
    clip = rng.standard_normal((60, 4)).astype("f4")
    clip[:, 3] = 1
    faces = rng.integers(0, 60, (80, 3)).astype("i4")

    def draw() -> np.ndarray:
        index = np.empty((40, 40), "i4")
        _core.rasterize(clip, faces, None, index, None, None)
        return index

    wanted = draw()
    return lambda turn: "" if (draw() == wanted).all() else "rasterize differs"


KINDS = (convolution, plans, devices, capsules, flags, pictures)


def work(call: Callable[[int], str], rounds: int, wrong: list[str]) -> None:
    for turn in range(rounds):
        try:
            trouble = call(turn)
        except Exception as error:  # noqa: BLE001 any is a finding
            trouble = f"{type(error).__name__}: {error}"
        if trouble:
            wrong.append(f"round {turn}: {trouble}")


def run_kind(kind: Callable[[int], Callable[[int], str]], threads: int, rounds: int) -> list[str]:
    """All threads make the same kind of call; what was wrong."""
    wrong: list[str] = []
    call = kind(threads)
    workers = [threading.Thread(target=work, args=(call, rounds, wrong)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [f"{kind.__name__}: {line}" for line in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2000)
    chosen = parser.parse_args()
    start = time.monotonic()
    live = memory.live() if memory else 0
    wrong = [line for kind in KINDS for line in run_kind(kind, chosen.threads, chosen.rounds)]
    leaked = memory.live() - live if memory else 0
    for line in wrong[:10]:
        print(line)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    count = chosen.threads * chosen.rounds * len(KINDS)
    seconds = time.monotonic() - start
    print(
        f"{count} calls on {chosen.threads} threads {'with' if gil else 'without'} the GIL, "
        f"{len(wrong)} wrong, {leaked if memory else 'uncounted'} allocations left, {seconds:.0f} s"
    )
    return 1 if wrong or leaked else 0


if __name__ == "__main__":
    sys.exit(main())
