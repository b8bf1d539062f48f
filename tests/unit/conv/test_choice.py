"""Which tier is chosen: decisions, estimates, measuring in passing; no GPU."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

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
from hy3d_rocm.conv.learning import OverheadBudget, Watching
from hy3d_rocm.conv.policy import Plan

TIERS = ("current", "vendor", "triton", "gemm", "conv2d", "native", "cpu")
AUTO, SAFE, VENDOR_FIRST = Policy("auto"), Policy("safe"), Policy("vendor-first")
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
ROCM_OFF = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)
NVIDIA = Setting(on_gpu=True, current="vendor")
NVIDIA_OFF = Setting(on_gpu=True, current="native", vendor_on=False)
HOST = Setting(on_gpu=False)


@dataclass(frozen=True)
class Row:
    """Stands for knowledge.store.Record."""

    verdict: str = "ok"
    seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""


# Seconds of a layer, roughly as estimates have them.
USUAL = {"current": 1.0, "vendor": 1.0, "triton": 1.1, "gemm": 2.0, "conv2d": 1.6, "native": 9.0,
         "cpu": 50.0}  # fmt: skip


def candidates(**changes: Candidate | dict[str, object]) -> list[Candidate]:
    """One of each tier with the usual estimate; `changes` by tier."""
    made = []
    for tier in TIERS:
        base = Candidate(tier, estimate_seconds=USUAL[tier])
        made.append(replace(base, **changes.get(tier, {})))  # type: ignore[arg-type]
    return made


def order(policy: Policy, setting: Setting, **changes: dict[str, object]) -> tuple[str, ...]:
    return choose(policy, candidates(**changes), setting).order


def test_on_rocm_no_unproven_vendor_tier_is_in_the_order_under_any_knowledge() -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    for _ in range(2000):
        setting = replace(
            ROCM, current=pick.choice(("vendor", "native", "other")), vendor_on=pick.random() < 0.5
        )
        changes: dict[str, dict[str, object]] = {}
        proven = set()
        for tier in TIERS:
            verdict = pick.choice((None, None, "ok", "slow-find", "hang", "wrong", "error"))
            record = None if verdict is None else Row(verdict, pick.choice((None, 1e-3, 5.0)))
            proven |= {tier} if verdict == "ok" else set()
            changes[tier] = {
                "record": record, "fits": pick.random() < 0.8,
                "refused": "no" if pick.random() < 0.2 else None,
                "failed": "no" if pick.random() < 0.2 else None,
            }  # fmt: skip
        for policy in (AUTO, SAFE):
            chosen = order(policy, setting, **changes)
            calls = {t for t in chosen if setting.calls_vendor(t)}
            assert calls <= proven, f"seed {seed}: {policy.name}, {setting}, {changes}"


def test_healthy_nvidia_is_left_as_it_is() -> None:
    assert order(AUTO, NVIDIA)[0] == "current"
    slow = {"record": Row(seconds=100.0)}
    fast = {"record": Row(seconds=1e-6)}
    assert order(AUTO, NVIDIA, current=slow, triton=fast)[0] == "current"
    assert choose(AUTO, candidates(), NVIDIA).probe is None


@pytest.mark.parametrize("setting", [ROCM_OFF, NVIDIA_OFF])
def test_where_the_library_is_switched_off_im2col_is_the_last_on_the_gpu(
    setting: Setting,
) -> None:
    assert order(AUTO, setting) == ("triton", "gemm", "native", "cpu")
    proven = {"record": Row(seconds=0.9)}
    assert order(AUTO, setting, vendor=proven)[0] == "vendor", "a measured win is used"
    assert order(AUTO, setting, vendor={"record": Row(seconds=5.0)})[0] == "triton"


def test_measured_time_decides_and_an_estimate_has_to_be_much_better() -> None:
    measured = {"record": Row(seconds=1.3)}
    assert order(AUTO, ROCM, gemm=measured)[0] == "gemm", "triton's 1.1 is only an estimate"
    assert order(AUTO, ROCM, native={"record": Row(seconds=9.0)})[0] == "triton"
    both = {"gemm": measured, "triton": {"record": Row(seconds=1.2)}}
    assert order(AUTO, ROCM, **both)[0] == "triton"


def test_what_does_not_fit_stands_behind_what_does_and_before_the_cpu() -> None:
    tight = {"triton": {"fits": False}, "gemm": {"fits": False, "refused": "its workspace"}}
    choice = choose(AUTO, candidates(**tight), ROCM_OFF)
    assert choice.order == ("native", "triton", "gemm", "cpu")
    assert choice.cramped
    assert not choose(AUTO, candidates(), ROCM_OFF).cramped


@pytest.mark.parametrize("verdict", ["hang", "wrong", "error"])
@pytest.mark.parametrize("tier", TIERS[1:])
def test_a_bad_verdict_keeps_a_tier_out_under_every_policy(verdict: str, tier: str) -> None:
    for policy in (AUTO, SAFE, VENDOR_FIRST, Policy("pin", tier)):
        for setting in (ROCM, ROCM_OFF, NVIDIA, NVIDIA_OFF):
            choice = choose(
                policy, candidates(**{tier: {"record": Row(verdict, detail="said so")}}), setting
            )
            assert tier not in choice.order
            assert "said so" in choice.reasons[tier]


def test_a_slow_find_is_for_vendor_first_only() -> None:
    slow = {"record": Row("slow-find", seconds=0.1)}
    assert "vendor" not in order(AUTO, ROCM, vendor=slow)
    assert "vendor" not in order(SAFE, ROCM, vendor=slow)
    assert order(VENDOR_FIRST, ROCM, vendor=slow)[0] == "vendor"


def test_a_child_is_asked_only_where_the_policy_or_need_says_so() -> None:
    assert choose(VENDOR_FIRST, candidates(), ROCM).probe == "vendor"
    assert choose(VENDOR_FIRST, candidates(), NVIDIA).probe is None, "cuDNN is trusted"
    assert choose(AUTO, candidates(), ROCM).probe is None, "triton is healthy"
    broken: dict[str, dict[str, object]] = {
        tier: {"failed": "no kernel"} for tier in ("triton", "gemm", "native")
    }
    assert choose(AUTO, candidates(**broken), ROCM).probe == "vendor"
    assert choose(SAFE, candidates(**broken), ROCM).probe is None
    hung = {**broken, "vendor": {"record": Row("hang")}}
    assert choose(AUTO, candidates(**hung), ROCM).probe is None
    assert choose(AUTO, candidates(**hung), ROCM).order == ("cpu",)


def test_safe_asks_for_a_proof_on_nvidia_too() -> None:
    assert order(SAFE, NVIDIA)[0] == "triton"
    assert order(SAFE, NVIDIA, vendor={"record": Row(seconds=0.5)})[0] == "vendor"


def test_a_pinned_tier_is_first_even_where_it_is_slow_and_unproven() -> None:
    for tier in TIERS:
        for setting in (ROCM, ROCM_OFF, NVIDIA, NVIDIA_OFF, HOST):
            chosen = order(Policy("pin", tier), setting, **{tier: {"record": Row(seconds=1e9)}})
            assert chosen[0] == tier, (tier, setting)
            assert len(chosen) > 1 or tier == "cpu", "the others stay below it"


def test_on_a_cpu_tensor_the_order_is_as_given() -> None:
    gone: dict[str, dict[str, object]] = {t: {"refused": "needs a GPU"} for t in TIERS[1:3]}
    for policy in (AUTO, SAFE, VENDOR_FIRST):
        assert order(policy, HOST, **gone) == ("current", "native", "cpu", "gemm", "conv2d")


def test_every_tier_is_in_the_order_or_has_a_reason() -> None:
    verdicts = (None, "ok", "hang")
    settings = (ROCM, ROCM_OFF, NVIDIA, NVIDIA_OFF, HOST)
    policies = (AUTO, SAFE, VENDOR_FIRST, *(Policy("pin", t) for t in TIERS))
    for policy, setting, v, t in itertools.product(policies, settings, verdicts, verdicts):
        choice: Choice = choose(
            policy,
            candidates(vendor={"record": v and Row(v)}, triton={"record": t and Row(t)}),
            setting,
        )
        assert set(choice.order) | set(choice.reasons) == set(TIERS)
        assert not set(choice.order) & set(choice.reasons)
        assert choice.order[-1] == "cpu" or policy.pinned == "cpu" or not setting.on_gpu


@pytest.mark.parametrize("text", ["fast", "pin", "pin:", "pin:gpu", "", None, 3])
def test_a_wrong_policy_is_a_sentence(text: object) -> None:
    with pytest.raises(ValueError, match=r"protect: policy="):
        parse_policy(text, TIERS)


def test_policies_are_read() -> None:
    assert [parse_policy(t, TIERS) for t in ("auto", "safe", "vendor-first")] == [
        AUTO, SAFE, VENDOR_FIRST,
    ]  # fmt: skip
    assert parse_policy("pin:gemm", TIERS) == Policy("pin", "gemm")


# 128 -> 128 channels, 3x3x3, 17x320x320, bf16: a layer of a video VAE.
VOXELS = 17 * 320 * 320
LAYER = Work(
    "bf16", 2.0 * 128 * 128 * 27 * VOXELS, 2.0 * 2 * 128 * VOXELS, 2.0 * 128 * VOXELS,
    2.0 * 27 * 128 * VOXELS, 27, 3, 128,
)  # fmt: skip


def baseline_seconds(tier: str, work: Work) -> float | None:
    """The estimate while nothing has been measured."""
    return Rates().seconds(tier, work)


def test_estimates_put_im2col_behind_the_tiers_without_it() -> None:
    seconds = {tier: baseline_seconds(tier, LAYER) for tier in TIERS}
    assert all(value is not None and value > 0 for value in seconds.values())
    ranked = sorted(("triton", "gemm", "native", "cpu"), key=lambda t: seconds[t] or math.inf)
    assert ranked == ["triton", "gemm", "native", "cpu"]


def test_estimates_follow_what_was_measured_on_other_shapes() -> None:
    rates = Rates()
    before = rates.seconds("gemm", LAYER)
    assert before == baseline_seconds("gemm", LAYER)
    small = LAYER._replace(flops=LAYER.flops / 8, moved_bytes=LAYER.moved_bytes / 8)
    base = baseline_seconds("triton", small)
    assert base is not None
    rates.learn("triton", small, 4 * base)
    assert rates.seconds("triton", small) == pytest.approx(4 * base, rel=1e-12)
    assert rates.seconds("gemm", LAYER) == pytest.approx(4 * (before or 0), rel=1e-12)
    assert rates.seconds("cpu", LAYER) == baseline_seconds("cpu", LAYER)
    for nonsense in (0.0, -1.0, math.inf, math.nan):
        rates.learn("triton", small, nonsense)
    assert rates.seconds("triton", small) == pytest.approx(4 * base, rel=1e-12)
    assert rates.seconds("gemm", LAYER._replace(dtype="f32")) == baseline_seconds(
        "gemm", LAYER._replace(dtype="f32")
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch_of(budget: OverheadBudget, others: list[tuple[str, float | None]]) -> Watching:
    worth = (("triton", None), *others)
    tiers: Any = tuple(SimpleNamespace(name=name) for name, _ in worth)
    spec: Any = None  # nothing is written to the store
    plan = Plan(tiers, Setting(on_gpu=True), "triton", unmeasured=worth)
    return Watching(spec, budget, plan)


def decode(watches: list[Watching], clock: Clock, times: dict[str, float], calls: int) -> list[str]:
    """Runs layers in turn; returns the tier of each call. Times are learnt one call late, as from
    a GPU's events."""
    ran, late = [], []
    for index in range(calls):
        watch = watches[index % len(watches)]
        for other, tier, seconds in late:
            other.told(tier, seconds)
        late.clear()
        timed = watch.to_time()
        tier = timed or watch.chosen
        clock.now += times[tier]
        if timed is not None:
            late.append((watch, tier, times[tier]))
        ran.append(tier)
    return ran


@pytest.mark.parametrize("guess", [0.5, 2.0, None])
def test_measuring_in_passing_stays_within_two_percent_and_one_surprise(
    guess: float | None,
) -> None:
    times = {"triton": 1.0, "gemm": 2.0, "conv2d": 1.2}
    clock = Clock()
    budget = OverheadBudget(clock)
    others: list[tuple[str, float | None]] = [("conv2d", guess), ("gemm", guess)]
    watches = [watch_of(budget, others) for _ in range(3)]
    ran = decode(watches, clock, times, 3000)
    extra = sum(times[tier] - times["triton"] for tier in ran)
    # A first run of a tier whose guess was too low costs more than was allowed for it, once.
    surprises = sum(max(0.0, times[t] - times["triton"]) for t, _ in others) * len(watches)
    assert extra <= 0.02 * clock.now + (surprises if guess == 0.5 else 0)
    for tier in ("triton", "conv2d"):
        found = [seconds for w in watches if (seconds := w.seconds(tier)) is not None]
        assert found == pytest.approx([times[tier]] * len(found))
        assert any(tier in w._trials and w._trials[tier].is_done for w in watches)


def test_nothing_is_measured_on_a_layer_that_runs_few_times() -> None:
    clock = Clock()
    budget = OverheadBudget(clock)
    clock.now = 1e6
    watch = watch_of(budget, [("gemm", 1.0)])
    assert [watch.to_time() for _ in range(3)] == [None] * 3


def test_a_tier_that_failed_in_passing_is_not_asked_again() -> None:
    clock = Clock()
    watch = watch_of(OverheadBudget(clock), [("gemm", 1.0)])
    clock.now = 1e6
    assert [watch.to_time() for _ in range(4)][-1] == "triton"
    for _ in range(3):
        watch.told("triton", 1.0)
    assert watch.to_time() == "gemm"
    watch.failed("gemm")
    assert watch.is_done
    assert watch.to_time() is None
    assert (watch.seconds("triton"), watch.seconds("gemm")) == (1.0, None)


def test_deciding_needs_no_torch() -> None:
    program = "import sys; from hy3d_rocm.conv import choice; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
