"""Parts "growth" and "refusals" of check_host.py: nothing is kept by calls, nor by refused ones.

Read before and after many calls, one function a process:

- memory: Anonymous of /proc/self/smaps_rollup, which the kernel counts by walking the page tables
  (RSS of /proc/self/status is summed from counters that each CPU may hold back), plus what is
  swapped, after gc.collect() and malloc_trim(0), which gives free pages of every arena back. What
  is left are pages that something still uses, so a leak of 11 bytes a call shows in 100,000 calls.
  The warm-up before makes what is made once (threads, their arenas, BLAS's buffers, workspaces).
- sys.getallocatedblocks(), len(gc.get_objects()) and sys.getrefcount() of each argument and of
  None: one object or reference kept by a call in a hundred would show.
- what the core's allocator has given out and not got back.
"""

from __future__ import annotations

import ctypes
import gc
import random
import re
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steady_calls
from core_memory import memory
from fuzz_arguments import EXPECTED, _core
from fuzz_calls import FLAG

MOST_BYTES = 2**20
WARM_UP = 2000
VARIANTS = 3  # different good calls of a function, in turns
TRIES = 4000  # random calls looked through for ways to be refused
_trim = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "malloc_trim", None)

Call = Callable[[], Any]


def anonymous_bytes() -> int:
    gc.collect()
    _core.trim()
    if _trim is not None:
        _trim(0)
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(n) * 1024 for n in re.findall(r"^(?:Anonymous|Swap):\s+(\d+) kB", text, re.M))


def outcome(function: Any, args: Any, kwargs: Any) -> str:
    """ "" for a result, else the kind of error and its sentence without numbers and quotations."""
    try:
        function(*args, **kwargs)
    except EXPECTED as error:
        words = re.sub(r"'[^']*'|\"[^\"]*\"|<[^>]*>|0x\w+|-?\d[\d.e+]*|nan|inf", "#", str(error))
        return f"{type(error).__name__}: {words[:200]}"
    return ""


def found(name: str, seed: int, *, spoilt: bool, most: int) -> dict[str, tuple[Any, Any]]:
    """Calls that work (by a number), or one for each way to be refused (by its sentence), that do
    the same each time that they are made."""
    arrays = steady_calls.arrays()
    function = getattr(_core, name)
    made: dict[str, tuple[Any, Any]] = {}
    for index in range(TRIES):
        random.seed(f"{seed}:{name}:{index}")
        rng = random.Random(random.random())
        args, kwargs = steady_calls.call(name, rng, arrays, spoilt=spoilt)
        first = outcome(function, args, kwargs)
        key = first if spoilt else str(len(made))
        if bool(first) is not spoilt or key in made:
            continue
        if all(outcome(function, args, kwargs) == first for _ in range(3)):
            made[key] = args, kwargs
        if len(made) == most:
            break
    return made


def items_of(calls: list[tuple[Any, Any]]) -> list[Any]:
    """All that is passed, and what every call meets."""
    items: list[Any] = [None, True, _core, _core.Hy3dError, ValueError, FLAG]
    for args, kwargs in calls:
        items += [*args, *kwargs.values()]
        items += [part for value in args if type(value) in (tuple, list) for part in value]
    return items


# From Python 3.12 on None, small numbers and the like are immortal: their count is above this, and
# the interpreter no longer changes it. A module for the stable ABI of 3.11 still does, and CPython
# allows for it (PEP 683, "accidental de-immortalizing").
IMMORTAL = 1 << 30


class Readings:
    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.counts = array("q", bytes(8 * len(items)))  # numbers that are no objects
        self.memory = self.blocks = self.objects = self.live = 0

    def read(self) -> None:
        self.memory = anonymous_bytes()
        self.live = memory.live()
        self.objects = len(gc.get_objects())
        self.blocks = sys.getallocatedblocks()
        for place, item in enumerate(self.items):
            self.counts[place] = sys.getrefcount(item)

    def grown(self, before: Readings, calls: int) -> str:
        """What is more than it may be, in words; "" for nothing."""
        some = max(200, calls // 100)  # caches of the interpreter itself
        wrong = []
        if self.memory - before.memory >= MOST_BYTES:
            wrong.append(f"{self.memory - before.memory} bytes")
        if self.live != before.live:
            wrong.append(f"{self.live - before.live} allocations of the core")
        for name in ("blocks", "objects"):
            more = getattr(self, name) - getattr(before, name)
            if abs(more) > some:
                wrong.append(f"{more} {name}")
        for item, now, then in zip(self.items, self.counts, before.counts, strict=True):
            if then >= IMMORTAL:
                continue
            # Small numbers and words are shared by the whole interpreter.
            shared = isinstance(item, int | str | bytes | float | type(None) | type(Ellipsis))
            if abs(now - then) > (some if shared else 0):
                wrong.append(f"{now - then} references to {str(item)[:60]!r}")
        return ", ".join(wrong)


def grow(name: str, calls: list[tuple[Any, Any]], count: int, refused: bool) -> int:
    """Makes `count` calls and raises with what has grown; the bytes that were kept."""
    function = getattr(_core, name)
    items = items_of(calls)
    before, after = Readings(items), Readings(items)

    def run(times: int) -> None:
        for turn in range(times):
            args, kwargs = calls[turn % len(calls)]
            try:
                function(*args, **kwargs)
            except EXPECTED:
                if not refused:
                    raise

    for _ in range(2):
        run(min(count, WARM_UP))
        before.read()
    run(count)
    after.read()
    wrong = after.grown(before, count)
    assert not wrong, f"{name} kept {wrong} in {count} calls like {str(calls[0])[:300]}"
    return after.memory - before.memory


def growth(indices: range, seed: int, count: int) -> dict[str, Any]:
    """The functions with these numbers, `count` calls of each."""
    most, made = 0, 0
    for name in [steady_calls.FUNCTIONS[index] for index in indices]:
        calls = list(found(name, seed, spoilt=False, most=VARIANTS).values())
        assert calls, f"no call of {name} works"
        most = max(most, grow(name, calls, count, refused=False))
        made += count
    return {"functions": len(indices), "calls": made, "most bytes kept": most}


def refusals(indices: range, seed: int, count: int) -> dict[str, Any]:
    """Every way found to be refused by the functions with these numbers, `count` times each."""
    most, ways = 0, 0
    for name in [steady_calls.FUNCTIONS[index] for index in indices]:
        for words, call in found(name, seed, spoilt=True, most=10**6).items():
            try:
                most = max(most, grow(name, [call], count, refused=True))
            except AssertionError as error:
                raise AssertionError(f"{error} (answered with {words})") from None
            ways += 1
    return {"functions": len(indices), "ways": ways, "calls": ways * count, "most bytes kept": most}
