"""The choice of tiers, rule by rule: who is left out and why, who stands where, who is probed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from route_rates import Rates

from hy3d_rocm.conv.choice import (
    Candidate,
    Choice,
    Policy,
    Setting,
    Work,
    choose,
    parse_policy,
)

TIERS = ("current", "vendor", "triton", "native", "gemm", "conv2d", "cpu")
AUTO, SAFE, VENDOR_FIRST = Policy("auto"), Policy("safe"), Policy("vendor-first")
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
NVIDIA = Setting(on_gpu=True, current="vendor")
UNPROVEN = "the vendor library is not proven for this shape here (hy3d-rocm tune does that)"


@dataclass(frozen=True)
class Row:
    verdict: str = "ok"
    seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""


def measured(seconds: float) -> dict[str, object]:
    return {"record": Row(seconds=seconds)}


def chosen(policy: Policy, setting: Setting, **changes: dict[str, object]) -> Choice:
    """Each tier estimated at a second, but for `changes`."""
    made = [Candidate(tier, estimate_seconds=1.0) for tier in TIERS]
    return choose(policy, [replace(c, **changes.get(c.tier, {})) for c in made], setting)  # type: ignore[arg-type]


def test_policies_are_refused_with_what_there_is() -> None:
    known = "'auto', 'safe', 'vendor-first', 'pin:<tier>'"
    for wrong in ("fast", "pin", "vendor-first ", "PIN:gemm", None, 3):
        with pytest.raises(ValueError) as caught:
            parse_policy(wrong, TIERS)
        assert str(caught.value) == f"protect: policy={wrong!r} is none of {known}"
    for wrong in ("pin:", "pin:<tier>", "pin:gpu", "pin:gemm:x"):
        with pytest.raises(ValueError) as caught:
            parse_policy(wrong, TIERS)
        assert str(caught.value) == (
            f"protect: policy={wrong!r} pins no tier; after 'pin:' stands one of {', '.join(TIERS)}"
        )
    assert parse_policy("pin:a:b", ("a:b",)) == Policy("pin", "a:b")


@pytest.mark.parametrize(
    ("setting", "trusts"),
    [(NVIDIA, True), (ROCM, False), (replace(NVIDIA, vendor_on=False), False),
     (replace(ROCM, vendor_on=False), False)],
)  # fmt: skip
def test_only_a_library_that_is_on_and_not_amds_is_trusted(setting: Setting, trusts: bool) -> None:
    assert setting.trusts_vendor is trusts


def test_who_ends_in_the_vendors_library() -> None:
    for tier in TIERS:
        assert ROCM.calls_vendor(tier) == (tier in ("current", "vendor", "conv2d"))
        other = replace(ROCM, current="native")
        assert other.calls_vendor(tier) == (tier in ("vendor", "conv2d"))
        assert not Setting(on_gpu=False, current="vendor").calls_vendor(tier)


def first(**changes: dict[str, object]) -> str:
    """Which of gemm and triton comes first on ROCm; triton is measured at 4 s."""
    usual: dict[str, object] = {"record": Row("ok", 4.0), "estimate_seconds": 0.1}
    order = chosen(AUTO, ROCM, **{"triton": usual, "gemm": {}, **changes}).order
    return next(tier for tier in order if tier in ("triton", "gemm"))


def test_only_healthy_calls_were_measured_and_estimates_are_doubted() -> None:
    assert first(gemm={"estimate_seconds": None}) == "triton", "no estimate is endless"
    assert first(gemm={"estimate_seconds": 2.6}) == "gemm", "1.5 times 2.6 s"
    assert first(gemm={"estimate_seconds": 2.7}) == "triton"
    assert first(gemm={"record": Row("ok", 3.9), "estimate_seconds": 9.0}) == "gemm"
    assert first(gemm={"record": Row("slow-find", 3.9), "estimate_seconds": 9.0}) == "gemm"
    assert first(gemm={"record": Row("odd", 3.9), "estimate_seconds": 9.0}) == "triton"
    assert first(gemm={"record": Row("ok"), "estimate_seconds": 2.6}) == "gemm"
    assert first(gemm={"record": Row("ok", 0.0), "estimate_seconds": 9.0}) == "gemm"
    assert Candidate("gemm", record=Row("hang", 4.0)).seconds is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"refused": "no", "failed": "f", "record": Row("hang")}, "no"),
        ({"failed": "f", "record": Row("hang")}, "f"),
        ({"refused": "no", "failed": "f", "fits": False}, "f"),
        ({"record": Row("hang")}, "it hung before"),
        ({"record": Row("hang", detail="at 3 s")}, "it hung before: at 3 s"),
        ({"record": Row("wrong", detail="x")}, "its result was wrong before: x"),
        ({"record": Row("error", detail="x")}, "it failed before: x"),
    ],
)
def test_the_reason_of_a_tier_that_is_left_out(change: dict[str, object], reason: str) -> None:
    choice = chosen(AUTO, ROCM, gemm=change)
    assert choice.reasons["gemm"] == reason
    assert "gemm" not in choice.order
    assert "gemm" not in chosen(Policy("pin", "gemm"), ROCM, gemm=change).order


def test_what_lacks_only_memory_stays_in_the_order() -> None:
    choice = chosen(AUTO, ROCM, gemm={"refused": "too large", "fits": False})
    assert choice.order == ("triton", "native", "gemm", "cpu")
    assert choice.cramped


def test_unproven_tiers_of_the_library_are_left_out_with_these_words() -> None:
    choice = chosen(AUTO, ROCM)
    assert choice == Choice(
        ("triton", "native", "gemm", "cpu"),
        {"current": UNPROVEN, "vendor": UNPROVEN, "conv2d": UNPROVEN},
    )
    slow = {"record": Row("slow-find", 0.5)}
    said = "the vendor library searches long at this shape's first call"
    assert chosen(AUTO, ROCM, vendor=slow).reasons["vendor"] == said
    assert chosen(SAFE, NVIDIA, vendor=slow).reasons["vendor"] == said
    assert chosen(VENDOR_FIRST, ROCM, vendor=slow).order[0] == "vendor"
    assert chosen(VENDOR_FIRST, ROCM, vendor={"record": Row("odd")}).reasons["vendor"] == UNPROVEN
    assert chosen(SAFE, NVIDIA).reasons["conv2d"] == UNPROVEN
    assert "conv2d" in chosen(AUTO, NVIDIA).order
    assert "conv2d" not in chosen(AUTO, replace(NVIDIA, vendor_on=False)).order


def test_of_current_and_what_it_is_one_goes() -> None:
    proven = {"vendor": measured(0.5), "current": measured(0.5)}
    rocm = chosen(AUTO, ROCM, **proven)
    assert rocm.reasons["current"] == "it is what the tier vendor calls"
    assert rocm.order[0] == "vendor"
    assert chosen(AUTO, NVIDIA).reasons == {"vendor": "it is what the tier current calls"}
    native = replace(NVIDIA, current="native")
    assert chosen(AUTO, native).reasons == {"current": "it is what the tier native calls"}
    assert chosen(AUTO, replace(NVIDIA, current="other")).reasons == {}
    assert chosen(AUTO, Setting(on_gpu=False, current="native")).reasons == {}
    alone = chosen(AUTO, native, native={"failed": "f"})
    assert "current" in alone.order
    pinned = chosen(Policy("pin", "current"), native)
    assert pinned.reasons == {"native": "it is what the tier current calls"}
    assert pinned.order[0] == "current"


def test_the_users_own_setting_is_first_where_it_is_trusted() -> None:
    fast = {"gemm": measured(0.01)}
    other = replace(NVIDIA, current="other")
    assert chosen(AUTO, NVIDIA, **fast).order[:2] == ("current", "gemm")
    assert chosen(AUTO, other, **fast).order[:2] == ("current", "gemm")
    assert chosen(AUTO, replace(other, is_rocm=True), **fast).order[0] == "gemm"
    assert chosen(SAFE, other, **fast).order[0] == "gemm"
    assert chosen(AUTO, replace(NVIDIA, current="native"), **fast).order[0] == "gemm"
    cramped = chosen(AUTO, NVIDIA, current={"fits": False}, **fast)
    assert cramped.order[0] == "gemm"
    assert cramped.order[-2:] == ("current", "cpu")


def test_vendor_first_puts_the_library_first_and_the_rest_by_cost() -> None:
    fast = {"gemm": measured(0.01), "vendor": measured(9.0)}
    rest = ("gemm", "triton", "native", "conv2d", "cpu")
    assert chosen(VENDOR_FIRST, NVIDIA, **fast).order == ("current", *rest)
    rocm = chosen(VENDOR_FIRST, ROCM, **fast)
    assert rocm.order == ("vendor", "gemm", "triton", "native", "cpu")
    native = replace(ROCM, current="native")
    assert chosen(VENDOR_FIRST, native, **fast).order[0] == "vendor"
    assert chosen(VENDOR_FIRST, native, current=measured(0.005), **fast).order[0] == "vendor"
    full = {**fast, "vendor": {"record": Row(seconds=9.0), "fits": False}}
    assert chosen(VENDOR_FIRST, ROCM, **full).order == (
        "gemm", "triton", "native", "vendor", "cpu",
    )  # fmt: skip


def test_the_cpu_is_last_and_memory_comes_before_time() -> None:
    fast = {"cpu": measured(1e-6), "gemm": measured(0.01)}
    assert chosen(AUTO, ROCM, **fast).order == ("gemm", "triton", "native", "cpu")
    full = {**fast, "gemm": {"record": Row(seconds=0.01), "fits": False}}
    assert chosen(AUTO, ROCM, **full).order == ("triton", "native", "gemm", "cpu")
    pinned = chosen(Policy("pin", "gemm"), ROCM, **full)
    assert pinned.order[0] == "gemm"


def test_on_the_host_the_order_is_as_given_with_what_lacks_memory_behind() -> None:
    host = Setting(on_gpu=False)
    order = ("current", "vendor", "triton", "native", "cpu", "gemm", "conv2d")
    assert chosen(AUTO, host, cpu=measured(1e-6), conv2d=measured(1e-6)).order == order
    full = chosen(AUTO, host, current={"fits": False}, gemm={"fits": False})
    assert full.order == ("vendor", "triton", "native", "cpu", "current", "conv2d", "gemm")
    assert chosen(Policy("pin", "conv2d"), host).order[0] == "conv2d"


GONE: dict[str, dict[str, object]] = {t: {"failed": "f"} for t in ("triton", "native", "gemm")}
FULL: dict[str, dict[str, object]] = {t: {"fits": False} for t in ("triton", "native", "gemm")}


@pytest.mark.parametrize(
    ("policy", "setting", "changes", "probed"),
    [
        (AUTO, ROCM, {}, False),
        (AUTO, ROCM, GONE, True),
        (AUTO, ROCM, FULL, True),
        (AUTO, ROCM, {**FULL, "gemm": {}}, False),
        (AUTO, ROCM, {**GONE, "conv2d": measured(1.0)}, False),
        (SAFE, ROCM, GONE, False),
        (Policy("pin", "gemm"), ROCM, GONE, False),
        (VENDOR_FIRST, ROCM, {}, True),
        (VENDOR_FIRST, ROCM, {"vendor": {"fits": False}}, False),
        (VENDOR_FIRST, ROCM, {"vendor": {"refused": "no"}}, False),
        (VENDOR_FIRST, ROCM, {"vendor": {"failed": "no"}}, False),
        (VENDOR_FIRST, ROCM, {"vendor": {"record": Row("hang")}}, False),
        (VENDOR_FIRST, ROCM, {"vendor": {"record": Row("odd")}}, False),
        (VENDOR_FIRST, ROCM, {"vendor": measured(1.0)}, False),
        (VENDOR_FIRST, NVIDIA, {}, False),
        (VENDOR_FIRST, replace(NVIDIA, vendor_on=False, current="native"), {}, True),
        (VENDOR_FIRST, Setting(on_gpu=False), {"vendor": {"failed": "no"}}, False),
    ],
)
def test_who_is_probed(
    policy: Policy, setting: Setting, changes: dict[str, dict[str, object]], probed: bool
) -> None:
    assert chosen(policy, setting, **changes).probe == ("vendor" if probed else None)


def test_without_a_vendor_tier_nothing_is_probed() -> None:
    choice = choose(VENDOR_FIRST, [Candidate("cpu")], ROCM)
    assert choice == Choice(("cpu",), {})


WORK = Work("f32", 8e12, 3e11, 6e11, 9e11, 4, 2, 64)


@pytest.mark.parametrize(
    ("tier", "work", "seconds"),
    [
        ("vendor", WORK, 1.00001),
        ("current", WORK, 1.00001),
        ("triton", WORK, 1.05001),
        ("conv2d", WORK, 5.00002),
        ("gemm", WORK, 13.00004),
        ("native", WORK, 8.60001),
        ("cpu", WORK, 65.0),
        ("vendor", WORK._replace(moved_bytes=9e11), 3.00001),
        ("vendor", WORK._replace(dtype="f16"), 1.00001),
        ("vendor", WORK._replace(dtype="bf16", flops=4e13), 2.00001),
        ("vendor", WORK._replace(dtype="f64"), 8 / 0.3 + 1e-5),
        ("gemm", WORK._replace(out_bytes=0.0), 2.00004),
        ("gemm", WORK._replace(out_bytes=0.0, group_channels=8), 8.00004),
        ("gemm", WORK._replace(out_bytes=0.0, group_channels=0), 64.00004),
        ("conv2d", WORK._replace(out_bytes=0.0, group_channels=8), 1.50002),
    ],
)
def test_an_estimate_is_this_roofline(tier: str, work: Work, seconds: float) -> None:
    assert baseline_seconds(tier, work) == pytest.approx(seconds, rel=1e-12)


def baseline_seconds(tier: str, work: Work) -> float | None:
    """The estimate while nothing has been measured."""
    return Rates().seconds(tier, work)


def learnt(*measurements: tuple[str, str, float]) -> Rates:
    """(tier, dtype, multiple of the estimate)."""
    rates = Rates()
    for index, (tier, dtype, multiple) in enumerate(measurements):
        work = WORK._replace(dtype=dtype, flops=WORK.flops * (index + 1))
        rates.learn(tier, work, multiple * (baseline_seconds(tier, work) or 0.0))
    return rates


def test_factors_are_geometric_means_of_a_tier_and_type() -> None:
    rates = learnt(("gemm", "f32", 2.0), ("gemm", "f32", 8.0), ("gemm", "f16", 3.0))
    half = WORK._replace(dtype="f16")
    base = baseline_seconds("gemm", half)
    assert base is not None
    assert rates.seconds("gemm", half) == pytest.approx(3 * base)
    assert rates.seconds("gemm", WORK) == pytest.approx(4 * 13.00004)


def test_the_same_measurement_counts_once() -> None:
    rates = Rates()
    for _ in range(3):
        rates.learn("triton", WORK, 2 * 1.05001)
    rates.learn("triton", WORK, 8 * 1.05001)
    assert rates.seconds("triton", WORK) == pytest.approx(4 * 1.05001)


def test_a_tier_nobody_measured_is_as_the_other_tiers_of_the_gpu_and_type() -> None:
    rates = learnt(
        ("gemm", "f32", 2.0), ("triton", "f32", 8.0), ("cpu", "f32", 100.0), ("gemm", "f16", 50.0)
    )
    assert rates.seconds("vendor", WORK) == pytest.approx(4 * 1.00001)
    assert rates.seconds("cpu", WORK) == pytest.approx(100 * 65.0)
    alone = learnt(("cpu", "f32", 100.0))
    assert alone.seconds("vendor", WORK) == baseline_seconds("vendor", WORK)
    assert learnt(("gemm", "f32", 2.0)).seconds("cpu", WORK) == 65.0


def test_time_that_is_none_teaches_nothing() -> None:
    rates = Rates()
    for seconds in (0.0, -1.0, math.inf, math.nan):
        rates.learn("gemm", WORK, seconds)
    for tier in TIERS:
        assert rates.seconds(tier, WORK) == baseline_seconds(tier, WORK)
    rates.learn("gemm", WORK, 1e-12)
    tiny = rates.seconds("gemm", WORK)
    assert tiny == pytest.approx(1e-12)
    assert rates.seconds("gemm", WORK._replace(dtype="f16")) == baseline_seconds(
        "gemm", WORK._replace(dtype="f16")
    )
