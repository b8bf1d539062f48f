"""Calls that go straight to PyTorch, from the third one on: counted, and otherwise as any other."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from router_doubles import ScriptedTier, fake_result, guarded, integers

from hy3d_rocm import _native
from hy3d_rocm.conv.faults import MIOPEN_NO_ALGORITHM, Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import LOCAL
from hy3d_rocm.conv.stats import Event
from hy3d_rocm.conv.tiers import CurrentTier
from hy3d_rocm.conv.verdicts import VERDICTS

pytestmark = [
    pytest.mark.usefixtures("nothing_remembered"),
    pytest.mark.skipif(
        not (_native.available and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")),
        reason="calls have no key without the C core, and before PyTorch 2.13",
    ),
]
ROW = ("conv3d", "1x2x4x6x6 -> 3", "f32", "current")


@pytest.fixture
def x() -> torch.Tensor:
    return integers(1, 2, 4, 6, 6, seed=9)


@pytest.fixture
def weight() -> torch.Tensor:
    return integers(3, 2, 3, 3, 3)


def straight() -> int:
    """Calls that went straight and are not booked yet."""
    known = LOCAL.modes[-1].known
    assert known is not None
    return sum(calls for _, calls, _, _ in known.take())


def test_the_third_call_goes_straight(x: torch.Tensor, weight: torch.Tensor) -> None:
    expected = F.conv3d(x, weight)
    with torch.no_grad(), guarded():
        for _ in range(5):
            assert torch.equal(F.conv3d(x, weight, None, 1, 0, 1, 1), expected)
        assert straight() == 3


def test_calls_go_straight_where_the_core_finds_no_blas(
    x: torch.Tensor, weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU tier then can't compute; it does not lack memory, which would be asked for again."""
    monkeypatch.setattr(_native, "blas_info", lambda: {"available": False, "error": "no file"})
    with torch.no_grad(), protect():
        for _ in range(5):
            F.conv3d(x, weight)
        assert straight() == 3


def test_statistics_count_them_at_any_time(x: torch.Tensor, weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded() as guard:
        kept = guard.stats
        for calls in range(1, 6):
            F.conv3d(x, weight)
            assert kept.calls == kept.rows[ROW].calls == calls
        before = kept.rows[ROW].seconds
        F.conv3d(x, weight)
        assert kept.tier_seconds()["current"] > before > 0
        F.conv3d(x, weight)
        assert kept.as_dict()["calls"] == kept.as_dict()["rows"][0]["calls"] == 7
        F.conv3d(x, weight)
    assert (kept.calls, kept.rows[ROW].calls) == (8, 8)
    assert 0 < kept.rows[ROW].max_seconds <= kept.rows[ROW].seconds
    assert kept.sources == []


def test_scopes_around_count_them_too(x: torch.Tensor, weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded() as outer:
        with guarded() as inner:
            for _ in range(5):
                F.conv3d(x, weight)
            assert (outer.stats.calls, inner.stats.calls) == (5, 5)
        for _ in range(4):
            F.conv3d(x, weight)
        assert (outer.stats.calls, inner.stats.calls) == (9, 5)


def test_one_that_fails_is_computed_by_the_next_tier(
    x: torch.Tensor, weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = F.conv3d(x, weight)
    plain, broken = torch.conv3d, []

    class Failing(torch.overrides.TorchFunctionMode):
        """Stands for PyTorch's library, below the router."""

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is plain and broken:
                raise RuntimeError(MIOPEN_NO_ALGORITHM)
            return func(*args, **(kwargs or {}))

    events: list[Event] = []
    with torch.no_grad(), Failing(), guarded() as guard:
        for _ in range(4):
            F.conv3d(x, weight)
        assert guard.stats.calls == 4
        broken.append(True)
        assert torch.equal(F.conv3d(x, weight), expected)
        assert torch.equal(F.conv3d(x, weight), expected)
        assert (guard.stats.calls, guard.stats.failures, guard.stats.recovered) == (6, 1, 2)
        row = guard.stats.rows[ROW]
        assert (row.calls, row.failures) == (5, 1)
        assert row.seconds >= row.max_seconds > 0
    assert not events


def test_an_error_of_the_callers_own_passes_with_its_words(
    x: torch.Tensor, weight: torch.Tensor
) -> None:
    failing: list[BaseException] = []

    class Failing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.conv3d and failing:
                raise failing[0]
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Failing(), guarded() as guard:
        for _ in range(4):
            F.conv3d(x, weight)
        for error in (ZeroDivisionError("seven"), KeyboardInterrupt()):
            failing[:] = [error]
            with pytest.raises(type(error)) as caught:
                F.conv3d(x, weight)
            assert caught.value is error
        assert guard.stats.raised == 1
        failing.clear()
        F.conv3d(x, weight)


def test_none_of_its_tensors_is_kept(weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded():
        for _ in range(4):
            x = integers(1, 2, 4, 6, 6)
            out = F.conv3d(x, weight)
        gone = weakref.ref(x), weakref.ref(out)
        del x, out
        assert [ref() for ref in gone] == [None, None]


def test_a_failure_that_is_learnt_elsewhere_stops_it(x: torch.Tensor, weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded() as guard:
        for _ in range(4):
            F.conv3d(x, weight)
        VERDICTS.break_tier("another", "it is broken")
        for _ in range(2):
            F.conv3d(x, weight)
            assert straight() == 0
        F.conv3d(x, weight)
        assert guard.stats.calls == 7


def test_faults_reach_them(x: torch.Tensor, weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded() as guard:
        for _ in range(4):
            F.conv3d(x, weight)
        with inject_faults(Fault("current", count=1)) as (fault,):
            F.conv3d(x, weight)
        assert fault.fired == 1
        assert guard.stats.recovered == 1


def test_gradients_and_autocast_are_not_passed_over() -> None:
    with torch.inference_mode(False), torch.enable_grad(), guarded():
        x, weight = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
        with torch.no_grad():
            for _ in range(4):
                F.conv3d(x, weight)
        needed = weight.clone().requires_grad_()
        assert "RoutedConvolution" in type(F.conv3d(x, needed).grad_fn).__name__
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert F.conv3d(x, weight).dtype is torch.bfloat16
        assert straight() == 2


def test_without_a_reader_every_call_is_looked_at(
    x: torch.Tensor, weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = F.conv3d(x, weight)
    monkeypatch.setattr("hy3d_rocm.conv.router._READER", None)  # as before PyTorch 2.13
    with torch.no_grad(), guarded() as guard:
        for calls in range(1, 6):
            assert torch.equal(F.conv3d(x, weight), expected)
            assert guard.stats.calls == calls
        assert LOCAL.modes[-1].known is None
        with inject_faults(Fault("current")):
            assert torch.equal(F.conv3d(x, weight), expected)
    assert guard.stats.recovered == 1


def test_a_listener_hears_of_each(x: torch.Tensor, weight: torch.Tensor) -> None:
    events: list[Event] = []
    with torch.no_grad(), guarded(on_event=events.append), guarded():
        for _ in range(5):
            F.conv3d(x, weight)
        assert straight() == 0
    assert len(events) == 5


def test_another_tier_than_pytorchs_own_does_not(x: torch.Tensor, weight: torch.Tensor) -> None:
    tier = ScriptedTier("scripted", fake_result)
    with torch.no_grad(), protect(tiers=[tier, CurrentTier()]):
        for _ in range(5):
            F.conv3d(x, weight)
        assert straight() == 0
    assert tier.calls == 5


def test_a_scope_that_is_left_is_collected(x: torch.Tensor, weight: torch.Tensor) -> None:
    with torch.no_grad(), guarded() as guard:
        for _ in range(4):
            F.conv3d(x, weight)
        mode = weakref.ref(LOCAL.modes[-1])
    gc.collect()
    assert mode() is None
    assert guard.stats.calls == 4
