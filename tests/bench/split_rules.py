"""How much is decoded twice, by the rule that picks the axis to halve (csrc/schedule/tiles.c).

    python tests/bench/split_rules.py [--count 400] [--seed 1]

Random decodes of usual sizes under a quarter, a tenth and a twenty-fifth of the whole decode's
cost; for each the coarsest level that fits, and its work: voxels decoded in all grains together.
The geometric mean of the work is given relative to the rule in use.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm._fallback import schedule as twin  # noqa: E402

Axis = twin._Axis
Rule = Callable[[Axis, int], Any]

RULES: dict[str, Rule] = {
    "longest in its boundaries (in use)": Axis.worth,
    "longest in output units": lambda axis, n: axis.decoded(axis.max_extent(n)),
    "longest in latents": lambda axis, n: axis.max_extent(n),
    "halving shrinks it most": lambda axis, n: (
        -Fraction(axis.max_extent(axis.next_count(n)), axis.max_extent(n))
    ),
}
SHARES = (0.25, 0.1, 0.04)


def random_desc(rng: random.Random) -> dict[str, Any]:
    space = rng.choice((2, 4, 8))
    halo = rng.choice((0, 1, 2, 4, 8))
    return {
        "latent": (
            rng.choice((5, 9, 13, 17, 21, 33, 37, 65, 145)),
            rng.randint(16, 160),
            rng.randint(16, 160),
        ),
        "factor": (4, 8, 8),
        "causal": 1,
        "overlap": (rng.randint(0, 2), space, space),
        "halo": (rng.randint(0, 6), halo, halo),
        "min_tile": (2, 8, 8),
    }


def levels(desc: dict[str, Any], rule: Rule) -> Iterator[tuple[int, int]]:
    """(voxels of the largest grain, voxels of all grains) of every level."""
    axes = [Axis.of(desc, i) for i in range(3)]
    count = [1, 1, 1]
    while True:
        largest = work = 1
        for axis, n in zip(axes, count, strict=True):
            inputs = (axis.input(n, tile) for tile in range(n))
            largest *= axis.decoded(axis.max_extent(n))
            work *= sum(axis.decoded(stop - start) for start, stop in inputs)
        yield largest, work
        splittable = [i for i in (1, 2, 0) if axes[i].next_count(count[i]) > count[i]]
        if not splittable:
            return
        chosen = max(splittable, key=lambda i: rule(axes[i], count[i]))
        count[chosen] = axes[chosen].next_count(count[chosen])


def work_under(desc: dict[str, Any], rule: Rule) -> list[int | None]:
    """Work of the coarsest level that fits each share of the whole; None where none does."""
    made = list(levels(desc, rule))
    whole = made[0][0]
    return [next((w for v, w in made if v <= whole * share), None) for share in SHARES]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    work: dict[str, list[int]] = {name: [] for name in RULES}
    for _ in range(options.count):
        desc = random_desc(rng)
        columns = zip(*(work_under(desc, rule) for rule in RULES.values()), strict=True)
        for column in columns:
            if None not in column:
                for name, value in zip(RULES, column, strict=True):
                    work[name].append(value or 0)
    base, *_ = work.values()
    for name, values in work.items():
        ratios = [value / best for value, best in zip(values, base, strict=True)]
        mean = statistics.geometric_mean(ratios)
        print(f"{name:36} {mean:6.3f}  (from {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"{len(base)} decodes, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
