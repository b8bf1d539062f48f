"""The core on memory that is counted, and that fails when told (tests/c/counting.c).

Import this before anything that imports hy3d_rocm._core: it loads the extension as it is built,
with an allocator of the tests in the place of its own, for the whole process. `memory` is that
allocator.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import weakref
from collections.abc import Callable
from types import ModuleType

import c_tests

NAME = "hy3d_rocm._core"
CAPSULE = b"hy3d_allocator"  # the capsule keeps the pointer


def capsule_of(address: int, name: bytes = CAPSULE) -> object:
    """An allocator, as the core takes it."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, name, None)


class Memory:
    """What one copy of the core takes and gives back. Lives as long as the process."""

    def __init__(self) -> None:
        self._library = library = c_tests.library()
        library.counting_create.restype = ctypes.c_void_p
        library.counting_allocator.restype = ctypes.c_void_p
        for count in ("asked", "live", "live_bytes"):
            getattr(library, f"counting_{count}").restype = ctypes.c_uint64
        self._counting = ctypes.c_void_p(library.counting_create())
        self._core: Callable[[], ModuleType | None] = lambda: None

    def load(self) -> ModuleType | None:
        """A copy of the core on this memory; None where it is not built."""
        spec = importlib.util.find_spec(NAME)
        if spec is None or spec.loader is None:
            return None
        core = importlib.util.module_from_spec(spec)
        core.allocator = capsule_of(self._library.counting_allocator(self._counting))  # type: ignore[attr-defined]
        spec.loader.exec_module(core)
        del core.allocator  # type: ignore[attr-defined]
        self._core = weakref.ref(core)
        return core

    def fail(self, k: int, forever: bool = False) -> None:
        """The k-th allocation from now on fails (and all after it); 0: none."""
        self._trim()  # else a workspace that is kept hides an allocation
        self._library.counting_fail(self._counting, ctypes.c_uint64(k), ctypes.c_bool(forever))

    def asked(self) -> int:
        """Allocations asked for so far, failed ones included."""
        return int(self._library.counting_asked(self._counting))

    def live(self) -> int:
        """Allocations not yet freed, without a workspace that is kept."""
        self._trim()
        return int(self._library.counting_live(self._counting))

    def live_bytes(self) -> int:
        self._trim()
        return int(self._library.counting_live_bytes(self._counting))

    def _trim(self) -> None:
        core = self._core()
        if core is not None:
            core.trim()


def _install() -> Memory:
    if NAME in sys.modules:
        raise ImportError(f"import core_memory before {NAME}: it is here, on memory of its own")
    made = Memory()
    core = made.load()
    if core is not None:
        sys.modules[NAME] = core
        sys.modules["hy3d_rocm"]._core = core  # type: ignore[attr-defined]
    return made


memory = _install()
