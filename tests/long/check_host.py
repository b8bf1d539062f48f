"""Life in a host process: cancels, forks, threads, interpreters, exits, signals, memory.

    python tests/long/check_host.py [--only NAME ...] [--scale 1.0] [--jobs N] [--seed S]

Each part runs in child processes of its own, which may crash or hang without ending the check:

    cancel        1,000 times, each of ten functions cancelled at a random moment
    forks         1,000 forks, in chains of 25 one inside the other, some of them from a thread and
                  some while other threads are inside calls
    multi         12 pools of multiprocessing: fork, forkserver, spawn
    threads       8 threads x 1,000 calls, sharing and not sharing prepared weights and flags
    interpreters  100 sub-interpreters, shared GIL and own
    reload        100 further copies of the module: imported, used, reloaded, dropped
    ends          100 ways to end a process: live objects, daemon threads inside calls, os._exit ...
    signals       100 Ctrl-Cs at random moments of long calls
    growth        100,000 calls of each function of the core: under 1 MiB and no object kept
    refusals      10,000 times each way to be refused: the same

--scale multiplies the numbers. A failure says what replays it: --only NAME --seed S --first K
--count N. Prints one line a part and a last one with the sums; exit status 1 after any failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "support")]

import host_cancel  # noqa: E402
import host_forks  # noqa: E402
import host_growth  # noqa: E402
import host_life  # noqa: E402
import host_threads  # noqa: E402

FUNCTIONS = len(host_growth.steady_calls.FUNCTIONS)


@dataclass(frozen=True)
class Part:
    """run(indices, seed, calls): figures by name, or an AssertionError. `count` indices are dealt
    out to the workers; `calls` is what else --scale multiplies."""

    run: Callable[[range, int, int], dict[str, Any]]
    count: int
    calls: int = 0
    single: bool = False  # one process alone
    scaled: bool = True


def plain(run: Callable[[range, int], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda indices, seed, calls: run(indices, seed)


PARTS = {
    "cancel": Part(plain(host_cancel.cancel), 1000),
    "forks": Part(plain(host_forks.forks), 1000),
    "multi": Part(plain(host_forks.multi), 12),
    "threads": Part(host_threads.threads, 2, 1000, single=True, scaled=False),
    "interpreters": Part(plain(host_life.interpreters), 100, single=True),
    "reload": Part(plain(host_life.reload), 100, single=True),
    "ends": Part(plain(host_life.ends), 100),
    "signals": Part(plain(host_life.signals), 100),
    "growth": Part(host_growth.growth, FUNCTIONS, 100_000, scaled=False),
    "refusals": Part(host_growth.refusals, FUNCTIONS, 10_000, scaled=False),
}


def child(name: str, options: argparse.Namespace, worker: int, workers: int) -> dict[str, Any]:
    """One process with every `workers`-th index; {"failed": words} after a failure."""
    part = PARTS[name]
    calls = max(1, round(part.calls * options.scale)) if part.calls else 0
    count = options.count
    if count is None:
        count = max(1, round(part.count * options.scale)) if part.scaled else part.count
    command = [
        sys.executable, "-X", "faulthandler", __file__, "--child", "--only", name,
        "--seed", str(options.seed), "--first", str(options.first + worker),
        "--count", str(count - worker), "--workers", str(workers), "--calls", str(calls),
    ]  # fmt: skip
    # Arenas of malloc that threads leave behind are no leak, and are not looked at for one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    try:
        made = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False,
            timeout=options.timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"{name}: no end after {options.timeout} s (worker {worker})"}
    if made.returncode != 0:
        return {"failed": f"{name}: status {made.returncode}\n{made.stderr[-3000:]}"}
    figures: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return figures


def together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums; the largest of what is named so, and means of medians."""
    names = list(dict.fromkeys(name for result in results for name in result))
    made: dict[str, Any] = {}
    for name in names:
        values = [result[name] for result in results if result.get(name) is not None]
        if name.startswith(("max ", "most ", "kinds", "threads at once")):
            made[name] = max(values)
        elif name.startswith("median "):
            made[name] = round(sum(values) / len(values), 3) if values else None
        else:
            made[name] = sum(values)
    return made


def run_part(name: str, options: argparse.Namespace) -> int:
    """0, or 1 after a failure."""
    part, began = PARTS[name], time.monotonic()
    count = options.count or part.count
    workers = 1 if part.single else min(options.jobs, count)
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda k: child(name, options, k, workers), range(workers)))
    failed = [result["failed"] for result in results if "failed" in result]
    took = f"{time.monotonic() - began:.0f} s"
    if failed:
        print(f"FAILED {name} ({took}): {len(failed)} of {workers} children", *failed, sep="\n")
        return 1
    words = ", ".join(f"{key} {value}" for key, value in together(results).items())
    print(f"ok     {name}: {words}, {took}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(PARTS), metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of a part")
    parser.add_argument("--count", type=int, help="cases of a part, in place of --scale")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds a child")
    for name in ("--workers", "--calls"):
        parser.add_argument(name, type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only or list(PARTS)
    if options.child:
        indices = range(options.first, options.first + options.count, options.workers)
        figures = PARTS[names[0]].run(indices, options.seed, options.calls)
        print(json.dumps(figures))
        return 0
    began = time.monotonic()
    failed = sum(run_part(name, options) for name in names)
    print(f"host: {len(names)} parts, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
