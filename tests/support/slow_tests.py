"""Which tests are slow: measured, listed in tests/slow.txt, marked when they are collected.

    python tests/support/slow_tests.py [FILE ...]

runs all tests, or these files, in one process and writes their lines anew. A test function is slow
if its cases together take more than SECONDS of processor time, children's included, which depends
less on what else the machine does than time on the wall.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import warm_start
from places import TESTS

LIST = TESTS / "slow.txt"
SECONDS = 0.5


@functools.cache
def _file(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def name_of(item: Any) -> str:
    """unit/decoding/test_run.py::test_it, whatever the parameters."""
    return f"{_file(item.path)}::{item.originalname}"


def listed() -> set[str]:
    return set(LIST.read_text(encoding="utf-8").split())


def used() -> float:
    """Seconds of this process, its children and those that were forked for it."""
    return sum(os.times()[:4]) + warm_start.Server.seconds


class Measured:
    """A pytest plugin: seconds of each test function."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, object, object]:
        before = used()
        result = yield
        self.seconds[name_of(item)] += used() - before  # type: ignore[assignment]
        return result


def main() -> int:
    measured = Measured()
    code = pytest.main(["-q", "-n", "0", *sys.argv[1:]], plugins=[measured])
    files = {name.partition("::")[0] for name in measured.seconds}
    kept = {name for name in listed() if name.partition("::")[0] not in files}
    slow = {name for name, seconds in measured.seconds.items() if seconds > SECONDS}
    LIST.write_text("\n".join(sorted(kept | slow)) + "\n", encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
