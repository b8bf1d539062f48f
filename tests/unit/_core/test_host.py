"""Life in a host process, a few cases of each part of tests/long/check_host.py; seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import check_seeds
import pytest
import torch
from places import LONG

CHECKS = LONG


def run(script: str, *arguments: str) -> str:
    made = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(CHECKS / script), *arguments],
        capture_output=True, text=True, check=False, timeout=100,
        # Not under coverage: its tracer cannot be in a second interpreter, and it grows.
        env={**{k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")},
             "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    return made.stdout


# Part, cases, calls (for the parts that count them too), and what its figures must hold.
QUICK = {
    "cancel": (1, 0, {"calls": 10}),
    "forks": (4, 0, {"forks": 4}),
    "threads": (2, 20, {"calls": 320}),
    "interpreters": (4, 0, {"interpreters": 4}),
    "reload": (3, 0, {"copies": 3}),
    "growth": (3, 2500, {"functions": 3, "calls": 7500}),
}


# What forks, is sent a signal, or counts its pages by /proc.
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="not on Windows")
POSIX = ("forks", "growth", "signals")


@pytest.mark.parametrize("part", [pytest.param(p, marks=needs_posix) if p in POSIX else p
                                  for p in QUICK])  # fmt: skip
def test_the_core_lives_in_a_host(part: str) -> None:
    count, calls, wanted = QUICK[part]
    said = run("check_host.py", "--child", "--only", part, "--count", str(count), "--calls",
               str(calls))  # fmt: skip
    figures = json.loads(said.splitlines()[-1])
    assert wanted.items() <= figures.items(), figures


@pytest.mark.parametrize("part", ["ends", pytest.param("signals", marks=needs_posix)])
def test_processes_end_as_they_should_whatever_stands_at_the_end(part: str) -> None:
    count = {"ends": 10, "signals": 2}[part]
    said = run("check_host.py", "--only", part, "--count", str(count), "--jobs", "2")
    assert f"ok     {part}: processes {count}" in said
    assert "host: 1 parts, 0 failed" in said


def test_a_part_that_fails_is_told_with_its_reason() -> None:
    """In a child that cannot start its work: an index that there is no function for."""
    made = subprocess.run(
        [sys.executable, str(CHECKS / "check_host.py"), "--only", "growth", "--first", "10000",
         "--count", "1", "--jobs", "1"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert made.returncode == 1
    assert "FAILED growth" in made.stdout
    assert "IndexError" in made.stdout
    assert "host: 1 parts, 1 failed" in made.stdout


def test_seeds_equal_their_definition_and_touch_no_global_state() -> None:
    threads = torch.get_num_threads()
    try:
        failed = check_seeds.tally(range(14))  # the edges, and two others
    finally:
        torch.set_num_threads(threads)
    assert failed == {claim: [] for claim in check_seeds.CLAIMS}
