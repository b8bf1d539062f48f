"""protect(policy=...) on a machine of which only the decisions are real."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import subprocess
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import integers, raising
from router_world import Row, World

from hy3d_rocm.conv import faults, forget, releasing
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.errors import DeviceLostError
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.stats import Event
from hy3d_rocm.conv.tiers import base

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


@pytest.mark.parametrize("policy", ["auto", "safe"])
@pytest.mark.parametrize("setting", [ROCM, ROCM_OFF])
def test_an_unproven_vendor_shape_never_runs_here_whatever_else_fails(
    world: World, policy: str, setting: Setting
) -> None:
    world.setting = setting
    for broken in ("triton", "gemm", "native"):
        with world.protect(policy):
            assert torch.equal(conv(), EXPECTED)
        world.tiers[broken].act = raising(lambda: RuntimeError(faults.MIOPEN_INTERNAL))
    with world.protect(policy):
        assert torch.equal(conv(), EXPECTED)
    assert world.tiers["cpu"].calls > 0
    hanging = {"vendor", "conv2d"} | ({"current"} if setting.current == "vendor" else set())
    assert not hanging & world.calls().keys()


def test_a_proven_vendor_shape_runs_first_and_its_first_call_is_on_record(world: World) -> None:
    world.memory.usual["vendor"] = Row(seconds=1e-6)
    with world.protect() as guard:
        for _ in range(3):
            assert torch.equal(conv(), EXPECTED)
    runs = ["trying vendor", "run vendor", "tried vendor", "run vendor", "run vendor"]
    assert world.memory.log == runs
    assert guard.stats.recovered == 0
    assert world.calls() == {"vendor": 3}


def test_a_record_of_a_first_call_is_cleared_when_it_raises(world: World) -> None:
    world.memory.usual["vendor"] = Row(seconds=1e-6)
    world.tiers["vendor"].act = raising(lambda: RuntimeError(faults.MIOPEN_UNKNOWN))
    with world.protect():
        assert torch.equal(conv(), EXPECTED)
    assert world.memory.log[:3] == ["trying vendor", "tried vendor", "put vendor error"]


NO_ALGORITHM = [RuntimeError(faults.MIOPEN_UNKNOWN), RuntimeError(faults.NO_ENGINE)]
PASSING = [
    RuntimeError("a text that nobody knows"), TypeError("our own mistake"), AssertionError(),
    KeyError("triton"), NotImplementedError("no"), OSError(28, "No space left on device"),
    RuntimeError(faults.MIOPEN_INTERNAL), ImportError("libtriton.so"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul`"),
    subprocess.CalledProcessError(1, ["gcc", "main.c"]), ValueError("a wrong tile"),
    json.JSONDecodeError("Expecting value", "", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    "error", [*NO_ALGORITHM, *PASSING], ids=lambda error: f"{type(error).__name__} {error}"[:30]
)
def test_a_failing_tier_is_replaced_and_recorded_if_the_next_process_would_meet_the_same(
    world: World, error: Exception
) -> None:
    act, world.tiers["triton"].act = world.tiers["triton"].act, raising(lambda: error)
    with world.protect() as guard:
        for _ in range(3):
            assert torch.equal(conv(), EXPECTED)
    assert world.tiers["triton"].calls == 1
    lasts = error in NO_ALGORITHM
    assert world.memory.verdicts() == ({"triton": "error"} if lasts else {})
    assert (guard.stats.failures, guard.stats.recovered, guard.stats.raised) == (1, 3, 0)
    forget()  # a new process
    world.tiers["triton"].act = act
    with world.protect() as guard:
        conv()
    assert world.tiers["triton"].calls == (1 if lasts else 2)
    assert guard.stats.recovered == 0


class InterruptProcessingException(Exception):  # noqa: N818  # ComfyUI's name, up to 0.3
    pass


@pytest.mark.parametrize("tier", ["triton", "gemm", "native", "cpu", "vendor"])
@pytest.mark.parametrize(
    "cancel",
    [InterruptProcessingException(), concurrent.futures.CancelledError(), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_a_cancel_inside_a_tier_passes_unchanged(
    world: World, tier: str, cancel: BaseException
) -> None:
    world.memory.usual["vendor"] = Row(seconds=1e-6)
    world.tiers[tier].act = raising(lambda: cancel)
    with pytest.raises(type(cancel)) as caught, world.protect(f"pin:{tier}"):
        conv()
    assert caught.value is cancel
    assert world.memory.verdicts() == {}


@pytest.mark.parametrize("lie", ["zeros", "nan", "twice", "shape"])
def test_a_lying_tier_is_found_at_its_first_result_and_the_call_repeated(
    world: World, lie: str
) -> None:
    results = {
        "zeros": torch.zeros_like(EXPECTED), "twice": 2 * EXPECTED, "shape": EXPECTED[:, :1],
        "nan": torch.full_like(EXPECTED, float("nan")),
    }  # fmt: skip
    world.tiers["triton"].act = lambda call: results[lie].clone()
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
        assert torch.equal(conv(), EXPECTED)
    assert world.tiers["triton"].calls == 1
    assert world.memory.verdicts() == {"triton": "wrong"}
    assert "the triton double" not in world.memory.rows[next(iter(world.memory.rows))].detail
    assert guard.stats.recovered == 2


def test_a_value_that_float16_cannot_hold_is_said_once_and_no_tiers_fault(world: World) -> None:
    x, weight = torch.full((1, 8, 4, 6, 6), 64.0).half(), torch.full((2, 8, 3, 3, 3), 8.0).half()
    with world.protect() as guard:
        for _ in range(2):
            assert bool(F.conv3d(x, weight).isinf().all())
    assert world.memory.verdicts() == {}
    assert len(guard.stats.lines) == 1
    assert "not the back-end's fault" in guard.stats.lines[0]
    assert guard.stats.failures == 0
    with world.protect() as guard:
        F.conv3d(x[..., 1:], weight)
    assert len(guard.stats.lines) == 1, "another shape is said once more"


@pytest.mark.parametrize("tier", ["triton", "vendor"])
def test_a_lost_device_is_recorded_and_the_next_process_goes_round_it(
    world: World, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trap(*args: Any) -> Any:
        raise AssertionError("the device was asked")

    if tier == "vendor":
        world.memory.usual["vendor"] = Row(seconds=1e-6)
    world.tiers[tier].act = raising(lambda: torch.AcceleratorError(faults.ILLEGAL_ACCESS))
    monkeypatch.setattr(releasing, "release", trap)
    with pytest.raises(DeviceLostError, match="restart"), world.protect():
        conv()
    assert world.memory.verdicts() == {tier: "error"}
    assert "memory that is not its own" in next(iter(world.memory.rows.values())).detail
    assert sum(world.calls().values()) == 1, "nothing is retried"
    forget()
    with world.protect():
        assert torch.equal(conv(), EXPECTED)
    assert world.tiers[tier].calls == 1


def test_out_of_memory_is_no_record_and_the_next_tier_computes(world: World) -> None:
    world.tiers["triton"].act = raising(lambda: torch.OutOfMemoryError(faults.HIP_OOM))
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
    assert world.memory.verdicts() == {}
    assert guard.stats.recovered == 1
    with world.protect():
        conv()
    assert world.tiers["triton"].calls == 2, "another scope has other memory"


def test_a_tier_that_failed_gets_another_chance_before_a_call_is_lost(world: World) -> None:
    with world.protect():
        for name in ("triton", "gemm", "native"):
            act, world.tiers[name].act = (
                world.tiers[name].act, raising(lambda: RuntimeError(faults.NO_ENGINE)),
            )  # fmt: skip
        conv()
        world.tiers["cpu"].act = raising(lambda: MemoryError())
        world.tiers["gemm"].act = act
        assert torch.equal(conv(), EXPECTED)


def test_injected_faults_are_no_knowledge(world: World) -> None:
    lies = [Fault("triton", effect="wrong"), Fault("native")]
    with inject_faults(lies), world.protect():
        assert torch.equal(conv(), EXPECTED)
    assert [f.fired for f in lies] == [1, 1]
    assert world.memory.verdicts() == {}


def compiling(world: World) -> None:
    """Has the tier `triton` compile at its first call, as triton/jit.py does."""
    fresh, computed = [True], world.tiers["triton"].act

    def act(call: ConvCall) -> torch.Tensor:
        with base.THREAD.around() if fresh else contextlib.nullcontext():
            time.sleep(0.01 * len(fresh))
            world.memory.log += ["compile"] * len(fresh)
        fresh.clear()
        return computed(call)

    world.tiers["triton"].act = act


def test_a_first_call_that_compiles_on_rocm_is_on_record_and_no_slow_find(world: World) -> None:
    compiling(world)
    with world.protect("pin:triton"):
        for _ in range(2):
            F.conv3d(X, W)
    assert world.memory.log[:4] == ["trying triton", "compile", "tried triton", "run triton"]
    assert world.memory.log.count("trying triton") == 1
    assert "slow-find" not in world.memory.verdicts().values()


def test_what_compiles_is_not_on_record_where_rocm_is_not(world: World) -> None:
    world.setting = NVIDIA_OFF
    compiling(world)
    with world.protect("pin:triton"):
        F.conv3d(X, W)
    assert world.calls() == {"triton": 1}
    assert world.memory.log[:2] == ["compile", "run triton"]


def test_vendor_first_lets_a_child_try_once(world: World) -> None:
    for verdict, first in (("ok", "vendor"), ("slow-find", "vendor"), ("hang", "triton"),
                           ("error", "triton"), ("not-run", "triton")):  # fmt: skip
        forget()
        world.memory.rows.clear()
        world.proofs.clear()
        world.verdict = verdict
        for tier in world.tiers.values():
            tier.calls = 0
        with world.protect("vendor-first") as guard:
            for _ in range(3):
                assert torch.equal(conv(), EXPECTED)
        assert world.proofs == ["vendor"], verdict
        assert world.calls() == {first: 3}, verdict
        assert "a child process tries" in guard.stats.lines[0]


def test_auto_asks_a_child_only_where_nothing_else_on_the_gpu_is_healthy(world: World) -> None:
    with world.protect():
        conv()
    assert world.proofs == []
    for name in ("triton", "gemm", "native"):
        world.tiers[name].refuse = "not here"
    world.verdict = "ok"
    with world.protect():
        assert torch.equal(conv(), EXPECTED)
    assert world.proofs == ["vendor"]
    assert world.calls()["vendor"] == 1
    forget()
    world.memory.rows.clear()
    with world.protect("safe"):
        conv()
    assert world.proofs == ["vendor"]
    assert world.calls()["cpu"] == 1


def test_a_host_may_cancel_while_a_child_tries(world: World) -> None:
    def listen(event: Event) -> None:
        if event.outcome == "probing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), world.protect("vendor-first", on_event=listen):
        conv()


@pytest.mark.parametrize("name", ["current", "vendor", "triton", "native", "gemm", "cpu"])
def test_a_pinned_tier_computes_and_the_others_stand_below_it(world: World, name: str) -> None:
    with world.protect(f"pin:{name}"):
        assert torch.equal(conv(), EXPECTED)
    assert world.calls() == {name: 1}
    world.tiers[name].act = raising(lambda: RuntimeError(faults.MIOPEN_INTERNAL))
    with world.protect(f"pin:{name}"):
        assert torch.equal(conv(), EXPECTED)


def test_policy_and_tiers_together_are_a_sentence() -> None:
    with pytest.raises(ValueError, match="both say which tier comes first"):
        protect(policy="auto", tiers=["cpu"])
    with pytest.raises(ValueError, match="none of 'auto', 'safe', 'vendor-first'"):
        protect(policy="fast")


def test_transforms_are_left_to_pytorch(world: World) -> None:
    for tier in world.tiers.values():
        tier.act = raising(lambda: AssertionError("was routed"))
    with torch.inference_mode(False), torch.no_grad(), world.protect() as guard:
        weight, data = W.clone(), X.clone()
        batched = torch.func.vmap(lambda x: F.conv3d(x, weight))(data[None])
        assert torch.equal(batched[0], EXPECTED)
    assert guard.stats.passed_through == 1


def test_a_policy_holds_with_gradients_too(world: World) -> None:
    with torch.inference_mode(False), torch.enable_grad(), world.protect("pin:gemm") as guard:
        weight = W.clone().requires_grad_()
        result = F.conv3d(X.clone(), weight)
        assert torch.equal(result, EXPECTED)
        result.sum().backward()
    assert world.calls() == {"gemm": 1}
    assert guard.stats.passed_through == 0


def test_nested_scopes_and_threads_keep_their_own_policy(world: World) -> None:
    with world.protect("pin:gemm"):
        with world.protect("pin:triton"):
            conv()
        conv()
    assert world.calls() == {"triton": 1, "gemm": 1}


def test_without_a_gpu_a_policy_is_pytorch_then_its_native_code_then_ours() -> None:
    with inject_faults([Fault("current")]), protect(policy="auto") as guard:
        assert torch.equal(conv(), EXPECTED)
    tiers = [row["tier"] for row in guard.stats.as_dict()["rows"] if row["calls"]]
    assert tiers == ["current", "native"]


def test_what_pytorch_gets_wrong_on_this_cpu_is_computed_otherwise() -> None:
    """oneDNN 3.12 does, on CPUs with AMX: one output column, and columns left over."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 8, 5, generator=generator).half()
    weight = torch.randn(2, 2, 2, 3, generator=generator).half()
    with protect():
        got = F.conv2d(x, weight, stride=(1, 3))
    exact = F.conv2d(x.double(), weight.double(), stride=(1, 3))
    size = F.conv2d(x.double().abs(), weight.double().abs(), stride=(1, 3))
    # docs/numerics.md with K = 12: sums in float32, rounded once to float16.
    slack = 14 * 2.0**-24 * size
    bound = slack + 2.0**-11 * (exact.abs() + slack) + 2.0**-25
    assert bool(((got.double() - exact).abs() <= bound).all())
