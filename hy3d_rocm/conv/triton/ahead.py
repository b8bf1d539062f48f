"""Kernels compiled before they are wanted, by several processes at once.

Triton compiles one kernel at a time in a process (its compiler holds the interpreter's lock), a
second or so each, and a first decode wants some thirty. Child processes (ahead_child.py) compile
them into Triton's cache, in the order in which they are wanted, while this process goes on. Where
this one comes to a kernel that no child has begun, it compiles that itself; where a child is at it,
it waits.

A child that ends, hangs or can't be started costs time and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv.probe import process
from hy3d_rocm.conv.triton import first_use
from hy3d_rocm.conv.triton.first_use import Facts
from hy3d_rocm.conv.triton.plan import Launch

logger = logging.getLogger("hy3d_rocm")

CHILD = Path(__file__).resolve().with_name("ahead_child.py")
#: processes beside this one; 0: none are ever started
most_processes = 15
# What a child takes of host memory (190 MB measured, half of it code that is shared); all together
# take a tenth of what is free, since a decode's budget was planned without them.
_CHILD_BYTES = 200 << 20
_SHARE = 10
# Of a kernel, which takes some seconds on a slow machine; then the child ends itself.
_LONGEST_S = 120.0
_LOOK_S = 0.2
_END_S = 2.0


class Wanted(NamedTuple):
    """A kernel of the module `kernels`: `item` and what is known of its operands, in order."""

    kernels: str
    item: Launch
    facts: tuple[Facts, ...]


_guard = threading.Lock()
_queued: dict[str, bytes] = {}  # by name, in the order in which they are wanted
_running: dict[str, threading.Event] = {}
_children = 0


def want(wanted: Wanted, index: int) -> bool:
    """Has a kernel for GPU `index` compiled; whether it was not compiled before."""
    global _children
    name = first_use.name_of(wanted.kernels, wanted.item, wanted.facts, index)
    if not first_use.is_new(name):
        return False
    line, most = _line(wanted), _most()
    with _guard:
        if name not in _running:
            _queued[name] = line
        # The first in the queue is left to this process, which will want it at once.
        is_short = _children < min(len(_queued) - 1, most)
        _children += is_short
    if is_short:
        threading.Thread(target=_serve, args=(_header(wanted.kernels, index),), daemon=True).start()
    return True


def wait_for(name: str, look: Callable[[], object]) -> None:
    """Leaves the kernel to the caller, once no child is at it. look: called all along; may raise,
    after a cancel."""
    with _guard:
        _queued.pop(name, None)
        done = _running.get(name)
    until = time.monotonic() + 2 * _LONGEST_S
    while done is not None and not done.wait(_LOOK_S) and time.monotonic() < until:
        look()


def finish(look: Callable[[], object]) -> None:
    """Waits until the children have compiled all that was wanted. look: as of wait_for()."""
    while _children:
        time.sleep(_LOOK_S)
        look()


def _most() -> int:
    """Children: no more than there are other cores, and memory for."""
    if os.environ.get(process.INSIDE):
        return 0
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = memory.host_free_bytes()
    room = most_processes if free is None else _children + free // _SHARE // _CHILD_BYTES
    return min(own - 1, room, most_processes)


def _line(wanted: Wanted) -> bytes:
    item = wanted.item
    job = {
        "module": wanted.kernels, "kernel": item.kernel, "numbers": item.numbers,
        "operands": [(str(f.dtype), f.small, f.aligned) for f in wanted.facts],
        "constants": item.constants, "num_warps": item.num_warps, "num_stages": item.num_stages,
    }  # fmt: skip
    return json.dumps(job).encode("ascii") + b"\n"


def _header(module: str, index: int) -> bytes:
    """module: of kernels; it may import those of this package."""
    packages = {
        ".".join(parts[:n])
        for parts in (module.split("."), __name__.split("."))
        for n in range(1, len(parts))
    }
    header = {
        "path": process.search_path(sys.path), "root": str(CHILD.parents[3]),
        "packages": sorted(packages), "target": _target(index),
        "longest_s": _LONGEST_S,
    }  # fmt: skip
    return json.dumps(header).encode("ascii") + b"\n"


def _target(index: int) -> tuple[str, Any, int]:
    """Of a GPU, as Triton's GPUTarget takes it; this thread's current GPU may be another."""
    from triton.runtime.driver import driver

    with torch.cuda.device(index):
        found = driver.active.get_current_target()
    return found.backend, found.arch, found.warp_size


def _next() -> tuple[str, bytes, threading.Event] | None:
    with _guard:
        name = next(iter(_queued), None)
        if name is None:
            return None
        done = _running[name] = threading.Event()
        return name, _queued.pop(name), done


def _serve(header: bytes) -> None:
    """A child's life."""
    global _children
    child = None
    try:
        child = _start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(header)
        while (job := _next()) is not None:
            name, line, done = job
            try:
                child.stdin.write(line)
                answer = child.stdout.readline()
                if answer == b"done\n":
                    first_use.note(name, on_disk=True)
                elif not answer:
                    break
            finally:
                with _guard:
                    del _running[name]
                done.set()
    except OSError as error:
        logger.debug("kernels are compiled one after the other: %s", error)
    finally:
        with _guard:
            _children -= 1
            if not _children:
                _queued.clear()  # nobody takes them any more
        if child is not None:
            _end(child)


def _start() -> subprocess.Popen[bytes]:
    """-I: nothing but the standard library on the path until the host's own arrives."""
    python, reason = process.interpreter()
    if python is None:
        raise OSError(reason)
    hidden = 0
    if sys.platform == "win32":
        hidden = subprocess.CREATE_NO_WINDOW
    return subprocess.Popen(
        [python, "-I", "-B", str(CHILD)], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=process.environment(os.environ), creationflags=hidden,
    )  # fmt: skip


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
