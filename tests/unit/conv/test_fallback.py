"""One call on its way down the chain: what is told, counted, logged and raised, word by word."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import ScriptedTier, fake_result, integers, raising
from router_world import Row, World

from hy3d_rocm import memory
from hy3d_rocm.conv import faults, releasing
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.errors import DeviceLostError, DeviceMismatchError
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.stats import Event

X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
WHAT = "conv3d 1x2x4x6x6 -> 3, f32"
NO_ALGORITHM = "MIOpen found no suitable algorithm (miopenStatusUnknownError)"
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")


pytestmark = pytest.mark.usefixtures("nothing_remembered")


def failing(text: str = faults.MIOPEN_UNKNOWN, kind: type[Exception] = RuntimeError) -> Any:
    return raising(lambda: kind(text))


def tier(
    name: str, act: Callable[..., torch.Tensor] = fake_result, refuse: str | None = None,
    workspace: int = 0,
) -> ScriptedTier:  # fmt: skip
    made = ScriptedTier(name, act, refuse)
    made.workspace_bytes = lambda spec: workspace  # type: ignore[method-assign]
    return made


def conv() -> torch.Tensor:
    return F.conv3d(X, W)


EXPECTED = conv()


def test_each_step_is_an_event_and_counted() -> None:
    events: list[Event] = []
    tiers = [
        tier("a", failing("miopenStatusUnknownError\nmore"), workspace=5),
        tier("b", refuse="too large", workspace=7), tier("c", workspace=9),
    ]  # fmt: skip
    before = time.perf_counter()
    with protect(tiers=tiers, on_event=events.append) as guard:
        assert torch.equal(conv(), EXPECTED)
    after = time.perf_counter()
    assert [(e.tier, e.outcome, e.detail) for e in events] == [
        ("a", "failed", "miopenStatusUnknownError"), ("b", "skipped", "too large"), ("c", "ok", ""),
    ]  # fmt: skip
    assert {f"{e.op} {e.shape}, {e.dtype}" for e in events} == {WHAT}
    assert all(before <= e.time <= after and 0 <= e.seconds <= after - before for e in events)
    assert events[1].seconds == 0.0
    rows = {row["tier"]: row for row in guard.stats.as_dict()["rows"]}
    counts = ("calls", "failures", "skips", "predicted_bytes")
    assert {name: [row[key] for key in counts] for name, row in rows.items()} == {
        "a": [1, 1, 0, 5], "b": [0, 0, 1, 7], "c": [1, 0, 0, 9],
    }  # fmt: skip
    assert rows["b"]["seconds"] == 0.0
    stats = guard.stats
    assert (stats.calls, stats.recovered, stats.failures, stats.raised) == (1, 1, 1, 0)


def test_an_event_is_said_once_for_each_tier_configuration_and_kind() -> None:
    tiers = [tier("a", failing()), tier("b", refuse="too large"), tier("c")]
    said = f"{NO_ALGORITHM}; from now on: the c double; the b double left out: too large"
    with protect(tiers=tiers) as guard:
        for _ in range(3):
            conv()
        F.conv3d(X[:, :, 1:], W)
    assert guard.stats.lines == [f"{WHAT}: {said}", f"conv3d 1x2x3x6x6 -> 3, f32: {said}"]
    assert tiers[0].calls == 2
    assert guard.stats.recovered == 4


def test_memory_that_ran_out_is_said_with_its_tier_and_until_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    monkeypatch.setattr(releasing, "release", lambda device: 0)
    tiers = [tier("a", failing(faults.HIP_OOM)), tier("b", failing()), tier("c")]
    with protect(tiers=tiers) as guard:
        conv()
    assert guard.stats.lines == [
        f"{WHAT}: the GPU is out of memory (the a double); until this protect() ends: the c double",
        f"{WHAT}: {NO_ALGORITHM}; from now on: the c double",
    ]
    assert guard.stats.failures == 2


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_where_every_tier_fails_the_firsts_own_exception_is_raised_with_a_note() -> None:
    tiers = [tier("a", failing()), tier("b", failing("MIOpen Error: x\nmore")),
             tier("c", refuse="no")]  # fmt: skip
    detail = "the b double: MIOpen Error: x; the c double was left out: no"
    with protect(tiers=tiers) as guard:
        for calls in (1, 2):
            with pytest.raises(RuntimeError, match=r"^miopenStatusUnknownError") as caught:
                conv()
            assert guard.stats.raised == calls
            assert len(notes(caught.value)) == 1
        assert "the a double was left out" in notes(caught.value)[0]
    assert guard.stats.lines == [f"{WHAT}: {NO_ALGORITHM}; nothing else worked: {detail}"]


def test_the_note_names_every_other_tier() -> None:
    tiers = [tier("a", failing()), tier("b", failing("MIOpen Error: x\nmore")),
             tier("c", refuse="no")]  # fmt: skip
    with protect(tiers=tiers), pytest.raises(RuntimeError) as caught:
        conv()
    assert notes(caught.value) == [
        f"hy3d_rocm tried every tier for {WHAT}. the b double: MIOpen Error: x; the c double was"
        " left out: no"
    ]


def test_a_tier_alone_has_no_other() -> None:
    with protect(tiers=[tier("a", failing())]) as guard, pytest.raises(RuntimeError) as caught:
        conv()
    assert notes(caught.value) == [
        f"hy3d_rocm tried every tier for {WHAT}. there was no other tier"
    ]
    assert guard.stats.lines == [
        f"{WHAT}: {NO_ALGORITHM}; nothing else worked: there was no other tier"
    ]


def test_where_every_tier_refuses_a_sentence_says_so() -> None:
    tiers = [tier("a", refuse="no"), tier("b", refuse="too large")]
    with protect(tiers=tiers) as guard, pytest.raises(RuntimeError) as caught:
        conv()
    assert str(caught.value) == (
        f"{WHAT}: no tier could run it. the a double was left out: no; the b double was left out:"
        " too large"
    )
    assert (guard.stats.raised, guard.stats.calls) == (1, 1)


def test_what_nobody_knows_is_raised_with_what_went_before() -> None:
    events: list[Event] = []
    tiers = [tier("a", failing()), tier("b", failing("nobody knows", ValueError)), tier("c")]
    scope = protect(tiers=tiers, on_event=events.append)
    with scope as guard, pytest.raises(ValueError, match=r"^nobody knows") as caught:
        conv()
    assert notes(caught.value) == [
        "hy3d_rocm: raised by the b double; before that the a double failed:"
        f" {faults.MIOPEN_UNKNOWN.splitlines()[0]}"
    ]
    assert [(e.tier, e.outcome) for e in events] == [("a", "failed"), ("b", "raised")]
    assert (guard.stats.raised, guard.stats.failures, tiers[2].calls) == (1, 1, 0)


def test_a_first_tiers_unknown_exception_is_untouched() -> None:
    tiers = [tier("a", failing("nobody knows", ValueError)), tier("b")]
    with protect(tiers=tiers) as guard, pytest.raises(ValueError, match=r"^nobody") as caught:
        conv()
    assert notes(caught.value) == []
    assert (guard.stats.raised, guard.stats.failures) == (1, 0)


UNSUPPORTED = "\"slow_conv3d\" not implemented for 'Half'"


def test_what_the_first_does_not_support_is_the_callers_and_below_it_is_passed_over() -> None:
    scope = protect(tiers=[tier("a", failing(UNSUPPORTED)), tier("b")])
    with scope as guard, pytest.raises(RuntimeError, match="not implemented"):
        conv()
    assert (guard.stats.raised, guard.stats.failures) == (1, 0)
    with protect(tiers=[tier("a", failing()), tier("b", failing(UNSUPPORTED)), tier("c")]) as guard:
        conv()
    assert (guard.stats.raised, guard.stats.failures) == (0, 2)


def test_memory_may_be_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "release", lambda device: pytest.fail("was emptied"))
    tiers = [tier("a", failing(faults.HIP_OOM)), tier("b")]
    with protect(tiers=tiers, on_oom="raise") as guard, pytest.raises(RuntimeError, match="HIP"):
        conv()
    assert (guard.stats.raised, guard.stats.failures) == (1, 0)
    with protect(tiers=[tier("a", failing()), tier("b")], on_oom="raise"):
        conv()


@pytest.mark.parametrize(
    ("text", "kind"),
    [(faults.DEVICE_MISMATCH, DeviceMismatchError), (faults.ILLEGAL_ACCESS, DeviceLostError)],
)
def test_errors_of_a_device_are_sentences_and_end_the_call(
    text: str, kind: type[Exception]
) -> None:
    tiers = [tier("a", failing(text)), tier("b")]
    with protect(tiers=tiers) as guard, pytest.raises(kind) as caught:
        conv()
    assert str(caught.value).startswith(f"{WHAT}: ")
    assert str(caught.value.__cause__) == text
    if kind is DeviceMismatchError:
        assert "(all on cpu when hy3d_rocm saw them)" in str(caught.value)
    assert (guard.stats.raised, guard.stats.failures, tiers[1].calls) == (1, 0, 0)


@pytest.mark.parametrize(("freed", "calls"), [(0, 1), (383, 1), (384, 2), (10**6, 2)])
def test_a_tier_is_tried_again_where_its_output_has_become_free(
    monkeypatch: pytest.MonkeyPatch, freed: int, calls: int
) -> None:
    released: list[torch.device] = []
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    monkeypatch.setattr(releasing, "release", lambda device: released.append(device) or freed)
    assert EXPECTED.nbytes == 384
    tiers = [tier("a", failing(faults.HIP_OOM)), tier("b", failing(faults.HIP_OOM)), tier("c")]
    with protect(tiers=tiers):
        assert torch.equal(conv(), EXPECTED)
    assert [t.calls for t in tiers] == [calls, 1, 1]
    assert released == [torch.device("cpu")]


def test_after_the_second_try_went_well_the_first_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    monkeypatch.setattr(releasing, "release", lambda device: 10**6)
    made = tier("a", failing(faults.HIP_OOM))

    def once(call: Any) -> torch.Tensor:
        if made.calls == 1:
            raise RuntimeError(faults.HIP_OOM)
        return fake_result(call)

    made.act = once
    with protect(tiers=[made, tier("b")]) as guard:
        for _ in range(3):
            assert torch.equal(conv(), EXPECTED)
    assert made.calls == 4
    assert (guard.stats.failures, guard.stats.recovered, guard.stats.lines) == (1, 0, [])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, ROCM)


def test_a_tier_that_no_shape_can_use_is_left_out_with_one_line(world: World) -> None:
    world.tiers["triton"].act = failing("libtriton.so", ImportError)
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
        F.conv3d(X[:, :, 1:], W)
    assert guard.stats.lines == [
        "the triton double is left out until the process ends: ImportError: libtriton.so"
    ]
    assert world.tiers["triton"].calls == 1


def test_a_fixed_order_breaks_no_tier() -> None:
    made = tier("triton", failing("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"))
    with protect(tiers=[made, tier("b")]) as guard:
        for frames in (4, 3):
            F.conv3d(X[:, :, :frames], W)
        F.conv3d(X[:, :, :, 1:], W)
    assert made.calls == 3
    assert not any("until the process ends" in line for line in guard.stats.lines)


def test_what_all_failed_before_gets_another_chance_and_is_mended(world: World) -> None:
    act = world.tiers["triton"].act
    for name in ("triton", "native", "gemm", "cpu", "current"):
        world.tiers[name].act = failing("MIOpen Error: x")
    with world.protect(), pytest.raises(RuntimeError, match="MIOpen Error"):
        conv()
    world.tiers["triton"].act = act
    before = world.tiers["triton"].calls
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
    assert world.tiers["triton"].calls == before + 1
    assert guard.stats.raised == 0


def test_a_fallback_of_a_brief_plan_keeps_who_was_preferred(world: World) -> None:
    world.setting = Setting(on_gpu=True, current="vendor")
    world.tiers["current"].act = failing(faults.NO_ENGINE)
    with world.protect() as guard:
        assert torch.equal(conv(), EXPECTED)
    assert guard.stats.recovered == 1
    assert guard.stats.lines == [
        f"{WHAT}: the back-end found no engine; from now on: the vendor double"
    ] or guard.stats.lines[0].startswith(f"{WHAT}: the back-end found no engine; from now on: ")


def test_the_first_call_of_the_library_is_tried_under_its_own_name(world: World) -> None:
    world.setting = Setting(on_gpu=True, is_rocm=True, current="native")
    world.memory.usual["conv2d"] = Row(seconds=1e-9)
    with world.protect("pin:conv2d"):
        for _ in range(2):
            conv()
    assert world.memory.log == ["trying conv2d", "run conv2d", "tried conv2d", "run conv2d"]


def test_a_line_goes_to_the_log_as_well(caplog: pytest.LogCaptureFixture) -> None:
    scope = protect(tiers=[tier("a", failing()), tier("b")])
    with caplog.at_level(logging.WARNING, "hy3d_rocm"), scope:
        conv()
    assert [record.getMessage() for record in caplog.records] == [
        f"{WHAT}: {NO_ALGORITHM}; from now on: the b double"
    ]
