"""A short run of the argument fuzzer; tests/long/fuzz_arguments.py has the long one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace

import fuzz_arguments
import how_much
import pytest

from hy3d_rocm import _core

SEED, COUNT = 20261121, how_much.of(200, 500)


@pytest.fixture(scope="module")
def counts_of() -> dict[str, str]:
    if not hasattr(os, "fork"):
        return {}
    return fuzz_arguments.run_each(fuzz_arguments.functions(), SEED, COUNT)


@pytest.mark.parametrize("name", fuzz_arguments.functions())
def test_bad_arguments_are_answered_with_exceptions(name: str, counts_of: dict[str, str]) -> None:
    counts = counts_of.get(name) or fuzz_arguments.run_in_child(name, SEED, COUNT)
    # What conv3d_prepare may return depends on the CPU level: below, no layout may be known.
    needs_weights = name == "conv3d_prepare" or name.startswith("PreparedWeights.")
    classes = ("PreparedWeights", "Schedule", "Program")  # nobody calls them
    possible = name not in classes and (not needs_weights or fuzz_arguments.READY)
    assert "returned" in counts or not possible, (
        f"every case was refused, so little was tested: {counts}"
    )


class Boaster(tuple[int, ...]):
    """Says that it is long, and has an iterator without end."""

    def __len__(self) -> int:
        return 2**40

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class BoastingList(list[int]):
    __len__ = Boaster.__len__
    __iter__ = Boaster.__iter__


@pytest.mark.parametrize("kind", [Boaster, BoastingList])
def test_a_sequence_is_what_it_holds_whatever_it_says(kind: type) -> None:
    rest = ((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    assert _core.conv3d_out_size(kind((3, 4, 5)), *rest) == (3, 4, 5)


def test_hooks_in_a_tuple_of_another_class_are_found() -> None:
    device = SimpleNamespace(type="cuda", index=1)
    hook = SimpleNamespace(hooks=Boaster((SimpleNamespace(execution_device=device),)))  # type: ignore[arg-type]
    assert _core.resolve_device(SimpleNamespace(_hf_hook=hook)) == (device, "accelerate hook")


def test_every_callable_of_the_core_is_fuzzed() -> None:
    assert set(fuzz_arguments.functions()) == set(fuzz_arguments.CALLS)


def test_a_leak_in_a_child_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    monkeypatch.setattr(fuzz_arguments, "run_case", lambda *_case: kept.append(1) or "returned")
    monkeypatch.setattr(fuzz_arguments.memory, "live", lambda: len(kept))
    with pytest.raises(AssertionError, match="leaves 90 allocations"):
        fuzz_arguments.run_cases("trim", 1, range(100))


def test_a_crash_in_a_child_is_seen() -> None:
    with pytest.raises(AssertionError, match="ended the process with status"):
        fuzz_arguments.run_in_child("no_such_function", seed=1, count=1)
