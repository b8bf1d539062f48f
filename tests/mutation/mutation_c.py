"""The C half: each mutant is one object, linked into a program of the group's suites alone.

A mutant whose object equals the original's, byte for byte at -O2, is equivalent by code. One that
does not compile is none.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutation_groups import Group
from mutation_score import Tally
from mutation_tokens import CMutant, mutants_of
from mutation_workplace import ROOT

_FLAGS = "-std=c11 -O2 -w -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Icsrc"
# Cases that take milliseconds and notice the most, asked before the whole suite is.
_FIRST = {"tiles": ("schedule bounds", "schedule refusals", "blend")}
_SUPPORT = ("counting.c", "support.c", "main.c")
_PARTS = {"tiles": ("tiles_blend.c", "tiles_bounds.c", "tiles_refusals.c")}


@dataclass(frozen=True)
class Bench:
    """What each mutant is built and run with."""

    suites: tuple[str, ...]
    objects: tuple[str, ...]  # of the tests
    archive: str  # the core
    libraries: tuple[str, ...]
    timeout: float

    def run(self, mutated: Path, folder: Path) -> str:
        """ "killed", "timeout", "survived", for the object of a mutated file."""
        program = folder / "check"
        linked = _call(
            "-Wl,--wrap=pthread_create", "-o", program, *self.objects, mutated, self.archive,
            *self.libraries,
        )  # fmt: skip
        if linked.returncode != 0:
            return "killed"  # a symbol that others need is gone
        for suite in self.suites:
            for case in (*_FIRST.get(suite, ()), None):
                verdict = self._verdict(program, suite, case)
                if verdict != "survived":
                    return verdict
        return "survived"

    def _verdict(self, program: Path, suite: str, case: str | None) -> str:
        only = {} if case is None else {"CK_RUN_CASE": case}
        try:
            done = subprocess.run(
                [program, suite],
                cwd=ROOT,
                env={**os.environ, "CK_FORK": "no", **only},
                capture_output=True,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        return "survived" if done.returncode == 0 else "killed"


def run(group: Group, *, jobs: int, sample: int, seed: int, only: str = "") -> Tally:
    """Runs the mutants of a group's C files, or a sample of them."""
    tally = Tally()
    if not group.c:
        return tally
    subprocess.run(["make", "-s", f"-j{jobs}", "build/c/libhy3d_core.a"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, suites in group.c.items():
            share = -(-sample // len(group.c))
            _run_file(path, _bench(folder, suites), folder, tally, (jobs, share, seed, only))
    return tally


def _run_file(
    path: str, bench: Bench, folder: Path, tally: Tally, how: tuple[int, int, int, str]
) -> None:
    jobs, sample, seed, only = how
    source = (ROOT / path).read_text()
    original = _object(path, source, folder / "original")
    if original is None or bench.run(original, folder / "original") != "survived":
        raise SystemExit(f"{path}: the suites fail without a mutant")
    mutants = [mutant for mutant in mutants_of(path, source) if only in mutant.key]
    tally.keys |= {mutant.key for mutant in mutants}
    tally.possible += len(mutants)
    if sample and sample < len(mutants):
        mutants = random.Random(seed).sample(mutants, sample)

    def judge(numbered: tuple[int, CMutant]) -> tuple[str, str]:
        place = folder / f"{Path(path).stem}{numbered[0]}"
        mutated = _object(path, numbered[1].applied(source), place)
        if mutated is None:
            return numbered[1].key, "invalid"
        if mutated.read_bytes() == original.read_bytes():
            return numbered[1].key, "same code"
        verdict = bench.run(mutated, place)
        (place / "check").unlink(missing_ok=True)
        return numbered[1].key, verdict

    with ThreadPoolExecutor(jobs) as pool:
        for key, verdict in pool.map(judge, enumerate(mutants)):
            _count(tally, key, verdict)


def _count(tally: Tally, key: str, verdict: str) -> None:
    if verdict == "same code":
        tally.same_code += 1
        tally.possible -= 1
    elif verdict == "invalid":
        tally.invalid += 1
        tally.possible -= 1
    else:
        tally.add(key, killed=verdict == "killed", timed_out=verdict == "timeout")


def _call(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False)


def _object(path: str, source: str, folder: Path) -> Path | None:
    """The object of a source text; named as the file, so that equal code is an equal object."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / Path(path).name
    text.write_text(source)
    out = text.with_suffix(".o")
    flags = [*_FLAGS.split(), f"-I{Path(path).parent}", "-c", "-o", out, text]
    return out if _call(*flags).returncode == 0 else None


def _check_library() -> tuple[list[str], list[str]]:
    """Flags and libraries of Check, or those of its stand-in."""
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "check"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        return ["-DHY3D_CHECK_COMPAT=1"], []
    words = found.stdout.split()
    return ["-DHY3D_CHECK_COMPAT=0", *(w for w in words if not w.startswith("-l"))], [
        word for word in words if word.startswith(("-l", "-L"))
    ]


def _bench(folder: Path, suites: tuple[str, ...]) -> Bench:
    flags, libraries = _check_library()
    sources = [*_SUPPORT, *(f"test_{suite}.c" for suite in suites)]
    sources += [part for suite in suites for part in _PARTS.get(suite, ())]
    if "-DHY3D_CHECK_COMPAT=1" in flags:
        sources.append("check_compat.c")
    have = [f"-DHAVE_TEST_{suite.upper()}=1" for suite in suites]
    objects = []
    for name in sources:
        out = folder / "-".join(suites) / f"{name}.o"
        out.parent.mkdir(exist_ok=True)
        source = ROOT / "tests" / "c" / name
        done = _call(*_FLAGS.split(), *flags, *have, "-Itests/c", "-c", "-o", out, source)
        if done.returncode != 0:
            raise SystemExit(f"{source} does not compile:\n{done.stderr.decode()}")
        objects.append(str(out))
    libraries = [*libraries, "-pthread", "-ldl", "-lm"]
    bench = Bench(suites, tuple(objects), "build/c/libhy3d_core.a", tuple(libraries), 600.0)
    started = time.monotonic()
    empty = _object("csrc/empty.c", "typedef int unit;\n", folder / "empty")
    assert empty is not None
    if bench.run(empty, folder / "empty") != "survived":
        raise SystemExit(f"the suites {', '.join(suites)} fail without a mutant")
    timeout = 5.0 + 10.0 * (time.monotonic() - started)
    return Bench(suites, bench.objects, bench.archive, bench.libraries, timeout)
