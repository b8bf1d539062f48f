"""Interleaved measurement: the order, failures that stop one variant, Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hy3d_rocm.bench.benches import Advice, Report
from hy3d_rocm.bench.timing import UnavailableError, Variant, interleave
from hy3d_rocm.units import aligned

CPU = torch.device("cpu")


def variant(
    name: str, events: list[str], fail: Callable[[int], BaseException | None] = lambda _: None
) -> Variant:
    """Notes its calls in `events`; `fail(n)` may give what its n-th call raises."""
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        events.append(name)
        error = fail(len(calls) - 1)
        if error is not None:
            raise error
        return name

    return Variant(name, lambda: events.append(f"prepare {name}"), call)


def test_variants_run_in_turn_and_each_is_prepared_first() -> None:
    events: list[str] = []
    rows, interrupted = interleave([variant("a", events), variant("b", events)], 2, CPU)
    assert events == ["prepare a", "a", "prepare b", "b"] * 3
    assert not interrupted
    assert [len(row.seconds) for row in rows] == [2, 2]
    assert all(row.first_seconds is not None for row in rows)
    assert all(row.peak_bytes is None for row in rows)  # a CPU counts nothing


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnavailableError("no accelerator"), "no accelerator"),
        (torch.OutOfMemoryError("HIP out of memory. Tried to"), "out of memory (OutOfMemoryError"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            "out of memory (RuntimeError",
        ),
        (RuntimeError("raised:\nNo compiler\nat"), "RuntimeError: raised: No compiler"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_variant_that_fails_is_dropped_with_its_reason_and_the_others_go_on(
    error: Exception, text: str
) -> None:
    events: list[str] = []
    variants = [variant("a", events, lambda _: error), variant("b", events)]
    rows, interrupted = interleave(variants, 2, CPU)
    assert not interrupted
    assert events.count("a") == 1
    assert rows[0].reason is not None
    assert rows[0].reason.startswith(text)
    assert len(rows[1].seconds) == 2


def test_a_variant_that_fails_later_keeps_its_figures() -> None:
    fails_third = variant("a", [], lambda n: RuntimeError("gone") if n == 2 else None)
    rows, _ = interleave([fails_third], 3, CPU)
    assert len(rows[0].seconds) == 1
    assert rows[0].reason == "RuntimeError: gone"


def test_ctrl_c_keeps_what_was_measured() -> None:
    stops = variant("b", [], lambda n: KeyboardInterrupt() if n == 1 else None)
    rows, interrupted = interleave([variant("a", []), stops], 5, CPU)
    assert interrupted
    assert len(rows[0].seconds) == 1
    assert rows[1].first_seconds is not None
    assert rows[1].seconds == []


def test_keep_sees_the_first_result_only() -> None:
    kept: list[Any] = []
    interleave([Variant("a", lambda: None, lambda: "picture", kept.append)], 3, CPU)
    assert kept == ["picture"]


def test_tables_are_aligned() -> None:
    lines = aligned([("name", "s"), ("a", "10.00 s"), ("longer", "-")])
    assert lines == ["name          s", "a       10.00 s", "longer        -"]


def test_a_report_says_that_it_was_interrupted() -> None:
    rows, interrupted = interleave([variant("a", [], lambda _: KeyboardInterrupt())], 1, CPU)
    report = Report("offload", ["fact"], rows, Advice(None, ("why",)), interrupted)
    assert "Interrupted" in report.as_text()
    assert report.as_dict()["interrupted"]
    assert not report.measured
