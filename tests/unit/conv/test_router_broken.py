"""A tier that no shape can use is given up as a whole, not tried at each shape in turn."""

from __future__ import annotations

import subprocess

import pytest
import torch
import torch.nn.functional as F
from router_doubles import integers, raising
from router_world import World

from hy3d_rocm.conv import faults, forget
from hy3d_rocm.conv.choice import Setting

W = integers(3, 2, 3, 3, 3)
ROCM_OFF = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)
BLAS = "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul`"


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM_OFF)


def decode(shapes: int = 8) -> None:
    for extra in range(shapes):
        x = integers(1, 2, 4, 6, 6 + extra)
        assert F.conv3d(x, W).shape == (1, 3, 2, 4, 4 + extra)


class CompilationError(Exception):
    pass


CompilationError.__module__ = "triton.compiler.errors"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ImportError("libtriton.so: cannot open shared object file"), 1),
        (subprocess.CalledProcessError(1, ["gcc", "main.c"]), 1),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), 1),
        (FileNotFoundError(2, "No such file or directory", "gcc"), 1),
        (OSError(28, "No space left on device"), 2),
        (TypeError("function takes exactly 27 arguments (49 given)"), 2),
        (RuntimeError(BLAS), 2),
        (RuntimeError(faults.NO_ENGINE), 8),
        (CompilationError("at 3:4: unsupported"), 8),
        (torch.OutOfMemoryError(faults.HIP_OOM), 8),
    ],
    ids=lambda value: str(value)[:25],
)
def test_shapes_tried_until_a_tier_is_given_up(
    world: World, error: Exception, attempts: int
) -> None:
    world.tiers["triton"].act = raising(lambda: error)
    with world.protect() as guard:
        decode()
    assert world.tiers["triton"].calls == attempts
    assert guard.stats.raised == 0
    if attempts < 8:
        said = [line for line in guard.stats.lines if "left out until the process ends" in line]
        assert len(said) == 1
        assert world.memory.verdicts() == {}
    with world.protect():
        decode(1)
    forget()
    before = world.tiers["triton"].calls
    with world.protect():
        decode(1)
    assert world.tiers["triton"].calls == before + (not world.memory.verdicts())


def test_one_shape_that_fails_again_and_again_gives_up_no_tier(world: World) -> None:
    world.tiers["triton"].act = raising(lambda: TypeError("of one shape"))
    x = integers(1, 2, 4, 6, 6)
    for name in ("native", "gemm"):
        world.tiers[name].refuse = "not here"
    with world.protect() as guard:
        for _ in range(4):
            F.conv3d(x, W)
    assert not any("until the process ends" in line for line in guard.stats.lines)


def test_a_tier_given_up_is_the_last_resort_and_mended_by_what_it_computes(world: World) -> None:
    act = world.tiers["triton"].act
    world.tiers["triton"].act = raising(lambda: TypeError("of every shape"))
    with world.protect():
        decode(2)
    world.tiers["triton"].act = act
    for name in world.tiers.keys() - {"triton"}:
        world.tiers[name].refuse = "not here"
    with world.protect() as guard:
        decode(4)
    assert guard.stats.raised == 0
    for name in world.tiers:
        world.tiers[name].refuse = None
    world.tiers["triton"].calls = 0
    with world.protect():
        F.conv3d(integers(1, 2, 4, 6, 30), W)
    assert world.tiers["triton"].calls == 1


def test_injected_faults_give_up_no_tier(world: World) -> None:
    with faults.inject_faults([faults.Fault("triton", text=BLAS)]), world.protect():
        decode(3)
    with world.protect():
        F.conv3d(integers(1, 2, 4, 6, 30), W)
    assert world.tiers["triton"].calls == 1
