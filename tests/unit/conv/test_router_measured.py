"""What a healthy machine is spared, what is measured in passing, and what fits into memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import integers, raising
from router_world import Row, World

from hy3d_rocm import memory
from hy3d_rocm.conv import fallback, faults, forget, learning, policy, router, selfcheck
from hy3d_rocm.conv.call import make_spec
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.learning import OverheadBudget, Watching
from hy3d_rocm.conv.policy import Plan
from hy3d_rocm.conv.stats import Event

X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
ROCM_OFF = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)
NVIDIA = Setting(on_gpu=True, current="vendor")
NVIDIA_OFF = Setting(on_gpu=True, current="native", vendor_on=False)


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM)


def conv() -> torch.Tensor:
    return F.conv3d(X, W)


EXPECTED = conv()


def test_a_healthy_nvidia_machine_runs_what_it_would_run_anyway_unchecked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trap(*args: Any) -> Any:
        raise AssertionError("was checked")

    monkeypatch.setattr(selfcheck, "check", trap)
    world.setting = NVIDIA
    with world.protect() as guard:
        for _ in range(10):
            assert torch.equal(conv(), EXPECTED)
    assert world.calls() == {"current": 10}
    assert world.memory.log == ["run current"] * 10
    assert guard.stats.as_dict()["rows"][0]["tier"] == "current"


def test_on_a_healthy_nvidia_machine_no_other_tier_is_asked_until_one_is_needed(
    world: World,
) -> None:
    def trap(*args: Any) -> Any:
        raise AssertionError("was asked")

    world.setting = NVIDIA
    others = [tier for name, tier in world.tiers.items() if name != "current"]
    plain = others[0].refusal
    for tier in others:
        tier.refusal = trap  # type: ignore[method-assign]
    for name in ("auto", "vendor-first"):
        with world.protect(name):
            assert torch.equal(conv(), EXPECTED)
    for tier in others:
        tier.refusal = plain  # type: ignore[method-assign]
    act, errors = world.tiers["current"].act, [faults.NO_ENGINE, faults.CUDA_OOM]
    for text in errors:
        forget()
        world.tiers["current"].act = raising(lambda text=text: RuntimeError(text))
        with world.protect() as guard:
            for _ in range(3):
                assert torch.equal(conv(), EXPECTED)
        assert guard.stats.recovered == 3
        assert world.memory.verdicts().get("vendor", "ok") == "ok", "cuDNN itself has not failed"
        assert "current" not in world.memory.verdicts()
        world.tiers["current"].act = act


def test_with_the_library_switched_off_nvidia_too_goes_to_our_kernel(world: World) -> None:
    world.setting = NVIDIA_OFF
    with world.protect():
        conv()
    assert world.calls() == {"triton": 1}


def test_after_the_first_call_nothing_is_asked_any_more(world: World) -> None:
    asked: list[str] = []
    for tier in world.tiers.values():
        plain = tier.refusal
        tier.refusal = lambda call, limits, plain=plain, tier=tier: (  # type: ignore[method-assign]
            asked.append(tier.name), plain(call, limits),
        )[1]  # fmt: skip
    world.memory.usual = {n: Row(seconds=1.0) for n in world.tiers}
    world.memory.usual["triton"] = Row(seconds=0.5)
    with world.protect() as guard:
        conv()
        asked.clear()
        for _ in range(5):
            conv()
    assert asked == []
    assert guard.stats.calls == 6
    assert sum(r["calls"] for r in guard.stats.as_dict()["rows"]) == 6


def test_layers_that_run_often_are_measured_and_the_faster_tier_takes_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes as the tiers say: another's load is in none of their times."""
    takes, now = {"triton": 0.004, "native": 0.001}, 0.0
    monkeypatch.setattr(router, "perf_counter", lambda: now)
    monkeypatch.setattr(learning, "time", SimpleNamespace(perf_counter=lambda: now))

    def act(call: Any, name: str) -> torch.Tensor:
        nonlocal now
        now += takes[name]
        result: torch.Tensor = call.run_current()
        return result

    for name in takes:
        world.tiers[name].act = lambda call, name=name: act(call, name)
    world.tiers["gemm"].refuse = "not here"
    measured: dict[str, Row] = {}
    end = time.monotonic() + 30
    with world.protect():
        while len(measured) < 2 and time.monotonic() < end:
            assert torch.equal(conv(), EXPECTED)
            measured = {
                tier: row
                for (_, tier), row in world.memory.rows.items()
                if row.measured_by == "passing"
            }
    assert set(measured) == {"triton", "native"}
    assert (measured["native"].seconds or 9) < (measured["triton"].seconds or 0)
    before = world.tiers["triton"].calls
    with world.protect():
        conv()
    assert world.tiers["triton"].calls == before
    assert "vendor" not in world.calls()


def test_a_tier_that_fails_while_it_is_measured_costs_no_call(world: World) -> None:
    world.tiers["native"].act = raising(lambda: RuntimeError(faults.NO_ENGINE))
    with world.protect() as guard:
        end = time.monotonic() + 30
        while not world.tiers["native"].calls and time.monotonic() < end:
            assert torch.equal(conv(), EXPECTED)
        for _ in range(20):
            time.sleep(0.01)
            assert torch.equal(conv(), EXPECTED)
    assert (guard.stats.raised, guard.stats.failures) == (0, 1)
    assert world.tiers["native"].calls == 1


def test_a_gpus_events_are_read_when_they_have_passed_and_nothing_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Event:
        """Passes once `now` is two records further; counts seconds by records."""

        now = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "the stream of cuda:1"
            assert entered == [torch.device("cuda:1")], "another GPU is the current one"
            Event.now += 1
            self.at = Event.now

        def query(self) -> bool:
            return Event.now >= self.at + 2

        def elapsed_time(self, other: Event) -> float:
            return 1000.0 * (other.at - self.at)

        def synchronize(self) -> None:
            raise AssertionError("waited")

    entered: list[torch.device] = []

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    spec = make_spec((X, W, None, 1, 0, 1, 1), 3)
    assert spec is not None
    spec = replace(spec, device=torch.device("cuda:1"))
    tiers = (world.tiers["triton"], world.tiers["gemm"])
    plan = Plan(tiers, ROCM, "triton", unmeasured=(("triton", 1.0), ("gemm", 1.0)))
    watching = Watching(spec, OverheadBudget(lambda: 1e6 * Event.now), plan)
    ran = []
    while not watching.is_done and len(ran) < 100:
        watching.collect()
        timed = watching.to_time()
        ran.append(timed)
        if timed is not None:
            with watching.timing(timed):
                pass
        else:
            Event.now += 1
    watching.collect()
    assert {t: r.seconds for (_, t), r in world.memory.rows.items()} == {"triton": 1, "gemm": 1}
    assert len(ran) < 30


def test_a_capture_is_looked_for_on_the_stream_of_the_calls_own_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = 0

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        nonlocal current
        before, current = current, device.index
        yield
        current = before

    monkeypatch.setattr(memory, "gpu_in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current == 1)
    assert fallback.is_capturing(torch.device("cuda:1"))
    assert not fallback.is_capturing(torch.device("cuda:0"))
    assert not fallback.is_capturing(torch.device("cpu"))
    assert current == 0


def test_what_does_not_fit_is_passed_over_until_memory_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 20
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    big = world.tiers["triton"]
    big.workspace_bytes = lambda spec: 16 << 20  # type: ignore[method-assign]
    now = 0.0
    for module in (policy, router):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with world.protect():
        conv()
        assert world.calls() == {"native": 1}
        free = 1 << 30
        now += 0.9
        conv()
        assert world.calls() == {"native": 2}, "the plan holds for a moment"
        now += 0.2
        conv()
        conv()
    assert world.calls() == {"native": 2, "triton": 2}
    forget()
    with world.protect(budget=1 << 20):
        conv()
    assert world.calls() == {"native": 3, "triton": 2}


def test_measured_bytes_count_where_a_tier_predicts_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 30)
    world.memory.usual["vendor"] = Row(seconds=1e-9, peak_bytes=2 << 30)
    with world.protect():
        conv()
    assert "vendor" not in world.calls()


def test_what_may_take_much_memory_is_not_measured_in_passing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    for name in ("gemm", "native"):
        world.tiers[name].workspace_bytes = lambda spec: (1 << 30) + 1  # type: ignore[method-assign]
    with world.protect():
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            conv()
    assert {"triton"} == world.calls().keys()


def test_plans_made_anew_under_memory_pressure_go_on_measuring(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 20)
    monkeypatch.setattr("hy3d_rocm.conv.policy._CRAMPED_SECONDS", 0.0)  # at each call
    world.tiers["conv2d"].refuse = "not here"
    big = world.tiers["gemm"]
    big.workspace_bytes = lambda spec: 16 << 20  # type: ignore[method-assign]
    measured: set[str] = set()
    end = time.monotonic() + 60
    with world.protect():
        while measured != {"triton", "native"} and time.monotonic() < end:
            assert torch.equal(conv(), EXPECTED)
            measured = {t for (_, t), r in world.memory.rows.items() if r.seconds is not None}
    assert measured == {"triton", "native"}
    assert "gemm" not in world.calls(), "it does not fit"


def test_a_watch_goes_on_under_a_new_plan_and_no_reserve_is_lost(world: World) -> None:
    now = 0.0
    budget = OverheadBudget(lambda: now)
    now = 1e6
    spec = make_spec((X, W, None, 1, 0, 1, 1), 3)
    assert spec is not None
    tiers = {name: world.tiers[name] for name in ("triton", "gemm", "native")}
    worth: tuple[tuple[str, float | None], ...] = (("triton", 1.0), ("gemm", 2.0))
    plan = Plan((tiers["triton"], tiers["gemm"]), ROCM, "triton", unmeasured=worth)
    watch = Watching(spec, budget, plan)
    assert [watch.to_time() for _ in range(3)] == [None] * 3
    for _ in range(3):
        assert watch.to_time() == "triton"
        watch.told("triton", 1.0)
    assert watch.to_time() == "gemm"
    reserved = budget.spent
    assert reserved > 0
    # gemm does not fit for a moment: nobody runs it, but its run under way still counts.
    cramped = Plan((tiers["triton"], tiers["gemm"]), ROCM, "triton")
    watch.follow(cramped)
    assert watch.to_time() is None
    watch.told("gemm", 1.5)
    assert budget.spent == 0.5, "the true price"
    again = replace(plan, unmeasured=(("gemm", 2.0), ("native", 3.0)))
    watch.follow(again)
    assert [watch.to_time() for _ in range(2)] == ["gemm", "native"]
    # Another tier is chosen and nothing is worth measuring: what is under way is waited for.
    watch.follow(Plan((tiers["native"], tiers["gemm"]), ROCM, "native"))
    assert not watch.is_done
    assert watch.to_time() is None
    assert watch.chosen == "native"
    watch._late += [(tier, _Passed(), _Passed()) for tier in ("gemm", "native")]
    watch.collect()
    assert watch.is_done
    assert budget.spent == 2.5, "the true price of both, where the new one's time is not known"
    # Another tier is chosen, and measuring goes on where it was.
    watch.follow(replace(plan, tiers=plan.tiers[::-1], unmeasured=worth))
    assert watch._trials["gemm"].runs == 2
    assert [watch.to_time() for _ in range(3)] == ["gemm"] * 3


class _Passed:
    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 1000.0
