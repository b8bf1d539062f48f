"""How the router gathers what it knows of a call: setting, room, plan, spare tiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from planning_doubles import (
    CUDA,
    MB,
    NAMES,
    NVIDIA,
    ROCM,
    W,
    X,
    call_of,
    fail,
    planner,
    spec_of,
    tier,
)
from router_doubles import ScriptedTier, integers
from router_world import Row

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import ConvCall, Limits, make_spec
from hy3d_rocm.conv.choice import Candidate, Policy, Setting, Work, choose
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.tiers import base
from hy3d_rocm.conv.verdicts import VERDICTS


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    VERDICTS.forget()
    yield
    VERDICTS.forget()


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
    monkeypatch.setattr(policy, "Memory", lambda device: made.append(device) or object())
    none = policy.memory_for(torch.device("cpu"))
    assert none.records(spec_of()) == {}
    assert none.put(spec_of(), "gemm", "ok") is None  # type: ignore[func-returns-value]
    with none.in_flight(spec_of(), "gemm"):
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
    call = call_of(spec_of(torch.device("cpu")))
    plan = policy.Planner(None, tiers, Limits()).plan(call, "config")
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


def room(monkeypatch: pytest.MonkeyPatch, free: int | None, **limits: Any) -> Any:
    asked: list[torch.device] = []
    monkeypatch.setattr(base, "free_bytes", lambda device: asked.append(device) or free)
    made = policy._room(spec_of(), Limits(**limits))
    made.asked = asked  # type: ignore[attr-defined]
    return made


OUT = 4 * 3 * 2 * 4 * 4


def test_room_is_workspace_and_output_within_a_share_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = 2 * MB
    for free, fits in ((2 * (need + OUT), True), (2 * (need + OUT) - 2, False)):
        asked = room(monkeypatch, free, memory_threshold=0.5)
        assert asked(tier("gemm", need), None) is fits
        assert asked(tier("gemm", need), None) is fits
        assert asked.asked == [CUDA]  # once
    assert room(monkeypatch, None)(tier("gemm", 1 << 60), None)
    times = room(monkeypatch, 3 * (need + OUT), memory_threshold=1.0)
    assert times(tier("gemm", need), None, 3)
    assert not times(tier("gemm", need), None, 4)


def test_little_always_fits_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = room(monkeypatch, 0)
    assert asked(tier("gemm", MB), None)
    assert asked.asked == []
    assert not asked(tier("gemm", MB + 1), None)


def test_what_was_measured_counts_if_it_is_more_than_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = room(monkeypatch, 4 * MB, memory_threshold=1.0)
    assert asked(tier("gemm", 2 * MB), Row(peak_bytes=3 * MB))
    assert not asked(tier("gemm", 2 * MB), Row(peak_bytes=4 * MB))
    assert not asked(tier("gemm", 4 * MB), Row(peak_bytes=1))
    assert asked(tier("gemm", 2 * MB), Row())


def test_a_budget_is_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    within = room(monkeypatch, None, budget=1000 + OUT)
    assert within(tier("gemm", 1000), None)
    assert not within(tier("gemm", 1001), None)


def unmeasured(
    *candidates: Candidate, setting: Setting = ROCM, column_bytes: float = 0.0
) -> tuple[str, ...]:
    return choose(Policy("auto"), candidates, setting, column_bytes).unmeasured


A, B = Candidate("triton", estimate_seconds=1.0), Candidate("gemm", estimate_seconds=2.9)


def test_tiers_that_could_be_the_best_are_worth_measuring() -> None:
    slow = replace(B, estimate_seconds=3.0)
    assert unmeasured(A, B, replace(slow, tier="native")) == ("triton", "gemm")
    assert unmeasured(A, B, setting=Setting(on_gpu=False)) == ()
    assert unmeasured() == ()
    known = Candidate("triton", record=Row(seconds=0.5), estimate_seconds=9.0)
    assert unmeasured(known, replace(B, estimate_seconds=1.4)) == ("gemm",)
    assert unmeasured(known, replace(B, estimate_seconds=1.5)) == ()
    assert unmeasured(known, Candidate("gemm")) == ("gemm",)
    assert unmeasured(known, Candidate("gemm", record=Row(seconds=0.9))) == ()
    assert unmeasured(Candidate("triton")) == ("triton",)


def test_what_takes_much_lacks_memory_or_is_the_cpu_is_not_measured_in_passing() -> None:
    much = float(1 << 30) + 1
    assert unmeasured(A, replace(B, workspace_bytes=much - 1)) == ("triton", "gemm")
    assert unmeasured(A, replace(B, workspace_bytes=much)) == ("triton",)
    assert unmeasured(replace(A, workspace_bytes=much)) == ("triton",), "the first one runs anyway"
    # im2col predicts the least, and takes its whole matrix where it gets it
    columns = replace(B, tier="native")
    assert unmeasured(A, columns, column_bytes=much - 1) == ("triton", "native")
    assert unmeasured(A, columns, column_bytes=much) == ("triton",)
    assert unmeasured(A, B, column_bytes=much) == ("triton", "gemm")
    assert unmeasured(A, replace(B, fits=False)) == ("triton",)
    assert unmeasured(A, Candidate("cpu", estimate_seconds=1.0)) == ("triton",)
    trusted = Candidate("current", estimate_seconds=1.0)
    assert unmeasured(trusted, A, setting=NVIDIA) == ()


def spare(setting: Setting, *candidates: Candidate) -> tuple[str, ...]:
    whole = {c.tier: c for c in candidates}
    every = [whole.get(name, Candidate(name, refused="no")) for name in NAMES]
    return choose(Policy("auto"), every, setting).spare


def failed(name: str, *, may_recover: bool = True) -> Candidate:
    return Candidate(name, failed="said", may_recover=may_recover)


def test_what_failed_and_may_recover_is_spare_and_current_comes_last() -> None:
    lost = [failed(name) for name in ("triton", "gemm", "cpu")]
    assert spare(ROCM, *lost) == ("triton", "gemm", "cpu", "current")
    assert spare(ROCM, Candidate("gemm"), lost[0], lost[2]) == ("triton", "cpu", "current")
    gone = [failed(name, may_recover=False) for name in ("triton", "gemm")]
    assert spare(ROCM, *gone, lost[2]) == ("cpu", "current")


FATAL = "HIP error: an illegal memory access"


def test_an_outdated_record_makes_a_tier_spare_unless_it_failed_here_for_good() -> None:
    record = Candidate("gemm", record=Row("error", detail="MIOpen failed"))
    assert spare(ROCM, record) == ("gemm", "current")
    assert spare(ROCM, replace(record, failed="said")) == ("current",)
    for row in (Row("ok"), Row("error", detail=FATAL), Row("hang"), Row("wrong")):
        assert "gemm" not in spare(ROCM, Candidate("gemm", record=row, failed="said"))


def test_the_library_is_no_spare_where_it_may_hang() -> None:
    assert spare(ROCM, failed("vendor")) == ("current",)
    assert spare(NVIDIA, failed("vendor")) == ("vendor", "current")


def test_current_is_spare_unless_it_is_known_to_do_harm() -> None:
    for row in (Row("hang"), Row("wrong"), Row("error", detail=FATAL)):
        assert spare(ROCM, Candidate("current", record=row)) == ()
    assert spare(ROCM, Candidate("current", record=Row("error", detail="x"))) == ("current",)
    assert spare(ROCM, failed("current")) == ("current",)
    assert spare(ROCM, failed("current", may_recover=False)) == ()
    assert choose(Policy("auto"), [Candidate("gemm", refused="no")], ROCM).spare == ()


@pytest.mark.parametrize(
    ("kind", "may_recover"),
    [(Kind.NO_ALGORITHM, True), (Kind.BACKEND, True), (Kind.UNSUPPORTED, True),
     (Kind.WRONG_RESULT, False), (Kind.DEVICE_LOST, False)],
)  # fmt: skip
def test_a_back_ends_failure_may_recover(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, may_recover: bool
) -> None:
    fail("gemm", kind)
    monkeypatch.setattr(policy, "setting_of", lambda call: ROCM)
    monkeypatch.setattr(policy, "memory_for", lambda device: policy.Memory())
    monkeypatch.setattr(base, "free_bytes", lambda device: None)
    plan = planner().plan(call_of(spec_of()), "config", in_full=True)
    assert plan.left_out["gemm"] == "said"
    assert ("gemm" in [t.name for t in plan.spare]) is may_recover
