"""Mutation score: small faults are put into the decision logic, and tests have to notice.

    python tests/mutation/mutation.py --jobs 16              every mutant of every group
    python tests/mutation/mutation.py --sample 50 --seed 3   a random part, with its interval
    python tests/mutation/mutation.py --group router --resume

Python needs mutmut 3.8 (and torch, pytest, hypothesis), C a compiler. Fails where a group has less
than --least percent, or where equivalent.txt claims what is not so. What survived is written to
build/mutation/GROUP.txt, by the keys that equivalent.txt takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import mutation_c
import mutation_python
from mutation_groups import BY_NAME, GROUPS, Group
from mutation_score import EQUIVALENT, Tally, read_equivalent, wrong_entries
from mutation_workplace import ROOT

_FOLDER = ROOT / "build" / "mutation"


def main() -> int:
    """Runs what was asked for; 1 where a claim does not hold."""
    options = _options()
    started = time.monotonic()
    entries = read_equivalent(EQUIVALENT.read_text())
    total, failures = Tally(), []
    for name in options.group or BY_NAME:
        tally, wrong = _run_group(BY_NAME[name], options, entries)
        print(tally.line(name), flush=True)
        failures += wrong
        if tally.percent < options.least:
            failures.append(f"{name}: {tally.percent:.1f} %, below {options.least:g} %")
        total += tally
    for failure in failures:
        print(failure)
    seconds = time.monotonic() - started
    print(
        total.line(f"mutation score, {len(options.group or GROUPS)} groups") + f", {seconds:.0f} s"
    )
    return 1 if failures else 0


def _run_group(
    group: Group, options: argparse.Namespace, entries: dict[str, str]
) -> tuple[Tally, list[str]]:
    folder = _FOLDER / group.name
    if not options.resume:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    how = {"jobs": options.jobs, "sample": options.sample, "seed": options.seed}
    how["only"] = options.only
    tally, files = Tally(), set()
    if options.side in ("both", "python"):
        tally += mutation_python.run(group, folder, **how)
        files |= set(group.python)
    if options.side in ("both", "c"):
        tally += mutation_c.run(group, **how)
        files |= set(group.c)
    wrong = wrong_entries(entries, tally.keys, tally.died, files) if not options.only else []
    tally.take_out(entries)
    _write_survivors(_FOLDER / f"{group.name}.txt", tally)
    return tally, wrong


def _write_survivors(path: Path, tally: Tally) -> None:
    path.write_text("".join(f"{key}\n" for key in sorted(tally.lived)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=list(BY_NAME), help="only this group")
    parser.add_argument("--side", choices=("both", "python", "c"), default="both")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=0, help="mutants a group (0: all)")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--only", default="", help="only keys with this text in them")
    parser.add_argument("--least", type=float, default=85.0, help="percent a group must have")
    parser.add_argument("--resume", action="store_true", help="keep what is settled")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
