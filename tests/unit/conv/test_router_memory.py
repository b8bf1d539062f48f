"""Out of memory: what is freed, what is predicted, and how long it is remembered."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import (
    ScriptedTier,
    SmallNet,
    cpu_tier,
    guarded,
    integers,
    raising,
)
from tier_calls import make_call

from hy3d_rocm import memory
from hy3d_rocm.conv import faults, forget, releasing
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.tiers import Limits, NativeTier
from hy3d_rocm.conv.tiers import base as tiers_base

pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture(scope="module")
def net() -> SmallNet:
    return SmallNet()


@pytest.fixture
def x() -> torch.Tensor:
    return integers(2, 2, 4, 6, 6, seed=9)


def test_out_of_memory_is_remembered_for_one_scope_only(
    monkeypatch: pytest.MonkeyPatch, net: SmallNet, x: torch.Tensor
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with inject_faults(Fault("current", text=faults.HIP_OOM)) as (fault,):
        for scope in (1, 2):
            with guarded():
                net(x)
                with guarded():  # an inner scope is part of the outer one
                    net(x)
            assert fault.fired == scope * net.calls


def test_out_of_memory_is_forgotten_once_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, net: SmallNet, x: torch.Tensor
) -> None:
    free = 1_000_000
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    with inject_faults(Fault("current", text=faults.HIP_OOM)) as (fault,), guarded():
        net(x)
        net(x)
        assert fault.fired == net.calls
        free += 1_000_000
        net(x)
        assert fault.fired == 2 * net.calls


def test_the_allocator_is_emptied_once_for_each_call_that_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    released = []
    monkeypatch.setattr(releasing, "release", lambda device: released.append(1) or 0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    weight = integers(3, 2, 3, 3, 3)
    full = [Fault(tier, text=faults.HIP_OOM) for tier in ("current", "native")]
    with inject_faults(full), guarded():
        F.conv3d(x, weight)
    assert len(released) == 1


def test_the_same_tier_is_tried_again_if_emptying_freed_enough(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(releasing, "release", lambda device: 1_000_000)
    weight = integers(3, 2, 3, 3, 3)
    with inject_faults(Fault("current", text=faults.HIP_OOM, count=1)), guarded() as guard:
        F.conv3d(x, weight)
        F.conv3d(x, weight)
    rows = {row["tier"]: row for row in guard.stats.as_dict()["rows"]}
    assert rows["current"]["calls"] == 3
    assert rows["current"]["failures"] == 1
    assert "native" not in rows


def test_exceptions_of_failed_tiers_keep_no_tensor_alive(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(releasing, "release", lambda device: 0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    seen: list[weakref.ref[torch.Tensor]] = []

    def act(call: Any) -> torch.Tensor:
        big = torch.zeros(1000)
        seen.append(weakref.ref(big))
        raise RuntimeError(faults.HIP_OOM)

    alive = []

    def last(call: Any) -> torch.Tensor:
        alive.extend(ref() for ref in seen)
        return F.conv3d(call.x, call.weight)

    gc.disable()
    try:
        with protect(tiers=[ScriptedTier("a", act), ScriptedTier("b", act)]):
            with pytest.raises(RuntimeError, match="HIP out of memory") as caught:
                F.conv3d(x, integers(3, 2, 3, 3, 3))
            del caught
        forget()
        with protect(tiers=[ScriptedTier("a", act), ScriptedTier("b", last)]):
            F.conv3d(x, integers(3, 2, 3, 3, 3))
    finally:
        gc.enable()
    assert alive == [None] * 3


def test_a_call_that_fell_back_keeps_nothing_of_its_callers() -> None:
    """Else each failure costs an input until Python looks for cycles: 130 MB in the demo."""

    def act(call: Any) -> torch.Tensor:
        raise RuntimeError(faults.MIOPEN_UNKNOWN)

    def last(call: Any) -> torch.Tensor:
        return F.conv3d(call.x, call.weight)

    gc.disable()
    try:
        with protect(tiers=[ScriptedTier("a", act), ScriptedTier("b", last)]):
            data = integers(2, 2, 4, 6, 6)
            watch = weakref.ref(data)
            F.conv3d(data, integers(3, 2, 3, 3, 3))
            del data
            assert watch() is None
    finally:
        gc.enable()


def test_an_exception_that_leaves_protect_is_in_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "release", lambda device: 0)
    gc.disable()
    try:
        for texts in ((faults.HIP_OOM,) * 3, (faults.DEVICE_MISMATCH,), ("a shape error",)):
            data = integers(2, 2, 4, 6, 6)
            watch = weakref.ref(data)
            names = ("current", "native", "cpu")
            broken = [Fault(t, text=text) for t, text in zip(names, texts, strict=False)]
            with inject_faults(broken), guarded():
                try:
                    F.conv3d(data, integers(3, 2, 3, 3, 3))
                except RuntimeError:
                    pass
                else:
                    raise AssertionError("nothing was raised")
            del data
            assert watch() is None, texts
            forget()
    finally:
        gc.enable()


def test_the_native_tier_is_left_out_where_not_even_one_row_fits(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    weight = integers(3, 2, 3, 3, 3)
    out = F.conv3d(x, weight, padding=1)
    # Cut down to one output row: its im2col, its padded window twice (the operator copies it), its
    # result; and the output.
    row = 2 * 27 * 6 + 2 * (2 * 3 * 3 * 8) + 3 * 6
    need = row * 4 + out.numel() * 4
    with inject_faults(Fault("current")):
        for budget, fits in ((need, True), (need - 1, False)):
            forget()
            with guarded(budget=budget) as guard:
                assert torch.equal(F.conv3d(x, weight, padding=1), out)
            by_tier = {row["tier"]: row for row in guard.stats.as_dict()["rows"]}
            assert by_tier["native"]["skips"] == (not fits)
            assert ("cpu" in by_tier) == (not fits)
            assert ("budget" in guard.stats.lines[0]) == (not fits)
        for free, fits in ((2 * need, True), (2 * need - 1, False)):
            forget()
            monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
            monkeypatch.setattr(tiers_base, "SMALL_BYTES", 0)
            with guarded(memory_threshold=0.5) as guard:
                F.conv3d(x, weight, padding=1)
            assert ("free is less" in guard.stats.lines[0]) == (not fits)


def test_the_native_tier_is_not_tried_for_memory_it_just_failed_to_get(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    with (
        torch.backends.mkldnn.flags(enabled=False),  # the current back-end is the native one
        inject_faults(Fault("current", text=faults.CPU_OOM)),
        guarded() as guard,
    ):
        F.conv3d(x, weight)
    tiers = {row["tier"] for row in guard.stats.as_dict()["rows"] if row["calls"]}
    assert tiers == {"current", "cpu"}
    assert "it is the current back-end" in guard.stats.lines[0]


def test_only_a_native_call_of_a_megabyte_reads_the_free_memory_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading it takes longer than a small convolution whose first tier is known to fail."""
    asked: list[torch.device] = []
    monkeypatch.setattr(memory, "free_bytes", asked.append)  # nobody can tell: no bound
    small, large = integers(1, 2, 4, 6, 6), integers(1, 2, 9, 40, 40)
    weight = integers(2, 2, 3, 3, 3, seed=1)
    assert 2 * 27 * large[0, 0].numel() * 4 > tiers_base.SMALL_BYTES  # its im2col buffer
    for x, reads in ((small, 0), (large, 3)):
        with inject_faults(Fault("current", count=1)), protect():
            F.conv3d(x, weight, padding=1)
        with protect() as guard:
            for _ in range(2):  # planned, and its first result checked
                F.conv3d(x, weight, padding=1)
            asked.clear()
            results = [F.conv3d(x, weight, padding=1) for _ in range(3)]
        assert len(asked) == reads
        assert {row.tier for row in guard.stats.rows.values()} == {"native"}
        expected = F.conv3d(x, weight, padding=1)
        assert all(torch.equal(result, expected) for result in results)


def test_a_native_call_that_has_room_reads_the_free_memory_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight = integers(1, 2, 9, 40, 40), integers(2, 2, 3, 3, 3, seed=1)
    call = make_call(x, weight, padding=1)
    need = 2 * 27 * x[0, 0].numel() * 4 + call.spec.out_bytes  # im2col buffer and output
    assert NativeTier().workspace_bytes(call.spec) + call.spec.out_bytes == need
    clock, free, asked = [1000.0], [0], []
    monkeypatch.setattr("hy3d_rocm.conv.tiers.native.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(memory, "free_bytes", lambda device: asked.append(device) or free[0])
    expected = F.conv3d(x, weight, padding=1)

    def reads(calls: int, free_bytes: int, limits: Limits | None = None) -> int:
        """How often the memory was asked for in so many calls."""
        asked.clear()
        free[0] = free_bytes
        for _ in range(calls):
            result = NativeTier().run(replace(call, limits=limits or Limits(memory_threshold=0.5)))
            assert torch.equal(result, expected)
        return len(asked)

    assert reads(3, 8 * need - 1) == 3, "four times what it needs, by half of what is free"
    assert reads(3, 8 * need) == 1
    assert reads(3, 0) == 0, "a second has not passed"
    assert reads(1, 0, Limits(budget=need)) == 0
    assert reads(1, 8 * need, Limits(budget=need - 1)) == 1, "it has to be cut"
    clock[0] += 0.99
    assert reads(1, 0) == 0
    clock[0] += 0.01
    assert reads(2, need) == 2
    assert reads(2, 8 * need) == 1


def test_an_out_of_memory_error_can_be_left_to_the_caller(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    error = torch.OutOfMemoryError(faults.HIP_OOM)
    full = ScriptedTier("full", raising(lambda: error))
    with (
        protect(tiers=[full, NativeTier()], on_oom="raise"),
        pytest.raises(torch.OutOfMemoryError) as caught,
    ):
        F.conv3d(x, weight)
    assert caught.value is error
    with protect(tiers=[full, NativeTier()]) as guard:
        F.conv3d(x, weight)
    assert guard.stats.recovered == 1


def test_the_cpu_tier_is_left_out_where_the_host_has_no_room(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    weight = integers(3, 2, 3, 3, 3)
    need = F.conv3d(x, weight).numel() * 4
    monkeypatch.setattr(tiers_base, "SMALL_BYTES", 0)
    for free, fits in ((2 * need, True), (2 * need - 1, False)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        with protect(tiers=[cpu_tier()], memory_threshold=0.5) as guard:
            if fits:
                F.conv3d(x, weight)
            else:
                with pytest.raises(RuntimeError, match="on the host"):
                    F.conv3d(x, weight)
        assert guard.stats.raised == (not fits)
