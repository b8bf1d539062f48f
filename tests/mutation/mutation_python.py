"""The Python half: mutmut makes and runs the mutants, this reads its record.

mutmut 3 imports the tests and torch once and forks for each mutant, which runs only the tests that
enter the mutated function. Its record is kept in the group's folder: a run can go on.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import mutation_workplace
from mutation_groups import Group
from mutation_kinds import COUNTED, SAME_CODE, WORDS, Mutant, mutants_of
from mutation_score import Tally

# Generates without running, so that the mutants which do not count can be marked first.
_GENERATE = """
import sys
from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
copy_src_dir()
copy_also_copy_files()
create_mutants(int(sys.argv[1]))
"""
_LEFT_OUT = 34  # mutmut's word for a mutant that is skipped
# 2: the mutant broke the collection of tests. Negative: it died of a signal.
_KILLED = {1, 2, 3, -9, -11, -6, -4, -8, -7}
_TIMED_OUT = {36, 24, -24, 152}
# mutmut's runner raised, as it does for a test that pytest does not know: nothing was judged.
_NOT_RUN = 255


def run(group: Group, folder: Path, *, jobs: int, sample: int, seed: int, only: str = "") -> Tally:
    """Runs a group's mutants, or a sample of them. Raises SystemExit where mutmut can't."""
    mutation_workplace.make(group, folder)
    _call(folder, ["-c", _GENERATE, str(jobs)], "generate.log")
    found = {path: _mutants(folder, path) for path in group.python}
    chosen = _choose([m for mutants in found.values() for m in mutants], sample, seed, only)
    for path, mutants in found.items():
        _mark(folder, path, mutants, chosen)
    if chosen:
        _call(folder, ["-m", "mutmut", "run", "--max-children", str(jobs)], "run.log")
    return _read(folder, found, chosen)


def _call(folder: Path, arguments: list[str], log: str) -> None:
    with (folder / log).open("w") as out:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=mutation_workplace.environment(folder),
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = (folder / log).read_text(errors="replace")[-3000:]
        raise SystemExit(f"mutmut ended with {done.returncode} ({folder / log}):\n{tail}")


def _mutants(folder: Path, path: str) -> list[Mutant]:
    return mutants_of(path, (folder / "mutants" / path).read_text())


def _choose(mutants: list[Mutant], sample: int, seed: int, only: str) -> set[Mutant]:
    counted = [m for m in mutants if m.kind == COUNTED and only in m.key]
    if sample and sample < len(counted):
        counted = random.Random(seed).sample(sorted(counted, key=lambda m: (m.key, m.name)), sample)
    return set(counted)


def _record(folder: Path, path: str) -> Path:
    return folder / "mutants" / f"{path}.meta"


def _mark(folder: Path, path: str, mutants: list[Mutant], chosen: set[Mutant]) -> None:
    """What is to be tried has no verdict: mutmut leaves the others alone. Survivors are tried
    again, since tests may have been written for them."""
    record = json.loads(_record(folder, path).read_text())
    verdicts = record["exit_code_by_key"]
    by_name = {mutant.name: mutant for mutant in mutants}
    for name, verdict in verdicts.items():
        mutant = by_name[name.rpartition(".")[2]]
        is_settled = verdict in _KILLED | _TIMED_OUT
        verdicts[name] = (verdict if is_settled else None) if mutant in chosen else _LEFT_OUT
    _record(folder, path).write_text(json.dumps(record, indent=1))


def _read(folder: Path, found: dict[str, list[Mutant]], chosen: set[Mutant]) -> Tally:
    tally, not_run = Tally(), []
    for path, mutants in found.items():
        verdicts = json.loads(_record(folder, path).read_text())["exit_code_by_key"]
        by_name = {name.rpartition(".")[2]: verdict for name, verdict in verdicts.items()}
        for mutant in mutants:
            tally.same_code += mutant.kind == SAME_CODE
            tally.words += mutant.kind == WORDS
            tally.possible += mutant.kind == COUNTED
            if mutant.kind == COUNTED:
                tally.keys.add(mutant.key)
            verdict = by_name[mutant.name]
            if mutant not in chosen or verdict == _LEFT_OUT:
                continue
            if verdict == _NOT_RUN:
                not_run.append(mutant.key)
                continue
            tally.add(mutant.key, killed=verdict in _KILLED, timed_out=verdict in _TIMED_OUT)
    if not_run:
        keys = "\n".join(not_run)
        raise SystemExit(f"nothing was run for these (do names of tests change?):\n{keys}")
    return tally
