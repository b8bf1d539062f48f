"""Which lines and branches of csrc the tests reach, and which lines nothing can.

    make ccov                                  builds, runs and calls this
    python tests/long/check_c_coverage.py [--build build/c-cov] [--branches 95] [--show]

Reads what gcov has counted below --build, prints lines and branches of each file and fails when a
line is neither run nor listed in tests/c/unreachable.txt, when a listed line is run or no longer
there, and when fewer branches than --branches per cent are taken. --show prints every line that
was not run and every branch that was not taken.

The list is of blocks: `FILE FUNCTION: reason`, then the lines' own text, indented. Text in place of
numbers, so that the list stays true when lines move.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "c" / "unreachable.txt"
# A place: file, function, text of the line.
Place = tuple[str, str, str]


@dataclass
class Line:
    """What all objects together say of one line: kernels' headers are compiled more than once."""

    function: str = ""
    runs: int = 0
    branches: Counter[int] = field(default_factory=Counter)


Files = dict[str, dict[int, Line]]


def gcov(data: Path) -> list[dict]:
    """The files that one object was made of."""
    command = ["gcov", "--json-format", "--branch-probabilities", "--stdout", str(data)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [file for text in run.stdout.splitlines() for file in json.loads(text)["files"]]


def add(files: Files, file: dict) -> None:
    path = os.path.relpath(ROOT / file["file"], ROOT)
    if not path.startswith("csrc" + os.sep):
        return
    # One line may stand in several functions of an object: their branches follow each other.
    branches: dict[int, list[int]] = defaultdict(list)
    for entry in file["lines"]:
        line = files[path][entry["line_number"]]
        line.function = entry.get("function_name", line.function)
        line.runs += entry["count"]
        branches[entry["line_number"]] += [branch["count"] for branch in entry["branches"]]
    for number, counts in branches.items():
        total = files[path][number].branches
        # The build of the sites has calls of the system as macros with branches of their own.
        if not total or len(total) == len(counts):
            total.update(dict(enumerate(counts)))


def read_counts(build: Path, jobs: int) -> Files:
    files: Files = defaultdict(lambda: defaultdict(Line))
    notes = sorted(n for n in build.rglob("*.gcno") if "csrc" in n.parts)
    data = [n.with_suffix(".gcda") for n in notes]
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(gcov, [d if d.exists() else d.with_suffix(".gcno") for d in data]):
            for file in part:
                add(files, file)
    return files


def read_list(path: Path) -> dict[Place, str]:
    """The reasons of the listed places."""
    listed: dict[Place, str] = {}
    file = function = reason = ""
    for text in path.read_text().splitlines():
        if not text.strip() or text.startswith("#"):
            continue
        if text[0] != " ":
            head, _, reason = text.partition(": ")
            file, function = head.split()
            if not reason.strip():
                raise SystemExit(f"{path.name}: {head}: no reason given")
        else:
            listed[file, function, text.strip()] = reason
    return listed


def places(files: Files) -> tuple[set[Place], set[Place]]:
    """The places that were run and those that were not."""
    run: set[Place] = set()
    missed: set[Place] = set()
    for path, lines in files.items():
        text = (ROOT / path).read_text().splitlines()
        for number, line in lines.items():
            (run if line.runs else missed).add((path, line.function, text[number - 1].strip()))
    return run, missed


def table(files: Files, listed: dict[Place, str]) -> tuple[int, int, int, int]:
    """Prints a row a file; the sums of lines, lines run, branches and branches taken."""
    sums = [0, 0, 0, 0]
    for path in sorted(files):
        text = (ROOT / path).read_text().splitlines()
        reachable = [
            line
            for number, line in files[path].items()
            if line.runs or (path, line.function, text[number - 1].strip()) not in listed
        ]
        branches = [count for line in reachable for count in line.branches.values()]
        row = [len(reachable), sum(line.runs > 0 for line in reachable)]
        row += [len(branches), sum(count > 0 for count in branches)]
        sums = [a + b for a, b in zip(sums, row, strict=True)]
        print(f"{path:34} lines {row[1]:5}/{row[0]:5}  branches {row[3]:5}/{row[2]:5}")
    return sums[0], sums[1], sums[2], sums[3]


def show(files: Files) -> None:
    for path in sorted(files):
        text = (ROOT / path).read_text().splitlines()
        for number, line in sorted(files[path].items()):
            never = sum(count == 0 for count in line.branches.values())
            if not line.runs:
                print(f"{path}:{number}: {line.function}: not run: {text[number - 1].strip()}")
            elif never:
                print(
                    f"{path}:{number}: {never} of {len(line.branches)}: {text[number - 1].strip()}"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "c-cov")
    parser.add_argument("--branches", type=float, default=95.0, help="per cent that must be taken")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="print what was not reached")
    options = parser.parse_args()
    files = read_counts(options.build.resolve(), options.jobs)
    if not files:
        raise SystemExit(f"{options.build}: nothing was counted there; make ccov does it")
    listed = read_list(LIST)
    if options.show:
        show(files)
    run, missed = places(files)
    wrong = [f"not run and not listed: {' '.join(p)}" for p in sorted(missed - set(listed))]
    wrong += [f"listed, but run: {' '.join(p)}" for p in sorted((run - missed) & set(listed))]
    wrong += [f"listed, but not there: {' '.join(p)}" for p in sorted(set(listed) - run - missed)]
    lines, lines_run, branches, taken = table(files, listed)
    share = 100 * taken / max(branches, 1)
    if share < options.branches:
        wrong.append(f"{share:.2f} % of the branches are taken, wanted {options.branches:g} %")
    print("\n".join(wrong), end="\n" if wrong else "")
    print(
        f"{lines_run} of {lines} lines that can be reached ({len(listed)} listed as unreachable), "
        f"{taken} of {branches} branches ({share:.2f} %), {len(wrong)} faults"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
