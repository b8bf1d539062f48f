"""The plans that the router makes of what it knows, and what becomes knowledge."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest
from planning_doubles import (
    MB,
    NVIDIA,
    ROCM,
    X,
    call_of,
    fail,
    planner,
    spec_of,
    tier,
)
from router_doubles import ScriptedTier
from router_world import ListedMemory, Row

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import Limits
from hy3d_rocm.conv.choice import Policy
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.tiers import base
from hy3d_rocm.conv.verdicts import VERDICTS


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    VERDICTS.forget()
    yield
    VERDICTS.forget()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> ListedMemory:
    memory = ListedMemory()
    monkeypatch.setattr(policy, "setting_of", lambda call: memory.setting)  # type: ignore[attr-defined]
    monkeypatch.setattr(policy, "memory_for", lambda device: memory)
    monkeypatch.setattr(policy, "_rates", {})
    monkeypatch.setattr(base, "free_bytes", lambda device: 100 * MB)
    memory.setting = ROCM  # type: ignore[attr-defined]
    return memory


def plan(made: policy.Planner, **options: Any) -> policy.Plan:
    return made.plan(call_of(spec_of()), "config", **options)


def test_a_healthy_machine_that_is_not_amds_asks_nobody(known: ListedMemory) -> None:
    known.setting = NVIDIA  # type: ignore[attr-defined]
    for name in ("auto", "vendor-first"):
        made = planner(name)
        assert plan(made) == policy.Plan((made.tiers[0],), NVIDIA, "current", is_brief=True)
    assert not plan(planner("auto"), in_full=True).is_brief
    assert not plan(planner("safe")).is_brief
    fail("current", Kind.BACKEND)
    assert not plan(planner("auto")).is_brief
    assert planner("auto").plan(call_of(spec_of()), "another").is_brief
    VERDICTS.forget()
    for setting in (ROCM, replace(NVIDIA, current="native"), replace(NVIDIA, vendor_on=False)):
        known.setting = setting  # type: ignore[attr-defined]
        assert not plan(planner("auto")).is_brief


def test_a_plan_says_who_is_first_and_why_others_are_not(known: ListedMemory) -> None:
    known.usual = {
        "gemm": Row(seconds=1.0), "triton": Row(seconds=2.0),
        "vendor": Row("hang", detail="at 3 s"),
    }  # fmt: skip
    made = planner()
    found = plan(made)
    assert [t.name for t in found.tiers] == ["gemm", "triton", "cpu"]
    assert (found.setting, found.preferred, found.probe) == (ROCM, "gemm", None)
    assert found.left_out == {
        "current": "it hung before: at 3 s", "vendor": "it hung before: at 3 s",
    }  # fmt: skip
    assert found.first_seconds == 1.0
    assert found.is_roomy
    assert found.expires == math.inf
    assert (found.is_fixed, found.is_brief) == (False, False)
    assert found.spare == ()
    assert found.unmeasured == ()


def test_what_was_measured_teaches_only_where_it_is_healthy(known: ListedMemory) -> None:
    known.usual = {"gemm": Row("ok", 1.0), "triton": Row("slow-find", 2.0), "cpu": Row("ok")}
    plan(planner())
    expected = policy.expected_seconds(spec_of(), "gemm")
    assert expected == pytest.approx(1.0)
    assert policy.expected_seconds(spec_of(), "somebody's own") is None


def test_the_preferred_tier_is_the_one_that_would_be_first_had_none_failed(
    known: ListedMemory,
) -> None:
    fail("triton", Kind.BACKEND)
    known.usual = {"triton": Row("error", detail="said"), "gemm": Row(seconds=1.0)}
    found = plan(planner())
    assert [t.name for t in found.tiers] == ["gemm", "cpu"]
    assert found.preferred == "triton"
    assert [t.name for t in found.spare] == ["triton", "current"]


def test_where_memory_is_short_the_plan_is_brief_and_what_is_left_is_no_room(
    known: ListedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_CRAMPED_SECONDS", 1000.0)
    made = policy.Planner(
        Policy("auto"), [tier("triton", 200 * MB), tier("gemm", 30 * MB), tier("cpu", 200 * MB)],
        Limits(memory_threshold=1.0),
    )  # fmt: skip
    before = time.monotonic()
    found = plan(made)
    assert [t.name for t in found.tiers] == ["gemm", "triton", "cpu"]
    assert before + 1000.0 <= found.expires <= time.monotonic() + 1000.0
    assert not found.is_roomy
    roomy = policy.Planner(Policy("auto"), [tier("gemm", 20 * MB)], Limits(memory_threshold=1.0))
    assert plan(roomy).is_roomy
    assert plan(roomy).expires == math.inf


def test_the_hosts_memory_is_no_matter_of_the_plan_but_its_refusal_is(known: ListedMemory) -> None:
    short = ScriptedTier("cpu", lambda call: X, refuse=base.Shortage("no room"))
    found = plan(policy.Planner(Policy("auto"), [tier("gemm"), short], Limits()))
    assert [t.name for t in found.tiers] == ["gemm", "cpu"]
    assert found.expires < math.inf  # it lacks something that may be there later
    refusing = ScriptedTier("cpu", lambda call: X, refuse="no core")
    found = plan(policy.Planner(Policy("auto"), [tier("gemm"), refusing], Limits()))
    assert ([t.name for t in found.tiers], found.left_out) == (["gemm"], {"cpu": "no core"})
    assert found.expires == math.inf
    other = ScriptedTier("gemm", lambda call: X, refuse="no kernel")
    gone = plan(policy.Planner(Policy("auto"), [other, tier("cpu")], Limits()))
    assert [t.name for t in gone.tiers] == ["cpu"]
    assert gone.left_out == {"gemm": "no kernel"}


def test_a_plan_of_nothing_is_empty(known: ListedMemory) -> None:
    refusing = ScriptedTier("gemm", lambda call: X, refuse="no kernel")
    found = plan(policy.Planner(Policy("auto"), [refusing], Limits()))
    assert (found.tiers, found.preferred, found.is_roomy) == ((), "", False)
    assert found.first_seconds is None


def test_tiers_that_take_much_are_not_measured_in_passing(
    known: ListedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "free_bytes", lambda device: None)
    large = 1 << 30
    tiers = [tier("triton", large + 1), tier("gemm", large), tier("conv2d", large + 1)]
    known.setting = replace(ROCM, is_rocm=False, current="native", vendor_on=True)  # type: ignore[attr-defined]
    known.usual = {name: Row(peak_bytes=1) for name in ("triton", "gemm", "conv2d")}
    found = plan(policy.Planner(Policy("auto"), tiers, Limits()))
    assert found.tiers[0].name == "triton"
    assert {name for name, _ in found.unmeasured} <= {"triton", "gemm"}
    assert "triton" in {name for name, _ in found.unmeasured}


def outcome(verdict: str, is_verdict: bool) -> Any:
    return Thing(
        verdict=verdict, is_verdict=is_verdict, case=Thing(tier="vendor"), seconds=1.0,
        first_seconds=2.0, peak_bytes=3, detail="said",
    )  # fmt: skip


@pytest.mark.parametrize(("verdict", "is_verdict"), [("hang", True), ("not-run", False)])
def test_a_shape_is_proven_by_a_child_within_its_time(
    known: ListedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    verdict: str, is_verdict: bool,
) -> None:  # fmt: skip
    from hy3d_rocm.conv import probe

    asked: list[Any] = []

    def run(cases: Any, **options: Any) -> list[Any]:
        asked.append((cases, options))
        return [outcome(verdict, is_verdict)]

    def cancel() -> None: ...

    monkeypatch.setattr(probe, "probe", run)
    spec = spec_of()
    assert policy.prove(spec, "vendor", cancel) == verdict
    assert asked == [([probe.Case("vendor", spec)], {"limit_s": 30.0, "cancel": cancel})]
    kept = {(spec, "vendor"): Row(verdict, 1.0, 2.0, 3, "said", "probe")}
    assert known.rows == (kept if is_verdict else {})
    said = [record.getMessage() for record in caplog.records]
    assert said == ([] if is_verdict else ["a probe of vendor said nothing: said"])
