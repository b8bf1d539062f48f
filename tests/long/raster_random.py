"""The rasteriser against brute force in float64 and, at ties, in whole numbers.

    python tests/long/raster_random.py [--count 10000] [--rules compat topleft] [--seed 1]
        [--first 0] [--kind NAME] [--level ref] [--threads 1]

`count` random scenes a rule (tests/support/raster_scenes.py), every pixel compared. What may differ
and by how much is said in tests/support/raster_judge.py. A failure prints the scene's index:
--seed, --first INDEX and --count 1 (and --kind, where it was given) replay it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def report(rule: str, level: str, seconds: float, verdict: object) -> None:
    from raster_judge import BARYCENTRIC, Verdict

    assert isinstance(verdict, Verdict)
    c = verdict.counts
    print(f"{rule} at {level}: {c['pictures']} scenes, {c['pixels']} pixels of which "
          f"{c['covered']} covered, {seconds:.0f} s")  # fmt: skip
    print(
        f"  face index: {c['pixels'] - c['unsure']} decided by float64, {c['unsure']} ties judged "
        f"in whole numbers: {c['exact']} equal, {c['within epsilon']} a depth within its epsilon"
    )
    print(f"  barycentrics: largest error {verdict.worst_barycentric:.2g} of {BARYCENTRIC:g}")
    print(f"  depth: {verdict.worst_depth:.2f} of its room; {c['values judged exactly']} pixels' "
          f"values judged in whole numbers")  # fmt: skip
    print(f"  wrong: {c['wrong']}")


def digest(rules: list[str], seed: int, indices: range, threads: int) -> str:
    """Of every bit of the pictures."""
    from raster_judge import draw
    from raster_scenes import scene_of

    found = hashlib.sha256()
    for index in indices:
        scene = scene_of(seed, index)
        for rule in rules:
            for array in draw(rule, scene, threads):
                found.update(array.tobytes())
    return found.hexdigest()


def main() -> int:
    from raster_scenes import KINDS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="scenes a rule")
    parser.add_argument("--rules", nargs="+", default=["compat", "topleft"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first scene")
    parser.add_argument("--kind", choices=list(KINDS), help="only scenes of that kind")
    parser.add_argument("--level", choices=["ref", "avx2", "avx512"], help="of the CPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--digest", action="store_true", help="print a digest of all bits instead")
    options = parser.parse_args()
    if options.level:
        os.environ["HY3D_CPU"] = options.level  # read when _core is first imported
    from raster_judge import Judge, Verdict, draw
    from raster_scenes import scene_of

    from hy3d_rocm import _core

    indices = range(options.first, options.first + options.count)
    if options.digest:
        level = _core.cpu_info()["level"]
        print(level, digest(options.rules, options.seed, indices, options.threads))
        return 0
    wrong = 0
    for rule in options.rules:
        start, total = time.monotonic(), Verdict()
        for index in indices:
            scene = scene_of(options.seed, index, options.kind)
            verdict = Judge(rule, scene).verdict(draw(rule, scene, options.threads))
            for line in verdict.wrong[:3]:
                print(f"  WRONG (--seed {options.seed} --first {index}): {line}", flush=True)
            total.add(verdict)
        report(rule, _core.cpu_info()["level"], time.monotonic() - start, total)
        wrong += total.counts["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
