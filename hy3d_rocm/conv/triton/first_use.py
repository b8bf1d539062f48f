"""First use of a kernel: whether it was compiled before, and how compiling is shown.

Triton tells nobody whether a kernel lies in its cache, and how it names one differs by version. So
an empty file in a folder of ours within the cache's folder is the note that a kernel was compiled;
who deletes the cache deletes the notes. Its name holds all that we know to matter: the kernel's
source and constants, types, what is known of addresses, architecture, Triton's version.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from hy3d_rocm.conv.verdict_store.machine import started_architecture, triton_versions

if TYPE_CHECKING:
    from hy3d_rocm.conv.triton.plan import Launch

logger = logging.getLogger("hy3d_rocm")

_SOURCES = (".py", ".toml")
_here: set[str] = set()
_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


def architecture(index: int | None) -> str:
    """Of a GPU; "cpu" without one, for the interpreter."""
    return "cpu" if index is None else started_architecture(index)


class Facts(NamedTuple):
    """What a compiled kernel may rely on of an operand. small: 32-bit offsets reach all of it.
    aligned: it starts at a multiple of 16 bytes."""

    dtype: torch.dtype
    small: bool
    aligned: bool


@functools.cache
def _source(kernels: str) -> str:
    """What a change of the module's source changes, or of what is beside it and here: kernels call
    each other, and what is launched is planned there. Triton is not imported."""
    found = importlib.util.find_spec(kernels)
    assert found is not None, kernels
    assert found.origin is not None, kernels
    folders = {Path(found.origin).parent, Path(__file__).parent}
    files = sorted(
        path for folder in folders for path in folder.iterdir() if path.suffix in _SOURCES
    )
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def name_of(kernels: str, item: Launch, facts: Sequence[Facts], index: int | None) -> str:
    """A kernel's name: equal for launches that share a compiled kernel.

    kernels: the module that it is in. facts: of the operands, in order; index: of the GPU.
    """
    known = [(str(each.dtype), each.small, each.aligned) for each in facts]
    return name_of_all(kernels, index, *item.compiled_for, known)


def name_of_all(kernels: str, index: int | None, *parts: object) -> str:
    """A name for kernels of a module: of all that a program launches, as `parts` say it."""
    every = (*parts, architecture(index), triton_versions(), _source(kernels))
    return hashlib.sha256(repr(every).encode()).hexdigest()[:32]


def is_new(name: str) -> bool:
    """Whether the kernel would be compiled now, as far as the notes tell."""
    return name not in _here and not (_folder() / name).exists()


def note(name: str, *, on_disk: bool) -> None:
    """The kernel was compiled. A note that can't be written isn't: it only foretells."""
    _here.add(name)
    if not on_disk:
        return
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        (_folder() / name).touch()
    except OSError:
        pass


def lock_of(name: str) -> threading.Lock:
    """The lock under which this kernel, and no other, is compiled."""
    with _guard:
        return _locks.setdefault(name, threading.Lock())


def _folder() -> Path:
    """Within Triton's cache, where Triton 3.3 to 3.6 look for it."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    if not cache:
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        cache = os.path.join(home, ".triton", "cache")
    return Path(cache) / "hy3d_rocm"


# Kernels come as a decode reaches its layers: a longer pause ends a series.
_PAUSE_SECONDS = 60.0
_LINE_SECONDS = 5.0


class Progress:
    """Counts what is compiled. Any thread; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._done = 0
        self._spent = 0.0
        self._last = self._told = float("-inf")

    def before(self) -> int:
        """A kernel is about to be compiled; its number in the series, from 1."""
        with self._lock:
            now = self._clock()
            idle = self._begun == self._done
            if idle and now - self._last > _PAUSE_SECONDS:
                self._begun = self._done = 0
                self._spent, self._told = 0.0, now
            self._begun += 1
            number = self._begun
        if number == 1:
            logger.info(
                "compiling GPU kernels for their first use: some seconds each, kept on disk for the"
                " next time"
            )
        return number

    def after(self, seconds: float) -> None:
        """It is done, in `seconds`, or has failed. A line every 5 seconds at most."""
        with self._lock:
            self._done += 1
            self._spent += seconds
            self._last = self._clock()
            tell = self._last - self._told >= _LINE_SECONDS
            if tell:
                self._told = self._last
            done, spent = self._done, self._spent
        if tell:
            logger.info("waited for %d GPU kernels so far, %.0f s", done, spent)
