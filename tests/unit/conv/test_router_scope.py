"""The scope: whom it acts on, what it leaves alone, and what it tells."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import (
    ScriptedTier,
    SmallNet,
    cpu_tier,
    fake_conv3d,
    fake_result,
    guarded,
    integers,
)
from torch.overrides import _get_current_function_mode_stack

from hy3d_rocm.conv import faults
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.stats import Event
from hy3d_rocm.conv.tiers import CpuTier, CurrentTier, NativeTier

pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture(scope="module")
def net() -> SmallNet:
    return SmallNet()


@pytest.fixture
def x() -> torch.Tensor:
    return integers(2, 2, 4, 6, 6, seed=9)


def test_transforms_and_forward_mode_derivatives_are_never_retried() -> None:
    weight = integers(3, 2, 3, 3, 3)
    data = integers(1, 2, 4, 6, 6)
    with torch.inference_mode(False), inject_faults(Fault("native")), guarded():
        _, tangent = torch.func.jvp(lambda t: F.conv3d(t, weight), (data,), (data,))
        assert torch.equal(tangent, F.conv3d(data, weight))
        batched = torch.func.vmap(lambda t: F.conv3d(t, weight))(data[None])
        assert torch.equal(batched[0], F.conv3d(data, weight))


def test_autocast_computes_in_its_dtype_on_every_tier() -> None:
    data, weight = integers(1, 2, 3, 6, 6, high=1), integers(3, 2, 3, 3, 3, high=1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.conv3d(data, weight)
        assert expected.dtype == torch.bfloat16
        for tier in (NativeTier(), cpu_tier()):
            with protect(tiers=[tier]):
                got = F.conv3d(data, weight)
                assert got.dtype == torch.bfloat16
                assert torch.equal(got, expected)


def test_only_the_thread_that_entered_is_protected(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    result: list[Any] = []

    def other() -> None:
        with torch.inference_mode():
            result.append(_get_current_function_mode_stack())
            result.append(F.conv3d(x, weight))

    with inject_faults(Fault("current")) as (fault,), guarded() as guard:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert fault.seen == 0
    assert result[0] == []
    assert guard.stats.calls == 0


def test_one_guard_counts_what_several_threads_do(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    guard = guarded()

    def work() -> None:
        with torch.inference_mode(), guard:
            for _ in range(50):
                F.conv3d(x, weight)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guard.stats.calls == 200
    assert sum(row["calls"] for row in guard.stats.as_dict()["rows"]) == 200


def test_nested_scopes_route_once_and_both_count(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    events: list[Event] = []
    with (
        inject_faults(Fault("current")) as (fault,),
        guarded(on_event=events.append) as outer,
        guarded() as inner,
        inner,
    ):
        F.conv3d(x, weight)
    assert fault.fired == 1
    for guard in (outer, inner):
        assert (guard.stats.calls, guard.stats.failures, guard.stats.recovered) == (1, 1, 1)
    assert [(e.tier, e.outcome) for e in events] == [("current", "failed"), ("native", "ok")]


def test_the_inner_scope_decides_and_the_outer_one_is_back_afterwards(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    outer = ScriptedTier("outer", lambda call: fake_result(call))
    inner = ScriptedTier("inner", lambda call: fake_result(call))
    with protect(tiers=[outer]):
        with protect(tiers=[inner]):
            F.conv3d(x, weight)
        F.conv3d(x, weight)
    assert (outer.calls, inner.calls) == (1, 1)


def test_the_stack_is_clean_after_an_exception(x: torch.Tensor) -> None:
    for error in (KeyboardInterrupt, RuntimeError, ZeroDivisionError):
        with pytest.raises(error), guarded(), guarded(), inject_faults(Fault("cpu")):
            raise error
        assert _get_current_function_mode_stack() == []
        assert not faults.active()
    with guarded() as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 1


def test_no_flag_of_the_process_is_flipped(x: torch.Tensor) -> None:
    def flags() -> tuple[Any, ...]:
        names = dir(torch.backends.cudnn)
        return (
            torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled(),
            torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(),
            F.conv3d, torch.conv3d, torch.nn.Conv3d.forward, names,
        )  # fmt: skip

    before, seen = flags(), []
    last = ScriptedTier("last", lambda call: (seen.append(flags()), fake_result(call))[1])
    with inject_faults(Fault("current")), protect(tiers=[CurrentTier(), last]):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
        seen.append(flags())
    assert [before, before, before] == [*seen, flags()]


def test_each_new_event_is_one_log_line_and_never_repeated(
    caplog: pytest.LogCaptureFixture, net: SmallNet, x: torch.Tensor
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hy3d_rocm"),
        inject_faults(Fault("current", "conv3d", shape="2x2x4x6x6")),
    ):
        for _ in range(3):
            with guarded() as guard:
                net(x)
                net(x)
    assert [r.getMessage() for r in caplog.records] == [
        "conv3d 2x2x4x6x6 -> 3, f32: MIOpen found no suitable algorithm; from now on: PyTorch"
        " native"
    ]
    assert guard.stats.lines == [], "a later scope repeats nothing"


def test_statistics_are_json_and_a_table(net: SmallNet, x: torch.Tensor) -> None:
    with inject_faults(Fault("current", "conv3d")), guarded() as guard:
        net(x)
        net(x)
    state = json.loads(json.dumps(guard.stats.as_dict()))
    assert state["calls"] == 2 * net.calls
    assert state["recovered"] == 2 * (net.calls - 1)
    assert state["failures"] == net.calls - 1
    assert sum(r["calls"] - r["failures"] for r in state["rows"]) == 2 * net.calls
    assert all(r["seconds"] >= r["max_seconds"] > 0 for r in state["rows"] if r["calls"])
    native = [r for r in state["rows"] if r["tier"] == "native"]
    assert native[0]["predicted_bytes"] > 0
    table = guard.stats.table()
    assert "2x2x4x6x6 -> 3" in table
    assert len(table.splitlines()) == 2 + len(state["rows"])
    assert set(guard.stats.tier_seconds()) == {"current", "native"}


def test_events_tell_time_tier_shape_and_outcome(x: torch.Tensor) -> None:
    def slow(call: Any) -> torch.Tensor:
        time.sleep(0.02)
        return fake_result(call)

    events: list[Event] = []
    tiers = [CurrentTier(), ScriptedTier("b", slow, refuse="no"), ScriptedTier("c", slow)]
    start = time.perf_counter()
    with inject_faults(Fault("current")), protect(tiers=tiers, on_event=events.append) as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert [(e.tier, e.outcome) for e in events] == [
        ("current", "failed"), ("b", "skipped"), ("c", "ok"),
    ]  # fmt: skip
    assert events[2].seconds >= 0.02
    assert guard.stats.tier_seconds()["c"] >= 0.02
    assert start <= events[0].time <= events[2].time <= time.perf_counter()
    assert (events[0].op, events[0].shape, events[0].dtype) == ("conv3d", "2x2x4x6x6 -> 3", "f32")


def test_amd_only_enters_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    with protect(when="amd") as guard:
        assert _get_current_function_mode_stack() == []
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 0
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with protect(when="amd") as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when": "never"}, "neither 'always' nor 'amd'"),
        ({"on_oom": "ignore"}, "neither 'retry' nor 'raise'"),
        ({"tiers": ["gpu"]}, "'gpu' is no tier"),
        ({"tiers": "cpu"}, "not a list"),
        ({"tiers": []}, "not a list"),
        ({"tiers": ["cpu", "cpu"]}, "twice"),
        ({"budget": -1}, "negative"),
        ({"budget": "6GB"}, "budget='6GB' is negative, or no number of bytes"),
        ({"memory_threshold": "1"}, r"not in \(0, 1\]"),
        ({"memory_threshold": 0}, r"not in \(0, 1\]"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        protect(**options)


def test_leaving_a_scope_on_another_thread_is_a_sentence() -> None:
    guard = guarded()
    said: list[str] = []

    def leave() -> None:
        try:
            guard.__exit__(None, None, None)
        except RuntimeError as error:
            said.append(str(error))

    with guard:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert "another thread" in said[0]


def test_a_forced_tier_that_refuses_says_why(x: torch.Tensor) -> None:
    with (
        pytest.raises(RuntimeError, match=r"no tier could run it.*budget"),
        protect(tiers=["native"], budget=1),
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))


def test_options_of_the_c_conv3d_reach_it(x: torch.Tensor) -> None:
    seen: dict[str, Any] = {}

    def spy(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.update(kwargs)
        return fake_conv3d(*args, **kwargs)

    flag = object()
    tier = CpuTier(threads=2, workspace_limit=1 << 20, cancel=flag, conv3d=spy)
    with protect(tiers=[tier]):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert (seen["threads"], seen["workspace_limit"], seen["cancel"]) == (2, 1 << 20, flag)
