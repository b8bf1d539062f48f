"""Fixtures that files of tests ask for by name."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Threads of OpenMP that have nothing to do sleep. By default they spin, and where two processes
# have two cores, each waits for the other's: 72 s in place of 5 s for 1,500 small convolutions.
# Read when torch is imported, which is later; children inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Whose processes are forked from one.
os.environ.setdefault("WARM_START_OF", str(os.getpid()))

import core_memory  # noqa: F401  (puts the core on memory that is counted)
import slow_tests
import warm_start

# Until all tests are collected: importing torch and the files of tests makes no garbage, and to
# look for some takes a third of the time.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since each waits now and then for children and clocks (on two
    cores 6:53 minutes in place of 8:51); none where a GPU's memory is measured, which all would
    share. Without a device of one there is no need to import torch, which this process does nothing
    else with."""
    if any(map(os.path.exists, ("/dev/kfd", "/dev/nvidiactl", "/dev/dxg"))) or os.name == "nt":
        import torch

        if torch.cuda.is_available():
            return 0
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Processes of pytest-xdist, too, are forked from one that has imported torch and diffusers."""
    for spec in specs:
        if warm_start.IS_THERE and spec.popen and not spec.python:
            spec.python = f"{sys.executable} {warm_start.__file__} --as-python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = slow_tests.listed()
    for item in items:
        if slow_tests.name_of(item) in slow:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.enable()
    Frozen.freeze()


class Frozen:
    """Each decode, and each try after memory ran out, collects garbage. What pytest, torch and the
    files of tests made before is none, nor is what tests import or what the files before kept:
    looking through it took longer than a small decode."""

    modules = 0

    @classmethod
    def freeze(cls) -> None:
        gc.collect()
        gc.freeze()
        cls.modules = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    is_last = nextitem is not None and nextitem.path != item.path
    if is_last or len(sys.modules) > Frozen.modules + 20:
        Frozen.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For layers so small that they only wait for a second thread of PyTorch's."""
    import router_doubles

    with router_doubles.one_thread():
        yield


@pytest.fixture
def no_gradients() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """The router before and after as a new process has it; one thread, no gradients."""
    import torch
    from router_doubles import one_thread
    from torch.overrides import _get_current_function_mode_stack

    from hy3d_rocm.conv import forget

    forget()
    with one_thread(), torch.inference_mode():
        yield
    forget()
    assert _get_current_function_mode_stack() == [], "a mode was left behind"
