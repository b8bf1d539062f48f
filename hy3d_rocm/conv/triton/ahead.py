"""Which kernels were compiled before, and kernels compiled before they are wanted, by several
processes at once.

Triton compiles one kernel at a time in a process (its compiler holds the interpreter's lock), a
second or so each, and a first decode wants some thirty. Child processes (ahead_child.py) compile
them into Triton's cache, in the order in which they are wanted, while this process goes on. Where
this one comes to a kernel that no child has begun, it compiles that itself; where a child is at it,
it waits.

A child that ends, hangs or can't be started costs time and nothing else.
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
from typing import Any, NamedTuple, TypeAlias

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv.probe import process
from hy3d_rocm.conv.triton.plan import Launch
from hy3d_rocm.conv.verdict_store.records import started_architecture, triton_versions

logger = logging.getLogger("hy3d_rocm")

SERVE = "hy3d_rocm.conv.triton.ahead_child:serve"
#: processes beside this one; 0: none are ever started
most_processes = 15
# What a child takes of host memory (190 MB measured, half of it code that is shared); all together
# take a tenth of what is free, since a decode's budget was planned without them.
_CHILD_BYTES = 200 << 20
_SHARE = 10
# Of a kernel, which takes some seconds on a slow machine; then the child is ended.
_LONGEST_S = 120.0
_LOOK_S = 0.2


Target: TypeAlias = tuple[str, Any, int]  # of a GPU, as Triton's GPUTarget takes it


class Facts(NamedTuple):
    """What a compiled kernel may rely on of an operand. small: 32-bit offsets reach all of it.
    aligned: it starts at a multiple of 16 bytes."""

    dtype: torch.dtype
    small: bool
    aligned: bool


class Wanted(NamedTuple):
    """A kernel: `item` and what is known of its operands, in order."""

    item: Launch
    facts: tuple[Facts, ...]


_guard = threading.Lock()
# By name, in the order in which they are wanted: for which GPU, and what a child is told of it.
_queued: dict[str, tuple[Target, dict[str, Any]]] = {}
_running: dict[str, threading.Event] = {}
_unstartable: set[Target] = set()  # for which no child could be started
_children = 0


def want(wanted: Wanted, index: int) -> str:
    """Has a kernel for GPU `index` compiled; its name if it was not compiled before, else ""."""
    name = name_of(wanted.item, wanted.facts, index)
    if not is_new(name):
        return ""
    target = _target(index)
    with _guard:
        if name not in _running:
            _queued[name] = target, _job(wanted)
    _start_one(target, 1)  # the first is left to this process, which will want it at once
    return name


def wait_for(name: str, look: Callable[[], object]) -> None:
    """Leaves the kernel to the caller, once no child is at it. look: called all along; may raise,
    after a cancel."""
    with _guard:
        _queued.pop(name, None)
        done = _running.get(name)
    until = time.monotonic() + _LONGEST_S
    while done is not None and not done.wait(_LOOK_S) and time.monotonic() < until:
        look()


def finish(look: Callable[[], object]) -> None:
    """Waits until children have compiled all that is wanted, if there are any. look: as of
    wait_for()."""
    while True:
        with _guard:
            targets = {target for target, _ in _queued.values()}
        for target in targets:
            _start_one(target, 0)
        if not _children:
            return
        time.sleep(_LOOK_S)
        look()


def _start_one(target: Target, left: int) -> None:
    """Starts a child where one more is worth it. left: kernels of the queue that need none."""
    global _children
    most = _most()
    with _guard:
        waiting = sum(target == its for its, _ in _queued.values()) - left
        if target in _unstartable or _children >= min(waiting, most):
            return
        _children += 1
    try:
        threading.Thread(target=_serve, args=(target,), daemon=True).start()
    except RuntimeError:  # no more threads
        with _guard:
            _children -= 1


def _most() -> int:
    """Children: no more than there are other cores, and memory for."""
    if os.environ.get(process.INSIDE):
        return 0
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = memory.host_free_bytes()
    if free is None:
        return min(own - 1, most_processes)
    room = (free + _children * _CHILD_BYTES) // _SHARE // _CHILD_BYTES
    return min(own - 1, room, most_processes)


def _job(wanted: Wanted) -> dict[str, Any]:
    item = wanted.item
    return {
        "module": item.module, "kernel": item.kernel, "numbers": item.numbers,
        "operands": [(str(f.dtype), f.small, f.aligned) for f in wanted.facts],
        "constants": item.constants, "num_warps": item.num_warps, "num_stages": item.num_stages,
    }  # fmt: skip


def _target(index: int) -> Target:
    """This thread's current GPU may be another."""
    from triton.runtime.driver import driver

    with torch.cuda.device(index):
        found = driver.active.get_current_target()
    return found.backend, found.arch, found.warp_size


def _next(target: Target) -> tuple[str, dict[str, Any], threading.Event] | None:
    """The first that a child for this target can compile."""
    with _guard:
        name = next((name for name, (its, _) in _queued.items() if its == target), None)
        if name is None:
            return None
        done = _running[name] = threading.Event()
        return name, _queued.pop(name)[1], done


def _serve(target: Target) -> None:
    """A child's life."""
    global _children
    child = None
    try:
        python, reason = process.interpreter()
        if python is None:
            raise OSError(reason)
        child = process.Child(python, {"target": target}, SERVE)
        if _answer(child) != "ready":
            raise OSError("a child did not start as it should")
        answer = "ready"
        while answer and (job := _next(target)) is not None:
            name, told, done = job
            try:
                child.send(told)
                answer = _answer(child)
                if answer == "done":
                    note(name, on_disk=True)
            finally:
                with _guard:
                    del _running[name]
                done.set()
    except OSError as error:
        logger.debug("kernels are compiled one after the other: %s", error)
        with _guard:
            _unstartable.add(target)
    finally:
        with _guard:
            _children -= 1
        if child is not None:
            child.end()


def _answer(child: process.Child) -> str:
    """Its next one; nothing when there will be none, or not in time."""
    try:
        return str(child.next_message(time.monotonic() + _LONGEST_S)["event"])
    except (process.EndedError, process.LateError):
        return ""


def _forget() -> None:
    """In a forked process: its parent has the children."""
    global _guard, _children
    _guard, _children = threading.Lock(), 0
    _queued.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# What was compiled before. Triton tells nobody whether a kernel lies in its cache, and how it names
# one differs by version. So an empty file in a folder of ours within the cache's folder is the note
# that a kernel was compiled; who deletes the cache deletes the notes. Its name holds all that is
# known to matter: the kernel's source and constants, types, what is known of addresses,
# architecture, Triton's version.

_SOURCES = (".py", ".toml")
_here: set[str] = set()
_locks: dict[str, threading.Lock] = {}


def architecture(index: int | None) -> str:
    """Of a GPU; "cpu" without one, for the interpreter."""
    return "cpu" if index is None else started_architecture(index)


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


def name_of(item: Launch, facts: Sequence[Facts], index: int | None) -> str:
    """A kernel's name: equal for launches that share a compiled kernel. facts: of the operands, in
    order; index: of the GPU."""
    known = [(str(each.dtype), each.small, each.aligned) for each in facts]
    return name_of_all(item.module, index, *item.compiled_for, known)


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
