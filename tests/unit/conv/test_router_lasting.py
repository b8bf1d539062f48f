"""What outlives the process, what does not, and that no call is lost to a record."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import integers, raising
from router_world import Row, World

from hy3d_rocm.conv import faults, forget
from hy3d_rocm.conv.choice import Setting

X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
ROCM_OFF = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)
BLAS = "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul`"
GPU = ("triton", "native", "gemm", "conv2d")


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM_OFF)


def conv() -> torch.Tensor:
    return F.conv3d(X, W)


EXPECTED = conv()


def test_a_glitch_of_the_blas_library_disables_nothing_in_the_next_process(world: World) -> None:
    for name in ("triton", "cpu"):
        world.tiers[name].refuse = "not here"
    acts = {name: world.tiers[name].act for name in ("native", "gemm")}
    for name in acts:
        world.tiers[name].act = raising(lambda: RuntimeError(BLAS))
    with world.protect():
        assert torch.equal(conv(), EXPECTED), "PyTorch as it is set up is the last resort"
    assert world.memory.verdicts() == {}
    for name, act in acts.items():
        world.tiers[name].act = act
    forget()
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
    assert guard.stats.failures == 0


def test_a_tuned_row_keeps_its_time_and_tile_whatever_happens_to_it_later(world: World) -> None:
    tile = "tile 128x128x32w8s2g8"
    world.memory.usual = {"triton": Row(seconds=1e-6, peak_bytes=5, detail=tile)}
    act = world.tiers["triton"].act
    for error in (OSError(28, "No space left on device"), RuntimeError(faults.NO_ENGINE)):
        world.tiers["triton"].act = raising(lambda error=error: error)
        with world.protect():
            assert torch.equal(conv(), EXPECTED)
        forget()
    ((_, row),) = world.memory.rows.items()
    assert (row.verdict, row.seconds, row.peak_bytes) == ("error", 1e-6, 5)
    assert row.detail.endswith(tile)
    world.tiers["triton"].act = act
    for name in (*GPU[1:], "cpu", "current"):
        world.tiers[name].refuse = "not here"
    with world.protect():
        assert torch.equal(conv(), EXPECTED), "rather than give up, the record is put to the test"
    ((_, row),) = world.memory.rows.items()
    assert (row.verdict, row.seconds, row.detail) == ("ok", 1e-6, tile)


@pytest.mark.parametrize("setting", [ROCM, ROCM_OFF])
def test_records_of_errors_at_every_tier_lose_no_call(world: World, setting: Setting) -> None:
    world.setting = setting
    world.memory.usual = {name: Row("error") for name in (*GPU, "cpu", "vendor", "current")}
    for _ in range(2):
        with world.protect() as guard:
            assert torch.equal(conv(), EXPECTED)
        assert guard.stats.raised == 0
        assert not {"vendor", "conv2d"} & world.calls().keys()
        for name in ("triton", "native", "gemm"):
            world.tiers[name].act = raising(lambda: RuntimeError(BLAS))
        forget()


def test_a_vendor_failure_with_nothing_else_left_is_the_vendors_own_exception(
    world: World,
) -> None:
    world.setting = ROCM
    world.memory.usual = {name: Row("hang") for name in (*GPU, "cpu")}
    world.memory.usual["vendor"] = Row(seconds=1e-3)
    world.tiers["vendor"].act = raising(lambda: RuntimeError(faults.MIOPEN_UNKNOWN))
    world.tiers["current"].act = raising(lambda: RuntimeError(faults.MIOPEN_UNKNOWN))
    for _ in range(2):
        with world.protect(), pytest.raises(RuntimeError, match="miopenStatusUnknownError"):
            conv()


@pytest.mark.parametrize("verdict", ["hang", "wrong"])
def test_what_hung_or_lied_is_no_last_resort(world: World, verdict: str) -> None:
    world.setting = ROCM
    world.memory.usual = {name: Row(verdict) for name in (*GPU, "cpu", "vendor")}
    with world.protect(), pytest.raises(RuntimeError, match="no tier could run it"):
        conv()
    assert world.calls() == {}


def test_a_slow_first_call_here_is_a_slow_find_for_the_next_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hy3d_rocm.conv.learning.SLOW_SECONDS", 0.05)
    world.setting, plain = ROCM, world.tiers["vendor"].act

    def slow(call: Any) -> torch.Tensor:
        time.sleep(0.2)
        return plain(call)

    world.tiers["vendor"].act = slow
    with world.protect("pin:vendor"):
        conv()
    assert world.memory.verdicts() == {"vendor": "slow-find"}
    forget()
    with world.protect():
        conv()
    assert world.calls() == {"vendor": 1, "triton": 1}


def test_measuring_in_passing_keeps_what_a_row_says_besides_the_time(world: World) -> None:
    world.setting = ROCM
    old = Row("slow-find", first_seconds=90.0, peak_bytes=7, detail="searched long")
    world.memory.usual = {"vendor": old}
    end = time.monotonic() + 30
    with world.protect("vendor-first"):
        while not world.memory.rows and time.monotonic() < end:
            conv()
    row = next(row for (_, tier), row in world.memory.rows.items() if tier == "vendor")
    assert row.seconds is not None
    assert (row.verdict, row.first_seconds, row.peak_bytes) == ("slow-find", 90.0, 7)
    assert row.detail == "searched long"
