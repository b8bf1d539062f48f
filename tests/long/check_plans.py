"""Checks random decode plans: coverage, exact window sums, costs, budgets, levels.

    python tests/long/check_plans.py --count 100000 [--jobs N] [--seed 1] [--twin] [--compare]

Tiles are products of their axes, so everything is checked along each axis. --twin checks the
pure-Python twin instead of the core; --compare demands that both give the same plans, tiles and
windows. A failure prints the description, and its number to replay it: --first NUMBER --count 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm._fallback import Hy3dError  # noqa: E402
from hy3d_rocm._fallback import schedule as twin  # noqa: E402

Desc = dict[str, Any]


class PlanError(AssertionError):
    """A plan that breaks its contract."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise PlanError(text)


def random_desc(rng: random.Random) -> Desc:
    """A decode as odd as users make them: lengths 1 to 64 (sometimes longer), any overlap."""
    longest = rng.choice((4, 24, 64, 64, 160))
    small = rng.choice((1, 3, 9, 20))
    return {
        "latent": tuple(rng.randint(1, longest) for _ in range(3)),
        "factor": rng.choice(((4, 8, 8), (4, 8, 8), (1, 1, 1), (2, 3, 5), (8, 32, 32), (1, 8, 8))),
        "causal": rng.randint(0, 1),
        "overlap": tuple(rng.randint(0, small) for _ in range(3)),
        "halo": tuple(rng.randint(0, small) for _ in range(3)),
        "min_tile": tuple(rng.randint(1, small) for _ in range(3)),
        "fixed_bytes": rng.choice((0, 1, 10**6)),
        "bytes_per_voxel": rng.choice((0, 1, 1536)),
        "bytes_per_token_pair": rng.choice((0, 0, 3)),
        "resident_bytes": rng.choice((0, 10**7)),
        "budget_bytes": 0,
        "max_in_flight": rng.choice((1, 2, 1000)),
        "level": -1,
        "shrink": rng.choice((0, 0, 2, 3, 8)),
    }


def decoded(desc: Desc, axis: int, extent: int) -> int:
    """Output units of a clip of `extent` latents."""
    factor: int = desc["factor"][axis]
    return (extent - 1) * factor + 1 if axis == 0 and desc["causal"] else extent * factor


def check_axis(core: Any, plan: dict[str, Any], axis: int, compare: bool) -> tuple[int, int]:
    """Coverage, weights and ranges of one axis; returns the most latents a tile decodes, and the
    output units that all tiles decode."""
    desc, count = plan["desc"], plan["count"]
    step = 1
    for n in count[axis + 1 :]:
        step *= n
    tiles = [core.schedule_tile(plan, i * step) for i in range(count[axis])]
    tail: list[float] = []
    position = largest = work = 0
    for tile in tiles:
        if compare:
            require(tile == twin.schedule_tile(plan, tiles.index(tile) * step), "tiles differ")
        first, last = tile["in_start"][axis], tile["in_stop"][axis]
        start, stop = tile["out_start"][axis], tile["out_stop"][axis]
        before, after = tile["ramp_before"][axis], tile["ramp_after"][axis]
        trim = tile["trim_start"][axis]
        require(0 <= first < last <= desc["latent"][axis], f"axis {axis}: input {first}..{last}")
        require(start == first * desc["factor"][axis] + trim and trim >= 0, f"axis {axis}: trim")
        require(trim + stop - start <= decoded(desc, axis, last - first), f"axis {axis}: kept")
        require(start == position - len(tail), f"axis {axis}: {start} does not join {position}")
        require(before == len(tail) and before + after <= stop - start, f"axis {axis}: ramps")
        window = core.schedule_window(stop - start, before, after)
        if compare:
            same = bytes(window) == bytes(twin.schedule_window(stop - start, before, after))
            require(same, "windows differ")
        weights = window.tolist()
        # Weights are multiples of 1/256: sums of Python floats are the sums in float32.
        sums = [a + b for a, b in zip(tail, weights, strict=False)]
        require(all(total == 1.0 for total in sums), f"axis {axis}: weights before {position}")
        middle = weights[before : len(weights) - after]
        require(all(weight == 1.0 for weight in middle), f"axis {axis}: weights after {position}")
        require(all(0.0 <= w <= 1.0 for w in weights), f"axis {axis}: weights beyond 0..1")
        tail, position, largest = weights[len(weights) - after :], stop, max(largest, last - first)
        work += decoded(desc, axis, last - first)
    require(position == plan["out"][axis] and not tail, f"axis {axis} ends at {position}")
    require(position == decoded(desc, axis, desc["latent"][axis]), f"axis {axis}: output length")
    return largest, work


def check_tiles(core: Any, plan: dict[str, Any], compare: bool) -> None:
    """All axes of a plan and the cost of its largest tile."""
    desc, tokens, voxels, work = plan["desc"], 1, 1, 1
    for axis in range(3):
        extent, of_axis = check_axis(core, plan, axis, compare)
        require(plan["extent"][axis] == extent, f"axis {axis}: the largest tile has {extent}")
        work *= of_axis
        tokens *= extent
        voxels *= decoded(desc, axis, extent)
    cost = desc["fixed_bytes"] + desc["bytes_per_voxel"] * voxels
    cost += desc["bytes_per_token_pair"] * tokens * tokens
    require(plan["tile_bytes"] == cost, f"tile_bytes {plan['tile_bytes']}, tiles say {cost}")
    require(plan["decoded_voxels"] == work, f"work {plan['decoded_voxels']}, tiles say {work}")
    require(plan["tiles"] == plan["count"][0] * plan["count"][1] * plan["count"][2], "tiles")


def plan_or_refusal(core: Any, desc: Desc) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = core.schedule_plan(**desc)
    except (_native.Hy3dError, Hy3dError) as error:
        require(error.name == "HY3D_ERR_BUDGET_TOO_SMALL", f"unexpected {error.name}")
        return None
    return result


def check_budgets(core: Any, desc: Desc, rng: random.Random, compare: bool) -> dict[str, Any]:
    """Peak, monotony and refusals; returns the plan of a random budget."""
    whole = core.schedule_plan(**desc)
    require(whole["level"] == 0 and whole["tiles"] == 1, "without a budget it is one tile")
    smallest = whole["smallest_budget_bytes"]
    budgets = sorted(
        {smallest, *(rng.randint(smallest, 2 * whole["peak_bytes"] + 1) for _ in "ab")}
    )
    previous = None
    chosen: dict[str, Any] = whole
    for budget in budgets:
        if budget == 0:
            continue
        plan = plan_or_refusal(core, {**desc, "budget_bytes": budget})
        if plan is None:
            raise PlanError(f"budget {budget} refused, {smallest} was named")
        require(plan["peak_bytes"] <= budget, f"peak {plan['peak_bytes']} over {budget}")
        peak = desc["resident_bytes"] + plan["in_flight"] * plan["tile_bytes"]
        require(plan["peak_bytes"] == peak and plan["in_flight"] >= 1, "peak")
        more = min(plan["tiles"], desc["max_in_flight"])
        full = plan["in_flight"] == more or peak + plan["tile_bytes"] > budget
        require(full, f"{plan['in_flight']} in flight where {more} fit")
        require(previous is None or plan["level"] <= previous, "more budget, higher level")
        if compare:
            same = plan == twin.schedule_plan(**{**desc, "budget_bytes": budget})
            require(same, "plans differ")
        previous, chosen = plan["level"], plan
    if smallest > 1:
        require(plan_or_refusal(core, {**desc, "budget_bytes": smallest - 1}) is None, "no refusal")
    return chosen


def check_desc(core: Any, desc: Desc, rng: random.Random, compare: bool) -> None:
    """One random description: budgets, one budget's tiles, and two neighbouring levels."""
    chosen = check_budgets(core, desc, rng, compare)
    level = rng.randrange(chosen["levels"])
    plan = core.schedule_plan(**{**desc, "level": level})
    check_tiles(core, plan, compare)
    if level + 1 < chosen["levels"]:
        finer = core.schedule_plan(**{**desc, "level": level + 1})
        require(finer["tile_bytes"] <= plan["tile_bytes"], "a finer level costs more")
        grew = [a <= b for a, b in zip(plan["count"], finer["count"], strict=True)]
        require(all(grew) and finer["tiles"] > plan["tiles"], "a finer level has fewer tiles")


def run(count: int, seed: int, core: Any, compare: bool, first: int = 0) -> int:
    """Number of failures among `count` plans."""
    failures = 0
    for number in range(first, first + count):
        rng = random.Random(f"{seed}/{number}")
        desc = random_desc(rng)
        try:
            check_desc(core, desc, rng, compare)
        except PlanError as error:
            failures += 1
            if failures <= 5:
                print(f"plan {number} of seed {seed}: {error}\n  {desc}", flush=True)
    return failures


def run_part(part: tuple[int, int, int, bool, bool]) -> int:
    """As run(), for a process of its own: first, count, seed, whether the twin, whether both."""
    first, count, seed, is_twin, compare = part
    return run(count, seed, twin if is_twin else _native, compare, first)


def run_parts(options: argparse.Namespace) -> int:
    """Failures of all plans, in parts of at most 1,000, so that all processes end together."""
    last = options.first + options.count
    parts = [
        (start, min(1000, last - start), options.seed, options.twin, options.compare)
        for start in range(options.first, last, 1000)
    ]
    if options.jobs == 1:
        return sum(map(run_part, parts))
    with ProcessPoolExecutor(options.jobs) as pool:
        return sum(pool.map(run_part, parts))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first plan")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twin", action="store_true", help="check the pure-Python twin")
    parser.add_argument("--compare", action="store_true", help="core and twin must agree")
    options = parser.parse_args()
    if options.compare and not _native.available:
        parser.error(f"--compare needs the compiled core: {_native.missing}")
    started = time.perf_counter()
    failures = run_parts(options)
    name = "twin" if options.twin or not _native.available else "core"
    print(
        f"{options.count} plans checked, {failures} failures "
        f"({name}, seed {options.seed}, {time.perf_counter() - started:.0f} s)"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
