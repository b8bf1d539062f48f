"""The library of what tests in Python have of the C tests (tests/c): build/c/libhy3d_tests.so."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "build/c/libhy3d_tests.so"
NAMED = "HY3D_TESTS_LIBRARY"  # for children, and copies of the tree that cannot build it


@functools.cache
def library() -> ctypes.CDLL:
    """The one that is named, else one that is built now."""
    if not os.environ.get(NAMED):
        os.environ[NAMED] = str(build())
    return ctypes.CDLL(os.environ[NAMED])


def build() -> Path:
    """Where it is, made anew if it is older than its sources; RuntimeError where that fails."""
    import fcntl  # Windows has none: there the library has to be named

    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "c_tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in many processes
        made = subprocess.run(["make", "-s", TARGET], cwd=ROOT, env=own, check=False,
                              capture_output=True, text=True)  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"make {TARGET} failed:\n{made.stderr[-2000:]}")
    return ROOT / TARGET
