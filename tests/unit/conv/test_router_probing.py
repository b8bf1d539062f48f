"""When a decode lets a child process try the vendor's library, and how long it waits for that."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from router_doubles import integers
from router_world import World

from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.stats import Event

W = integers(3, 2, 3, 3, 3)
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
GPU = ("triton", "native", "gemm", "conv2d")


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM)


def decode(shapes: int = 6) -> None:
    for extra in range(shapes):
        x = integers(1, 2, 4, 6, 6 + extra)
        assert F.conv3d(x, W).shape == (1, 3, 2, 4, 4 + extra)


@pytest.mark.parametrize("verdict", ["hang", "not-run"])
def test_after_a_hang_or_a_child_that_cannot_start_a_decode_tries_no_more(
    world: World, verdict: str
) -> None:
    world.verdict = verdict
    with world.protect("vendor-first") as guard:
        decode()
        with world.protect("vendor-first"):
            decode()
    assert world.proofs == ["vendor"]
    assert len([s for s in guard.stats.lines if "no more child processes" in s]) == 1
    with world.protect("vendor-first"):
        decode()
    assert world.proofs == ["vendor"] * 2, "another decode, another try"


def test_all_probes_of_a_decode_share_one_budget(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    plain = world._prove

    def prove(spec: object, tier: str, cancel: object) -> str:
        nonlocal now
        now += 12.0
        return plain(spec, tier, cancel)  # type: ignore[arg-type]

    monkeypatch.setattr("hy3d_rocm.conv.policy.prove", prove)
    monkeypatch.setattr("hy3d_rocm.conv.learning.time.monotonic", lambda: now)
    world.verdict = "ok"
    with world.protect("vendor-first") as guard:
        decode(10)
    # At 0, 12 and 24 s there are 30 s left of 60, at 36 s there are not.
    assert world.proofs == ["vendor"] * 3
    assert "the 60 s for them are spent" in guard.stats.lines[-1]


def test_a_probe_that_was_cancelled_is_made_up_for_in_the_next_scope(world: World) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def listen(event: Event) -> None:
        if event.outcome == "probing" and not stopped:
            stopped.append(1)
            raise Stop

    stopped: list[int] = []
    world.verdict = "ok"
    with pytest.raises(Stop), world.protect("vendor-first", on_event=listen):
        decode(1)
    assert world.proofs == []
    for _ in range(2):
        with world.protect("vendor-first", on_event=listen):
            decode(1)
    assert world.proofs == ["vendor"]
    assert world.calls() == {"vendor": 2}


@pytest.mark.parametrize("fits", [False, True])
def test_auto_tries_the_library_where_the_others_lack_memory(
    world: World, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hy3d_rocm.memory.free_bytes", lambda device: 1 << 30)
    for name in GPU:
        need = 1 << 40 if name != "gemm" or not fits else 0
        world.tiers[name].workspace_bytes = (  # type: ignore[method-assign]
            lambda spec, need=need: need
        )
        world.tiers[name].refuse = "its workspace needs 1 TiB" if need else None
    world.verdict = "ok"
    with world.protect():
        decode(1)
    assert world.proofs == ([] if fits else ["vendor"])
    assert world.calls() == {"gemm" if fits else "vendor": 1}
