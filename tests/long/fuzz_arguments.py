"""Bad arguments for every callable of the C core: exceptions are fine, crashes are not.

    python tests/long/fuzz_arguments.py --count 1000000 [--jobs 16] [--seed N] [--function conv3d]

Functions are cut into parts, each in a child process of its own, so that a crash is seen and told
with the line that replays the one case: `--function NAME --seed N --only INDEX`. A child also fails
whose memory goes on growing, or that leaves allocations of the core behind.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def use_few_cores() -> None:
    """Four of them, so that children at once do not each start a pool of all."""
    cores = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(cores)
    os.sched_setaffinity(0, {cores[(first + i) % len(cores)] for i in range(4)})


if "--child" in sys.argv and hasattr(os, "sched_getaffinity"):
    use_few_cores()  # before the core counts them

import numpy as np  # noqa: E402
from core_memory import memory  # noqa: E402
from fuzz_calls import CALLS, READY, spoil_frames  # noqa: E402
from fuzz_objects import (  # noqa: E402
    MischiefError,
    anything,
    make_arrays,
    meddler,
    number,
    shaken,
    triple,
)
from fuzz_raster import raster_arrays  # noqa: E402

from hy3d_rocm import _core  # noqa: E402

# What a function may answer to nonsense: its own refusals, and what arguments raise. SystemError,
# for one, is CPython's word for our bugs.
REFUSALS = (ValueError, TypeError, MemoryError, _core.Hy3dError)
EXPECTED = (*REFUSALS, MischiefError, BufferError, KeyError)
PART = 50_000  # cases of a child
# Pages that caches and arenas still take after the first tenth of a part; a leak of a kilobyte a
# call would be 44 MiB in a part.
MOST_GROWTH_MIB = 40
MOST_RESIDENT_MIB = 1024
# AddressSanitizer keeps freed memory back.
LOOKS_AT_PAGES = "libasan" not in os.environ.get("LD_PRELOAD", "")


def spoilt(rng: random.Random, args: list[Any], sound: Any, arrays: list[Any]) -> Any:
    """What comes in the place of a sound argument."""
    pick = rng.random()
    if pick < 0.25 and isinstance(sound, np.ndarray):
        return shaken(sound, args)
    if pick < 0.25 and type(sound) is tuple and sound:  # not one that lies
        items = list(sound)
        items[rng.randrange(len(items))] = meddler([*args, items])
        return rng.choice([items, tuple(items)])
    if pick < 0.1 and isinstance(sound, int):
        return meddler(args)
    if pick < 0.65:
        return anything(rng, arrays)
    return triple(rng) if isinstance(sound, tuple) else number(rng)


def spoil(rng: random.Random, args: list[Any], kwargs: dict[str, Any], arrays: list[Any]) -> None:
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if "frames" in kwargs and rng.random() < 0.2:
            if type(kwargs["frames"]) in (tuple, list) and kwargs["frames"]:
                spoil_frames(rng, kwargs, arrays)
        elif args and rng.random() < (0.5 if kwargs else 0.9):
            place = rng.randrange(len(args))
            if isinstance(args[place], dict) and rng.random() < 0.8:
                continue  # spoilt already
            args[place] = spoilt(rng, args, args[place], arrays)
        elif kwargs:
            likely = triple(rng) if rng.random() < 0.5 else number(rng)
            kwargs[rng.choice(list(kwargs))] = (
                anything(rng, arrays) if rng.random() < 0.4 else likely
            )
    pick = rng.random()
    if pick < 0.03 and args:
        args.pop(rng.randrange(len(args)))
    elif pick < 0.06:
        args.append(anything(rng, arrays))
    elif pick < 0.09:
        kwargs[rng.choice(["x", "zeros", "default", "latent", "é"])] = anything(rng, arrays)


def function_of(name: str) -> Callable[..., Any]:
    """The callable of a name in CALLS; of an attribute, what reads it."""
    owner, _, attribute = name.partition(".")
    found = getattr(_core, owner)
    if not attribute:
        return found  # type: ignore[no-any-return]
    member = found.__dict__[attribute]
    return member if callable(member) else member.__get__  # type: ignore[no-any-return]


def functions() -> list[str]:
    """All that can be called: functions, classes, their methods and attributes."""
    names = []
    for name in (n for n in dir(_core) if not n.startswith("_")):
        found = getattr(_core, name)
        if callable(found):
            names.append(name)
        if isinstance(found, type) and name != "Hy3dError":
            names += [f"{name}.{member}" for member in found.__dict__ if member[0] != "_"]
    return names


def run_case(name: str, seed: int, index: int, arrays: list[Any]) -> str:
    """One case: what came of it; an unexpected exception is raised with its replay line."""
    # `random` itself is seeded too: the strange objects draw from it while they are used.
    random.seed(f"{seed}:{name}:{index}")
    rng = random.Random(random.random())
    args, kwargs = CALLS[name](rng, arrays)
    spoil(rng, args, kwargs, arrays)
    try:
        function_of(name)(*args, **kwargs)
    except EXPECTED as error:
        return type(error).__name__
    except BaseException as error:
        raise AssertionError(
            f"{name} answered {error!r}: replay with --function {name} --seed {seed} --only {index}"
        ) from error
    return "returned"


def resident_mib() -> float:
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().rss) / 2**20
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_cases(name: str, seed: int, indices: range) -> Counter[str]:
    """Runs the cases in this process, and looks after its memory."""
    arrays = [*make_arrays(), *READY, *raster_arrays()]
    seen: Counter[str] = Counter()
    first = live = 0.0
    for at, index in enumerate(indices):
        if at % 500 == 0:
            print(f"at {index}", file=sys.stderr, flush=True)
        if at == len(indices) // 10:
            _core.trim()
            first, live = resident_mib(), memory.live()
        seen[run_case(name, seed, index, arrays)] += 1
    gc.collect()
    _core.trim()
    grown = resident_mib() - first
    if LOOKS_AT_PAGES:
        assert len(indices) < 10 or grown < MOST_GROWTH_MIB, f"{name}: {grown:.0f} MiB more"
        assert resident_mib() < MOST_RESIDENT_MIB, f"{name}: {resident_mib():.0f} MiB"
    left = memory.live() - live
    assert len(indices) < 10 or left <= 0, f"{name} leaves {left} allocations"
    return seen


def run_in_child(name: str, seed: int, count: int, first: int = 0) -> str:
    """The counts of one part; raises with the whereabouts when the child crashed."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--child", "--function", name,
               "--seed", str(seed), "--count", str(count), "--first", str(first)]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(
            f"{name} ended the process with status {result.returncode} (seed {seed}):\n"
            + result.stderr[-3000:]
        )
    return result.stdout.strip()


def run_each(names: list[str], seed: int, count: int) -> dict[str, str]:
    """The counts of each of these functions, every one in a process that is forked from a child: to
    start Python takes ten times as long as 200 cases. A function that ended its process has none;
    run_in_child(name, seed, count) raises with the whereabouts."""
    command = [sys.executable, __file__, "--child", "--seed", str(seed), "--count", str(count)]
    result = subprocess.run(
        [*command, "--forks", *names], capture_output=True, text=True, check=False
    )
    lines = (line.split("\t") for line in result.stdout.splitlines())
    return dict(lines)


def fork_each(names: list[str], seed: int, indices: range) -> None:
    for name in names:
        pid = os.fork()
        if pid == 0:
            counts = json.dumps(run_cases(name, seed, indices))
            print(f"{name}\t{counts}", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


def run_part(part: tuple[str, int, int, int]) -> tuple[str, float, Counter[str] | str]:
    """(function, seconds, counts or what went wrong)."""
    start = time.monotonic()
    try:
        counts: Counter[str] | str = Counter(json.loads(run_in_child(*part)))
    except AssertionError as error:
        counts = f"FAILED: {error}"
    return part[0], time.monotonic() - start, counts


def run_all(names: list[str], options: argparse.Namespace) -> int:
    """Parts on all jobs; a line a function, and the sum."""
    start, failed = time.monotonic(), 0
    parts = [
        (name, options.seed, min(PART, options.count - first), first)
        for name in names
        for first in range(0, options.count, PART)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run_part, parts))
    for name in names:
        own = [(seconds, counts) for known, seconds, counts in results if known == name]
        sums: Counter[str] = Counter()
        for _, counts in own:
            if isinstance(counts, str):
                failed += 1
                print(f"{name}: {counts}")
            else:
                sums += counts
        print(f"{name:24} {sum(s for s, _ in own):6.1f} s  {dict(sums)}", flush=True)
    print(
        f"{options.count} cases each of {len(names)} functions, {failed} of {len(parts)} parts "
        f"failed, {time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="cases a function")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--function", choices=functions())
    parser.add_argument("--forks", nargs="+", choices=functions(), help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int, help="run one case, in this process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [options.function] if options.function else functions()
    if options.child or options.only is not None:
        if options.child:  # deleters that raise would be told, each of them
            sys.unraisablehook = lambda _told: None
        first, count = (options.first, options.count) if options.child else (options.only, 1)
        if options.forks:
            fork_each(options.forks, options.seed, range(first, first + count))
            return 0
        for name in names:
            print(json.dumps(run_cases(name, options.seed, range(first, first + count))))
        return 0
    return run_all(names, options)


if __name__ == "__main__":
    sys.exit(main())
