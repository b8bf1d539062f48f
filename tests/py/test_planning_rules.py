"""How the router gathers what it knows of a call: setting, room, plan, spare tiers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest
import torch
from router_doubles import ScriptedTier, integers
from router_world import ListedMemory, Row

from hy3d_rocm.conv import asking, policy
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits, make_spec
from hy3d_rocm.conv.choice import Candidate, Policy, Setting
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.estimate import Work
from hy3d_rocm.conv.verdicts import VERDICTS, Verdict

CUDA = torch.device("cuda:0")
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
NVIDIA = Setting(on_gpu=True, current="vendor")
X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
MB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    VERDICTS.forget()
    yield
    VERDICTS.forget()


def spec_of(device: torch.device = CUDA, **changes: Any) -> ConvSpec:
    spec = make_spec((X, W, None, 1, 0, 1, 1), 3)
    assert spec is not None
    return replace(spec, device=device, **changes)


def call_of(spec: ConvSpec) -> ConvCall:
    return ConvCall(spec, X, W, None, lambda: X)


@pytest.mark.parametrize(
    ("backend", "vendor_on", "current"),
    [
        ("Miopen", True, "vendor"), ("Cudnn", True, "vendor"), ("SlowDilated3d", True, "native"),
        ("unknown", True, "vendor"), ("unknown", False, "native"),
        ("CudaDepthwise3d", True, "other"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("hip", [None, "6.4"])
def test_the_setting_is_what_pytorch_would_run(
    monkeypatch: pytest.MonkeyPatch, backend: str, vendor_on: bool, current: str, hip: str | None
) -> None:
    asked: list[ConvCall] = []

    def select(call: ConvCall) -> str:
        asked.append(call)
        return backend

    monkeypatch.setattr(torch._C, "_get_cudnn_enabled", lambda: vendor_on)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(policy.tiers, "select_backend", select)
    call = call_of(spec_of())
    assert policy.setting_of(call) == Setting(
        on_gpu=True, is_rocm=hip is not None, current=current, vendor_on=vendor_on
    )
    assert asked == [call]
    assert policy.setting_of(call_of(spec_of(torch.device("cpu")))) == Setting(on_gpu=False)


def test_autocasts_copy_is_asked_about_without_being_made() -> None:
    spec = spec_of(torch.device("cpu"))
    same = call_of(spec)
    assert policy._cheap(same) is same
    half = call_of(replace(spec, dtype=torch.float16))
    cheap = policy._cheap(half)
    assert (cheap.x.dtype, cheap.x.shape, cheap.x.device) == (torch.float16, X.shape, X.device)
    assert cheap.x.untyped_storage().nbytes() == 2
    assert replace(cheap, x=X) == half


def test_only_current_on_a_gpu_that_is_not_amds_is_trusted() -> None:
    assert policy.is_trusted("current", NVIDIA)
    assert not policy.is_trusted("vendor", NVIDIA)
    assert not policy.is_trusted("current", ROCM)
    assert not policy.is_trusted("current", replace(NVIDIA, on_gpu=False))


def test_current_is_known_as_what_it_calls() -> None:
    assert policy.known_as("current", ROCM) == "vendor"
    assert policy.known_as("current", replace(ROCM, current="native")) == "native"
    assert policy.known_as("current", replace(ROCM, current="other")) == "current"
    assert policy.known_as("current", replace(ROCM, on_gpu=False)) == "current"
    assert policy.known_as("gemm", ROCM) == "gemm"


def test_knowledge_is_for_gpus_alone_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []
    monkeypatch.setattr(policy, "_memories", {})
    monkeypatch.setattr(policy, "StoreMemory", lambda device: made.append(device) or object())
    none = policy.memory_for(torch.device("cpu"))
    assert isinstance(none, policy.NoMemory)
    assert none.records(spec_of()) == {}
    assert none.put(spec_of(), "gemm", "ok") is None  # type: ignore[func-returns-value]
    with none.trying(spec_of(), "gemm"):
        pass
    assert policy.memory_for(CUDA) is policy.memory_for(CUDA)
    assert policy.memory_for(torch.device("cuda:1")) is not policy.memory_for(CUDA)
    assert made == [CUDA, torch.device("cuda:1")]


def test_all_tiers_come_in_the_order_between_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.tiers, "make_tier", lambda name, **options: (name, options))
    assert [name for name, _ in policy.all_tiers()] == [  # type: ignore[misc]
        "current", "vendor", "triton", "native", "gemm", "conv2d", "cpu",
    ]  # fmt: skip
    assert policy.all_tiers(threads=3)[0] == ("current", {"threads": 3})


def test_a_fixed_plan_is_the_callers_order() -> None:
    tiers = [ScriptedTier(name, lambda call: X) for name in ("b", "a")]
    plan = policy.fixed_plan(tiers, call_of(spec_of(torch.device("cpu"))))
    assert plan == policy.Plan(tuple(tiers), Setting(on_gpu=False), "b", is_fixed=True)


def test_the_size_of_a_convolution() -> None:
    spec = spec_of()
    numbers = X.numel() + W.numel() + 3 * 2 * 4 * 4
    assert policy.work_of(spec) == Work(
        "f32", 2.0 * (3 * 2 * 4 * 4) * (2 * 27), 4.0 * numbers, 4.0 * 3 * 2 * 4 * 4,
        4.0 * (2 * 27) * (2 * 4 * 4), 27, 3, 2,
    )  # fmt: skip
    image = make_spec((X[:, :, 0].expand(4, 2, 6, 6).repeat(1, 2, 1, 1), W[:, :, 0], None,
                       1, 0, 1, 2), 2)  # fmt: skip
    assert image is None  # 3 outputs do not divide by 2 groups
    two = integers(4, 2, 3, 3)
    image = make_spec((X[:, :, 0].expand(5, 2, 6, 6).repeat(1, 2, 1, 1), two, None, 1, 0, 1, 2), 2)
    assert image is not None
    work = policy.work_of(image)
    assert (work.taps, work.time_taps, work.group_channels) == (9, 1, 2)
    assert work.column_bytes == 4.0 * (2 * 9) * 16 * 5 * 2
    view = make_spec((X, integers(3, 2, 1, 1, 1), None, 1, 0, 1, 1), 3)
    assert view is not None
    assert policy.work_of(view).column_bytes == 0.0


def tier(name: str, workspace: int = 0) -> Any:
    made = ScriptedTier(name, lambda call: X)
    made.workspace_bytes = lambda spec: workspace  # type: ignore[method-assign]
    return made


def room(monkeypatch: pytest.MonkeyPatch, free: int | None, **limits: Any) -> Any:
    asked: list[torch.device] = []
    monkeypatch.setattr(asking, "free_bytes", lambda device: asked.append(device) or free)
    made = policy._Room(spec_of(), Limits(**limits))
    made.asked = asked
    return made


OUT = 4 * 3 * 2 * 4 * 4


def test_room_is_workspace_and_output_within_a_share_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = 2 * MB
    for free, fits in ((2 * (need + OUT), True), (2 * (need + OUT) - 2, False)):
        asked = room(monkeypatch, free, memory_threshold=0.5)
        assert asked.has_room(tier("gemm", need), None) is fits
        assert asked.has_room(tier("gemm", need), None) is fits
        assert asked.asked == [CUDA]  # once
    assert room(monkeypatch, None).has_room(tier("gemm", 1 << 60), None)
    times = room(monkeypatch, 3 * (need + OUT), memory_threshold=1.0)
    assert times.has_room(tier("gemm", need), None, 3)
    assert not times.has_room(tier("gemm", need), None, 4)


def test_little_always_fits_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = room(monkeypatch, 0)
    assert asked.has_room(tier("gemm", MB), None)
    assert asked.asked == []
    assert not asked.has_room(tier("gemm", MB + 1), None)


def test_what_was_measured_counts_if_it_is_more_than_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = room(monkeypatch, 4 * MB, memory_threshold=1.0)
    assert asked.has_room(tier("gemm", 2 * MB), Row(peak_bytes=3 * MB))
    assert not asked.has_room(tier("gemm", 2 * MB), Row(peak_bytes=4 * MB))
    assert not asked.has_room(tier("gemm", 4 * MB), Row(peak_bytes=1))
    assert asked.has_room(tier("gemm", 2 * MB), Row())


def test_a_budget_is_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    within = room(monkeypatch, None, budget=1000 + OUT)
    assert within.has_room(tier("gemm", 1000), None)
    assert not within.has_room(tier("gemm", 1001), None)


def test_native_may_take_its_whole_matrix() -> None:
    spec = spec_of()
    work = replace(policy.work_of(spec), column_bytes=5000.0)
    assert policy._bytes_at_most(tier("native", 100), spec, work) == 5000.0
    assert policy._bytes_at_most(tier("native", 6000), spec, work) == 6000
    assert policy._bytes_at_most(tier("gemm", 100), spec, work) == 100


def unmeasured(
    *candidates: Candidate, setting: Setting = ROCM, modest: str = "abc", order: str = "",
) -> tuple[tuple[str, float | None], ...]:  # fmt: skip
    names = order.split() if order else [c.tier for c in candidates]
    return policy._unmeasured(names, candidates, setting, set(modest))


def test_tiers_that_could_be_the_best_are_worth_measuring() -> None:
    a, b = Candidate("a", estimate_seconds=1.0), Candidate("b", estimate_seconds=2.9)
    c = Candidate("c", estimate_seconds=3.0)
    assert unmeasured(a, b, c) == (("a", 1.0), ("b", 2.9))
    assert unmeasured(a, b, setting=Setting(on_gpu=False)) == ()
    assert unmeasured() == ()
    assert unmeasured(a, b, order="a") == (("a", 1.0),)
    known = Candidate("a", record=Row(seconds=0.5), estimate_seconds=9.0)
    assert unmeasured(known, Candidate("b", estimate_seconds=1.4)) == (("b", 1.4),)
    assert unmeasured(known, Candidate("b", estimate_seconds=1.5)) == ()
    assert unmeasured(known, Candidate("b")) == (("b", None),)
    assert unmeasured(Candidate("a"), b) == (("a", None),)
    assert unmeasured(known, Candidate("b", record=Row(seconds=0.9))) == ()


def test_what_takes_much_lacks_memory_or_is_the_cpu_is_not_measured_in_passing() -> None:
    a, b = Candidate("a", estimate_seconds=1.0), Candidate("b", estimate_seconds=1.0)
    assert unmeasured(a, b, modest="") == (("a", 1.0),)
    assert unmeasured(a, replace(b, fits=False)) == (("a", 1.0),)
    assert unmeasured(a, Candidate("cpu", estimate_seconds=1.0), modest="cpu") == (("a", 1.0),)
    assert policy._unmeasured(
        ["a", "cpu"], [a, Candidate("cpu", estimate_seconds=1.0)], ROCM, {"a", "cpu"}
    ) == (("a", 1.0),)
    trusted = Candidate("current", estimate_seconds=1.0)
    assert unmeasured(trusted, b, setting=NVIDIA) == ()
    assert unmeasured(trusted, b, setting=ROCM) == (("current", 1.0), ("b", 1.0))


@pytest.mark.parametrize(
    ("record", "outdated", "harmless"),
    [
        (None, False, True),
        (Row("ok"), False, True),
        (Row("error", detail="MIOpen failed"), True, True),
        (Row("error", detail="HIP error: an illegal memory access"), False, False),
        (Row("hang"), False, False),
        (Row("wrong"), False, False),
    ],
)
def test_a_record_may_be_outdated_or_harmless(
    record: Row | None, outdated: bool, harmless: bool
) -> None:
    assert policy._may_be_outdated(record) is outdated
    assert policy._is_harmless(record) is harmless


NAMES = ("current", "vendor", "triton", "gemm", "cpu")


def planner(name: str = "auto", **limits: Any) -> policy.Planner:
    return policy.Planner(Policy(name), [tier(n) for n in NAMES], Limits(**limits))


def spare(setting: Setting, *candidates: Candidate, order: tuple[str, ...] = ()) -> list[str]:
    made = planner()
    kept = [t for t in made.tiers if t.name in order]
    whole = {c.tier: c for c in candidates}
    every = [whole.get(n, Candidate(n)) for n in NAMES]
    return [t.name for t in made._spare(every, kept, "config", setting)]


def fail(name: str, kind: Kind) -> None:
    VERDICTS.record(name, "config", Verdict(kind, "said"))


def test_what_failed_and_may_recover_is_spare_and_current_comes_last() -> None:
    for name, kind in (("triton", Kind.BACKEND), ("gemm", Kind.NO_ALGORITHM),
                       ("cpu", Kind.UNSUPPORTED)):  # fmt: skip
        fail(name, kind)
    assert spare(ROCM) == ["triton", "gemm", "cpu", "current"]
    assert spare(ROCM, order=("gemm", "current")) == ["triton", "cpu"]
    fail("triton", Kind.WRONG_RESULT)
    fail("gemm", Kind.DEVICE_LOST)
    assert spare(ROCM) == ["cpu", "current"]


def test_an_outdated_record_makes_a_tier_spare_unless_it_failed_here_for_good() -> None:
    record = Candidate("gemm", record=Row("error", detail="MIOpen failed"))
    assert spare(ROCM, record) == ["gemm", "current"]
    fail("gemm", Kind.WRONG_RESULT)
    assert spare(ROCM, record) == ["current"]


def test_the_library_is_no_spare_where_it_may_hang() -> None:
    fail("vendor", Kind.BACKEND)
    assert spare(ROCM) == ["current"]
    assert spare(NVIDIA) == ["vendor", "current"]


def test_current_is_spare_unless_it_is_known_to_do_harm() -> None:
    assert spare(ROCM, Candidate("current", record=Row("hang"))) == []
    assert spare(ROCM, Candidate("current", record=Row("error", detail="x"))) == ["current"]
    fail("current", Kind.NO_ALGORITHM)
    assert spare(ROCM) == ["current"]
    fail("current", Kind.WRONG_RESULT)
    assert spare(ROCM) == []
    assert [t.name for t in planner()._spare([Candidate("gemm")], [], "config", ROCM)] == []


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> ListedMemory:
    memory = ListedMemory()
    monkeypatch.setattr(policy, "setting_of", lambda call: memory.setting)  # type: ignore[attr-defined]
    monkeypatch.setattr(policy, "memory_for", lambda device: memory)
    monkeypatch.setattr(policy, "_rates", {})
    monkeypatch.setattr(asking, "free_bytes", lambda device: 100 * MB)
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
    rates = policy._rates[CUDA]
    assert set(rates.factors()) == {("gemm", "f32")}
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
    refusing = ScriptedTier("cpu", lambda call: X, refuse="no core")
    found = plan(policy.Planner(Policy("auto"), [tier("gemm"), refusing], Limits()))
    assert [t.name for t in found.tiers] == ["gemm", "cpu"]
    assert found.expires < math.inf  # it lacks something that may be there later
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
    monkeypatch.setattr(asking, "free_bytes", lambda device: None)
    large = policy._PASSING_BYTES
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


def test_only_verdicts_of_a_probe_are_kept(known: ListedMemory) -> None:
    spec = spec_of()
    policy.keep(spec, outcome("oom", False), "probe")
    assert known.rows == {}
    policy.keep(spec, outcome("ok", True), "tune")
    assert known.rows == {(spec, "vendor"): Row("ok", 1.0, 2.0, 3, "said", "tune")}


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
