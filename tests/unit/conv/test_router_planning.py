"""What the router itself gets wrong - a question, a plan, a check - never costs a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import integers
from router_world import Row, World

from hy3d_rocm import memory
from hy3d_rocm.conv import faults, selfcheck
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.errors import DeviceLostError
from hy3d_rocm.conv.stats import Event

X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
ROCM_OFF = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM_OFF)


def conv() -> torch.Tensor:
    return F.conv3d(X, W)


EXPECTED = conv()


def failing(error: Exception) -> Any:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("question", ["refusal", "workspace_bytes"])
def test_a_tier_that_cannot_be_asked_is_refused_with_what_it_said(
    world: World, question: str
) -> None:
    setattr(world.tiers["triton"], question, failing(ValueError("triton.__spec__ is None")))
    with world.protect() as guard:
        for _ in range(2):
            assert torch.equal(conv(), EXPECTED)
    assert world.calls() == {"native": 2}
    for name in world.tiers.keys() - {"triton"}:
        world.tiers[name].refuse = "not here"
    with world.protect() as guard, pytest.raises(RuntimeError, match="__spec__ is None"):
        conv()
    assert guard.stats.raised == 1


def test_a_tier_without_a_label_is_called_by_its_name(world: World) -> None:
    world.tiers["triton"].act = failing(RuntimeError(faults.NO_ENGINE))
    world.tiers["native"].label = failing(KeyError("x"))  # type: ignore[method-assign]
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
    assert guard.stats.lines[0].endswith("from now on: native")


@pytest.mark.parametrize("where", ["setting_of", "memory_for", "work_of"])
def test_a_plan_that_fails_leaves_the_call_to_pytorch_and_says_so_once(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = AttributeError("module 'torch._C' has no attribute '_select_conv_backend'")
    monkeypatch.setattr(f"hy3d_rocm.conv.policy.{where}", failing(error))
    with world.protect() as guard:
        for _ in range(3):
            assert torch.equal(conv(), EXPECTED)
    (line,) = guard.stats.lines
    assert "the router failed (AttributeError" in line
    assert guard.stats.calls == 3


def test_a_device_that_is_lost_while_planning_is_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = torch.AcceleratorError(faults.ILLEGAL_ACCESS)
    monkeypatch.setattr(memory, "free_bytes", failing(lost))
    for tier in world.tiers.values():
        tier.workspace_bytes = lambda spec: 2 << 20  # type: ignore[method-assign]
    with world.protect(), pytest.raises(DeviceLostError, match="restart"):
        conv()


def test_a_device_that_is_lost_while_the_chain_asks_for_memory_is_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tiers["triton"].act = failing(torch.OutOfMemoryError(faults.HIP_OOM))
    lost = torch.AcceleratorError(faults.ILLEGAL_ACCESS)
    monkeypatch.setattr(memory, "free_bytes", failing(lost))
    with world.protect(), pytest.raises(DeviceLostError, match="restart"):
        conv()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(faults.HIP_OOM), NotImplementedError("aminmax"), KeyError(1)]
)
def test_a_check_that_fails_itself_keeps_the_result_and_says_so_once(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selfcheck, "check", failing(error))
    with world.protect() as guard:
        for _ in range(6):
            assert torch.equal(conv(), EXPECTED)
    assert world.calls() == {"triton": 6}
    assert (guard.stats.failures, guard.stats.raised) == (0, 0)
    (line,) = guard.stats.lines
    assert "was not checked" in line
    assert world.memory.verdicts() == {}


def test_each_shape_whose_check_fails_is_said_with_the_checks_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def check(tier: str, *_: Any, **__: Any) -> None:
        seen.append(tier)
        raise KeyError("aminmax")

    monkeypatch.setattr(selfcheck, "check", check)
    with world.protect() as guard:
        for _ in range(2):
            conv()
            F.conv3d(X[..., 1:], W)
    assert set(seen) == {"triton"}
    assert len(guard.stats.lines) == 2
    assert all("aminmax" in line for line in guard.stats.lines)


def test_a_check_is_made_up_for_at_the_next_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tiers["triton"].act = lambda call: torch.zeros_like(EXPECTED)
    with world.protect():
        with monkeypatch.context() as patch:
            patch.setattr(selfcheck, "check", failing(torch.OutOfMemoryError(faults.HIP_OOM)))
            conv()
        assert torch.equal(conv(), EXPECTED)
    assert world.memory.verdicts() == {"triton": "wrong"}


def test_a_device_lost_during_the_check_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = torch.AcceleratorError(faults.ILLEGAL_ACCESS)
    monkeypatch.setattr(selfcheck, "check", failing(lost))
    with world.protect(), pytest.raises(DeviceLostError, match="restart"):
        conv()


def test_what_a_listener_raises_while_a_plan_is_made_is_the_callers(world: World) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def listen(event: Event) -> None:
        if event.outcome == "probing":
            raise Stop

    world.setting = Setting(on_gpu=True, is_rocm=True, current="vendor")
    world.memory.usual = {"triton": Row("error")}
    with pytest.raises(Stop), world.protect("vendor-first", on_event=listen):
        conv()
