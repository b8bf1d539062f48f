"""The ladder: what fails is computed otherwise, and everything else looks as without protect()."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import (
    ScriptedTier,
    SmallNet,
    cpu_tier,
    default_tiers,
    fake_conv3d,
    guarded,
    integers,
    raising,
)
from torch.overrides import _get_current_function_mode_stack

from hy3d_rocm.conv import faults, forget, memory
from hy3d_rocm.conv import tiers as tiers_module
from hy3d_rocm.conv.errors import DeviceLostError, DeviceMismatchError
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.router import protect
from hy3d_rocm.conv.stats import Event
from hy3d_rocm.conv.tiers import CpuTier, CurrentTier, NativeTier

RETRIED = [
    faults.MIOPEN_NO_ALGORITHM, faults.MIOPEN_UNKNOWN, faults.MIOPEN_INTERNAL, faults.NO_ENGINE,
    faults.HIP_OOM, faults.CPU_OOM, faults.BLOCK_ALLOCATOR,
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    with torch.inference_mode():
        yield
    forget()
    assert _get_current_function_mode_stack() == [], "a mode was left behind"


@pytest.fixture(scope="module")
def net() -> SmallNet:
    return SmallNet()


@pytest.fixture
def x() -> torch.Tensor:
    return integers(2, 2, 4, 6, 6, seed=9)


@pytest.mark.parametrize("call", range(SmallNet.calls))
@pytest.mark.parametrize("text", RETRIED)
@pytest.mark.parametrize("tiers", ["current", "current native"])
def test_a_failure_at_any_call_changes_no_bit_of_exact_data(
    net: SmallNet, x: torch.Tensor, call: int, text: str, tiers: str
) -> None:
    expected = net(x)
    broken = [Fault("current", text=text, first=call, count=1)]
    if "native" in tiers:
        broken.append(Fault("native", text=text))
    with inject_faults(broken), guarded() as guard:
        assert torch.equal(net(x), expected)
    assert broken[0].fired == 1
    assert guard.stats.failures >= 1
    assert guard.stats.raised == 0


@pytest.mark.parametrize("tier", ["native", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_each_tier_returns_shape_dtype_device_and_format_of_the_call(
    tier: str, dtype: torch.dtype
) -> None:
    only = {"native": NativeTier(), "cpu": cpu_tier()}[tier]
    for size, ndim in (((2, 4, 3, 5, 6), 3), ((2, 4, 5, 6), 2)):
        kind = torch.channels_last_3d if ndim == 3 else torch.channels_last
        for last in (False, True):
            data = integers(*size, high=1).to(dtype)
            data = data.contiguous(memory_format=kind) if last else data
            weight = integers(6, 4, *(3,) * ndim, high=1, seed=1).to(dtype)
            conv: Any = F.conv3d if ndim == 3 else F.conv2d
            expected = conv(data.double(), weight.double(), padding=1)
            with protect(tiers=[only]):
                got = conv(data, weight, padding=1)
            # At most 4 * 27 products of ones: whole numbers up to 108 are exact in bfloat16.
            assert torch.equal(got.double(), expected)
            assert (got.dtype, got.device) == (dtype, data.device)
            assert got.is_contiguous(memory_format=kind) == last or got.is_contiguous() != last


@pytest.mark.parametrize("tier", ["native", "cpu"])
def test_real_data_stays_within_the_proven_bound(tier: str) -> None:
    only = {"native": NativeTier(), "cpu": cpu_tier()}[tier]
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(1, 8, 4, 9, 10, generator=generator)
    weight = torch.randn(5, 8, 3, 3, 3, generator=generator)
    bias = torch.randn(5, generator=generator)
    with protect(tiers=[only]):
        got = F.conv3d(data, weight, bias, padding=1)
    wide = [t.double() for t in (data, weight, bias)]
    exact = F.conv3d(*wide, padding=1)
    # |fl(sum) - sum| <= gamma_K sum|x||w| for a sum of K products in any order (Higham, Accuracy
    # and Stability of Numerical Algorithms, 3.1); K products and the bias are K + 1 terms.
    terms = 8 * 27 + 1
    unit = 2.0**-24
    gamma = terms * unit / (1 - terms * unit)
    bound = gamma * F.conv3d(*[t.abs() for t in wide], padding=1)
    assert bool(((got.double() - exact).abs() <= bound).all())


def test_what_failed_is_not_tried_again_until_forgotten(net: SmallNet, x: torch.Tensor) -> None:
    with inject_faults(Fault("current")) as (fault,):
        with guarded() as guard:
            net(x)
            assert fault.fired == net.calls
            net(x)
        with guarded():
            net(x)
        assert fault.fired == net.calls, "the process should have remembered"
        assert forget() == net.calls
        with guarded():
            net(x)
        assert fault.fired == 2 * net.calls
    assert guard.stats.recovered == 2 * net.calls


def test_another_shape_is_another_configuration(net: SmallNet, x: torch.Tensor) -> None:
    with inject_faults(Fault("current")) as (fault,), guarded():
        net(x)
        net(x[:1])
    assert fault.fired == 2 * net.calls


def test_out_of_memory_is_remembered_for_one_scope_only(
    monkeypatch: pytest.MonkeyPatch, net: SmallNet, x: torch.Tensor
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with inject_faults(Fault("current", text=faults.HIP_OOM)) as (fault,):
        for scope in (1, 2):
            with guarded():
                net(x)
                with guarded():  # an inner scope is part of the outer one
                    net(x)
            assert fault.fired == scope * net.calls


def test_out_of_memory_is_forgotten_once_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, net: SmallNet, x: torch.Tensor
) -> None:
    free = 1_000_000
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    with inject_faults(Fault("current", text=faults.HIP_OOM)) as (fault,), guarded():
        net(x)
        net(x)
        assert fault.fired == net.calls
        free += 1_000_000
        net(x)
        assert fault.fired == 2 * net.calls


def test_the_allocator_is_emptied_once_for_each_call_that_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    released = []
    monkeypatch.setattr(memory, "release", lambda device: released.append(1) or 0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    weight = integers(3, 2, 3, 3, 3)
    full = [Fault(tier, text=faults.HIP_OOM) for tier in ("current", "native")]
    with inject_faults(full), guarded():
        F.conv3d(x, weight)
    assert len(released) == 1


def test_the_same_tier_is_tried_again_if_emptying_freed_enough(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(memory, "release", lambda device: 1_000_000)
    weight = integers(3, 2, 3, 3, 3)
    with inject_faults(Fault("current", text=faults.HIP_OOM, count=1)), guarded() as guard:
        F.conv3d(x, weight)
        F.conv3d(x, weight)
    rows = {row["tier"]: row for row in guard.stats.as_dict()["rows"]}
    assert rows["current"]["calls"] == 3
    assert rows["current"]["failures"] == 1
    assert "native" not in rows


def test_exceptions_of_failed_tiers_keep_no_tensor_alive(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(memory, "release", lambda device: 0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    seen: list[weakref.ref[torch.Tensor]] = []

    def act(call: Any) -> torch.Tensor:
        big = torch.zeros(1000)
        seen.append(weakref.ref(big))
        raise RuntimeError(faults.HIP_OOM)

    alive = []

    def last(call: Any) -> torch.Tensor:
        alive.extend(ref() for ref in seen)
        return F.conv3d(call.x, call.weight)

    gc.disable()
    try:
        with protect(tiers=[ScriptedTier("a", act), ScriptedTier("b", act)]):
            with pytest.raises(RuntimeError, match="HIP out of memory") as caught:
                F.conv3d(x, integers(3, 2, 3, 3, 3))
            del caught
        forget()
        with protect(tiers=[ScriptedTier("a", act), ScriptedTier("b", last)]):
            F.conv3d(x, integers(3, 2, 3, 3, 3))
    finally:
        gc.enable()
    assert alive == [None] * 3


def test_an_exception_that_leaves_protect_is_in_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "release", lambda device: 0)
    gc.disable()
    try:
        for texts in ((faults.HIP_OOM,) * 3, (faults.DEVICE_MISMATCH,), ("a shape error",)):
            data = integers(2, 2, 4, 6, 6)
            watch = weakref.ref(data)
            names = ("current", "native", "cpu")
            broken = [Fault(t, text=text) for t, text in zip(names, texts, strict=False)]
            with inject_faults(broken), guarded():
                try:
                    F.conv3d(data, integers(3, 2, 3, 3, 3))
                except RuntimeError:
                    pass
                else:
                    raise AssertionError("nothing was raised")
            del data
            assert watch() is None, texts
            forget()
    finally:
        gc.enable()


def test_when_every_tier_fails_the_first_exception_itself_is_raised(x: torch.Tensor) -> None:
    first = torch.OutOfMemoryError(faults.HIP_OOM)
    tiers = [
        ScriptedTier("a", raising(lambda: first)),
        ScriptedTier("b", raising(lambda: RuntimeError(faults.MIOPEN_UNKNOWN))),
        ScriptedTier("c", raising(MemoryError)),
    ]
    with pytest.raises(torch.OutOfMemoryError) as caught, protect(tiers=tiers):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert caught.value is first
    assert "miopenStatusUnknownError" in first.__notes__[0]
    assert "the c double" in first.__notes__[0]


def test_remembered_tiers_get_another_chance_before_giving_up(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    first = ScriptedTier("a", raising(lambda: RuntimeError(faults.MIOPEN_UNKNOWN)))
    last = ScriptedTier("b", lambda call: F.conv3d(call.x, call.weight))
    with protect(tiers=[first, last]):
        expected = F.conv3d(x, weight)
        last.act = raising(lambda: RuntimeError(faults.NO_ENGINE))
        first.act = lambda call: F.conv3d(call.x, call.weight)
        assert torch.equal(F.conv3d(x, weight), expected)


def test_unclassified_errors_are_the_very_same_object_and_nothing_is_retried(
    x: torch.Tensor,
) -> None:
    class InterruptProcessingException(Exception):  # noqa: N818  # ComfyUI's name
        pass

    for error in (
        RuntimeError("expected scalar type Half but found Float"),
        ValueError(faults.HIP_OOM),
        InterruptProcessingException(),
        KeyboardInterrupt(),
        SystemExit(3),
    ):
        other = ScriptedTier("b", lambda call: call.x)
        for broken in (
            [ScriptedTier("current", raising(lambda e=error: e)), other],
            [ScriptedTier("a", raising(lambda: RuntimeError(faults.NO_ENGINE))),
             ScriptedTier("b", raising(lambda e=error: e)), other := ScriptedTier("c", other.act)],
        ):  # fmt: skip
            forget()
            with pytest.raises(type(error)) as caught, protect(tiers=broken):
                F.conv3d(x, integers(3, 2, 3, 3, 3))
            assert caught.value is error
            assert caught.value.__cause__ is None
            assert other.calls == 0


def test_a_mistake_of_the_caller_reads_exactly_as_without_protect(x: torch.Tensor) -> None:
    weight, bias = integers(3, 2, 3, 3, 3), integers(3)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, integers(3, 4, 3, 3, 3)), {}),
        ((x, integers(3, 2, 9, 9, 9)), {}),
        ((x, weight, bias[:2]), {}),
        ((x, weight.half()), {}),
        ((x, weight, bias.double()), {}),
        ((x, weight), {"stride": 0}),
        ((x, weight), {"stride": (1, 2)}),
        ((x, weight), {"padding": -1}),
        ((x, weight), {"padding": "same", "stride": 2}),
        ((x, weight), {"padding": "some"}),
        ((x, weight), {"groups": 0}),
        ((x, weight), {"groups": 2.0}),
        ((x, weight), {"dilation": "a"}),
        ((x, weight), {"colour": 1}),
        ((x,), {}),
        ((), {}),
        ((x, None), {}),
        ((x[0, 0], weight), {}),
        ((x, weight, bias, 1, 0, 1, 1, 1), {}),
        ((x.to_sparse(), weight), {}),
        ((x.to("meta"), weight), {}),
        ((x.int(), weight.int()), {"padding": 1}),
        ((x[:, :, :0], weight), {}),
    ]
    for tiers in (default_tiers(), default_tiers()[1:]):
        for args, kwargs in wrong:
            try:
                plain: Any = F.conv3d(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  # whatever PyTorch says
                plain = error
            with inject_faults(Fault("*")), guarded(tiers=tiers):
                if isinstance(plain, Exception):
                    with pytest.raises(type(plain)) as caught:
                        F.conv3d(*args, **kwargs)
                    assert str(caught.value) == str(plain), (args, kwargs)
                    assert not hasattr(caught.value, "__notes__")
                    assert caught.value.__context__ is None
                else:
                    F.conv3d(*args, **kwargs)


def test_tensors_on_different_devices_are_a_sentence_and_no_retry(x: torch.Tensor) -> None:
    later = ScriptedTier("b", lambda call: call.x)
    with (
        inject_faults(Fault("current", text=faults.DEVICE_MISMATCH)),
        protect(tiers=[CurrentTier(), later]) as guard,
        pytest.raises(DeviceMismatchError, match=r"resolve_device.*Expected all") as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value.__cause__) == faults.DEVICE_MISMATCH
    assert later.calls == 0
    assert guard.stats.raised == 1


@pytest.mark.parametrize("text", [faults.ILLEGAL_ACCESS, faults.DEVICE_ASSERT])
@pytest.mark.parametrize("tier", ["current", "native", "cpu"])
def test_a_lost_device_is_a_sentence_at_every_tier(x: torch.Tensor, text: str, tier: str) -> None:
    above = {"current": [], "native": ["current"], "cpu": ["current", "native"]}[tier]
    broken = [Fault(t) for t in above]
    broken.append(Fault(tier, text=text, exception=torch.AcceleratorError))
    with inject_faults(broken), guarded(), pytest.raises(DeviceLostError, match="restart"):
        F.conv3d(x, integers(3, 2, 3, 3, 3))


def test_a_tier_that_lies_about_its_result_has_failed(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    expected = F.conv3d(x, weight)
    lies: list[Any] = [expected[:1], expected.double(), expected.to("meta"), None, "a string"]
    for lie in lies:
        forget()
        liar = ScriptedTier("liar", lambda call, lie=lie: lie)
        with protect(tiers=[liar, NativeTier()]) as guard:
            assert torch.equal(F.conv3d(x, weight), expected)
        assert guard.stats.recovered == 1
        assert "it returned" in guard.stats.lines[0]


def test_nan_for_finite_input_is_a_failure_when_asked(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    expected = F.conv3d(x, weight)
    black = ScriptedTier("black", lambda call: torch.full(call.spec.out_size, float("nan")))
    with protect(tiers=[black, NativeTier()], check_finite=True) as guard:
        assert torch.equal(F.conv3d(x, weight), expected)
        assert guard.stats.recovered == 1
        assert bool(F.conv3d(x * float("nan"), weight).isnan().all()), "NaN in, NaN out"
        assert guard.stats.recovered == 2


def test_the_native_tier_is_left_out_where_its_buffer_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    weight = integers(3, 2, 3, 3, 3)
    out = F.conv3d(x, weight, padding=1)
    # One sample's im2col, the result of one sample at a time, and the output.
    columns = 2 * 27 * 4 * 6 * 6 * 4
    need = columns + 2 * out.numel() * 4
    with inject_faults(Fault("current")):
        for budget, fits in ((need, True), (need - 1, False)):
            forget()
            with guarded(budget=budget) as guard:
                assert torch.equal(F.conv3d(x, weight, padding=1), out)
            by_tier = {row["tier"]: row for row in guard.stats.as_dict()["rows"]}
            assert by_tier["native"]["skips"] == (not fits)
            assert ("cpu" in by_tier) == (not fits)
            assert ("budget" in guard.stats.lines[0]) == (not fits)
        for free, fits in ((2 * need, True), (2 * need - 1, False)):
            forget()
            monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
            monkeypatch.setattr(tiers_module, "_SMALL_BYTES", 0)
            with guarded(memory_threshold=0.5) as guard:
                F.conv3d(x, weight, padding=1)
            assert ("free is less" in guard.stats.lines[0]) == (not fits)


def test_the_native_tier_is_not_tried_for_memory_it_just_failed_to_get(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    with (
        torch.backends.mkldnn.flags(enabled=False),  # the current back-end is the native one
        inject_faults(Fault("current", text=faults.CPU_OOM)),
        guarded() as guard,
    ):
        F.conv3d(x, weight)
    tiers = {row["tier"] for row in guard.stats.as_dict()["rows"] if row["calls"]}
    assert tiers == {"current", "cpu"}
    assert "it is the current back-end" in guard.stats.lines[0]


def test_without_the_c_core_the_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hy3d_rocm._core", None)
    broken = [Fault("current"), Fault("native", text=faults.CPU_OOM)]
    with (
        inject_faults(broken),
        protect(),
        pytest.raises(RuntimeError, match="No suitable algorithm") as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert "pip install hy3d-rocm" in caught.value.__notes__[0]


def test_autograd_passes_through_untouched(x: torch.Tensor) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        data = integers(1, 2, 4, 6, 6).requires_grad_()
        weight = integers(3, 2, 3, 3, 3)
        native = ScriptedTier("current", raising(lambda: AssertionError("was routed")))
        with protect(tiers=[native]) as guard:
            F.conv3d(data, weight).sum().backward()
            assert guard.stats.passed_through == 1
            assert data.grad is not None
            with torch.no_grad(), pytest.raises(AssertionError, match="was routed"):
                F.conv3d(data, weight)
        with inject_faults(Fault("current")), guarded(), torch.no_grad():
            F.conv3d(data, torch.nn.Parameter(weight))


def test_transforms_and_forward_mode_derivatives_are_never_retried() -> None:
    weight = integers(3, 2, 3, 3, 3)
    data = integers(1, 2, 4, 6, 6)
    with torch.inference_mode(False), inject_faults(Fault("native")), guarded():
        _, tangent = torch.func.jvp(lambda t: F.conv3d(t, weight), (data,), (data,))
        assert torch.equal(tangent, F.conv3d(data, weight))
        batched = torch.func.vmap(lambda t: F.conv3d(t, weight))(data[None])
        assert torch.equal(batched[0], F.conv3d(data, weight))


def test_autocast_computes_in_its_dtype_on_every_tier() -> None:
    data, weight = integers(1, 2, 3, 6, 6, high=1), integers(3, 2, 3, 3, 3, high=1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.conv3d(data, weight)
        assert expected.dtype == torch.bfloat16
        for tier in (NativeTier(), cpu_tier()):
            with protect(tiers=[tier]):
                got = F.conv3d(data, weight)
                assert got.dtype == torch.bfloat16
                assert torch.equal(got, expected)


def test_only_the_thread_that_entered_is_protected(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    result: list[Any] = []

    def other() -> None:
        with torch.inference_mode():
            result.append(_get_current_function_mode_stack())
            result.append(F.conv3d(x, weight))

    with inject_faults(Fault("current")) as (fault,), guarded() as guard:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert fault.seen == 0
    assert result[0] == []
    assert guard.stats.calls == 0


def test_one_guard_counts_what_several_threads_do(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    guard = guarded()

    def work() -> None:
        with torch.inference_mode(), guard:
            for _ in range(50):
                F.conv3d(x, weight)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guard.stats.calls == 200
    assert sum(row["calls"] for row in guard.stats.as_dict()["rows"]) == 200


def test_nested_scopes_route_once_and_both_count(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    events: list[Event] = []
    with (
        inject_faults(Fault("current")) as (fault,),
        guarded(on_event=events.append) as outer,
        guarded() as inner,
        inner,
    ):
        F.conv3d(x, weight)
    assert fault.fired == 1
    for guard in (outer, inner):
        assert (guard.stats.calls, guard.stats.failures, guard.stats.recovered) == (1, 1, 1)
    assert [(e.tier, e.outcome) for e in events] == [("current", "failed"), ("native", "ok")]


def test_the_inner_scope_decides_and_the_outer_one_is_back_afterwards(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    outer = ScriptedTier("outer", lambda call: fake_result(call))
    inner = ScriptedTier("inner", lambda call: fake_result(call))
    with protect(tiers=[outer]):
        with protect(tiers=[inner]):
            F.conv3d(x, weight)
        F.conv3d(x, weight)
    assert (outer.calls, inner.calls) == (1, 1)


def fake_result(call: Any) -> torch.Tensor:
    out = torch.empty(call.spec.out_size)
    return fake_conv3d(call.x, call.weight, call.bias, 1, 0, 1, 1, out=out)


def test_the_stack_is_clean_after_an_exception(x: torch.Tensor) -> None:
    for error in (KeyboardInterrupt, RuntimeError, ZeroDivisionError):
        with pytest.raises(error), guarded(), guarded(), inject_faults(Fault("cpu")):
            raise error
        assert _get_current_function_mode_stack() == []
        assert not faults.active()
    with guarded() as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 1


def test_no_flag_of_the_process_is_flipped(x: torch.Tensor) -> None:
    def flags() -> tuple[Any, ...]:
        names = dir(torch.backends.cudnn)
        return (
            torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled(),
            torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(),
            F.conv3d, torch.conv3d, torch.nn.Conv3d.forward, names,
        )  # fmt: skip

    before, seen = flags(), []
    last = ScriptedTier("last", lambda call: (seen.append(flags()), fake_result(call))[1])
    with inject_faults(Fault("current")), protect(tiers=[CurrentTier(), last]):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
        seen.append(flags())
    assert [before, before, before] == [*seen, flags()]


def test_each_new_event_is_one_log_line_and_never_repeated(
    caplog: pytest.LogCaptureFixture, net: SmallNet, x: torch.Tensor
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hy3d_rocm"),
        inject_faults(Fault("current", "conv3d", shape="2x2x4x6x6")),
    ):
        for _ in range(3):
            with guarded() as guard:
                net(x)
                net(x)
    assert [r.getMessage() for r in caplog.records] == [
        "conv3d 2x2x4x6x6 -> 3, f32: MIOpen found no suitable algorithm; from now on: PyTorch"
        " native"
    ]
    assert guard.stats.lines == [], "a later scope repeats nothing"


def test_statistics_are_json_and_a_table(net: SmallNet, x: torch.Tensor) -> None:
    with inject_faults(Fault("current", "conv3d")), guarded() as guard:
        net(x)
        net(x)
    state = json.loads(json.dumps(guard.stats.as_dict()))
    assert state["calls"] == 2 * net.calls
    assert state["recovered"] == 2 * (net.calls - 1)
    assert state["failures"] == net.calls - 1
    assert sum(r["calls"] - r["failures"] for r in state["rows"]) == 2 * net.calls
    assert all(r["seconds"] >= r["max_seconds"] > 0 for r in state["rows"] if r["calls"])
    native = [r for r in state["rows"] if r["tier"] == "native"]
    assert native[0]["predicted_bytes"] > 0
    table = guard.stats.table()
    assert "2x2x4x6x6 -> 3" in table
    assert len(table.splitlines()) == 2 + len(state["rows"])
    assert set(guard.stats.tier_seconds()) == {"current", "native"}


def test_events_tell_time_tier_shape_and_outcome(x: torch.Tensor) -> None:
    def slow(call: Any) -> torch.Tensor:
        time.sleep(0.02)
        return fake_result(call)

    events: list[Event] = []
    tiers = [CurrentTier(), ScriptedTier("b", slow, refuse="no"), ScriptedTier("c", slow)]
    start = time.perf_counter()
    with inject_faults(Fault("current")), protect(tiers=tiers, on_event=events.append) as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert [(e.tier, e.outcome) for e in events] == [
        ("current", "failed"), ("b", "skipped"), ("c", "ok"),
    ]  # fmt: skip
    assert events[2].seconds >= 0.02
    assert guard.stats.tier_seconds()["c"] >= 0.02
    assert start <= events[0].time <= events[2].time <= time.perf_counter()
    assert (events[0].op, events[0].shape, events[0].dtype) == ("conv3d", "2x2x4x6x6 -> 3", "f32")


def test_amd_only_enters_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    with protect(when="amd") as guard:
        assert _get_current_function_mode_stack() == []
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 0
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with protect(when="amd") as guard:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert guard.stats.calls == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when": "never"}, "neither 'always' nor 'amd'"),
        ({"on_oom": "ignore"}, "neither 'retry' nor 'raise'"),
        ({"tiers": ["gpu"]}, "'gpu' is no tier"),
        ({"tiers": "cpu"}, "not a list"),
        ({"tiers": []}, "not a list"),
        ({"tiers": ["cpu", "cpu"]}, "twice"),
        ({"budget": -1}, "negative"),
        ({"memory_threshold": 0}, r"not in \(0, 1\]"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        protect(**options)


def test_an_out_of_memory_error_can_be_left_to_the_caller(x: torch.Tensor) -> None:
    weight = integers(3, 2, 3, 3, 3)
    error = torch.OutOfMemoryError(faults.HIP_OOM)
    full = ScriptedTier("full", raising(lambda: error))
    with (
        protect(tiers=[full, NativeTier()], on_oom="raise"),
        pytest.raises(torch.OutOfMemoryError) as caught,
    ):
        F.conv3d(x, weight)
    assert caught.value is error
    with protect(tiers=[full, NativeTier()]) as guard:
        F.conv3d(x, weight)
    assert guard.stats.recovered == 1


def test_the_cpu_tier_is_left_out_where_the_host_has_no_room(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    weight = integers(3, 2, 3, 3, 3)
    need = F.conv3d(x, weight).numel() * 4
    monkeypatch.setattr(tiers_module, "_SMALL_BYTES", 0)
    for free, fits in ((2 * need, True), (2 * need - 1, False)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        with protect(tiers=[cpu_tier()], memory_threshold=0.5) as guard:
            if fits:
                F.conv3d(x, weight)
            else:
                with pytest.raises(RuntimeError, match="on the host"):
                    F.conv3d(x, weight)
        assert guard.stats.raised == (not fits)


def test_leaving_a_scope_on_another_thread_is_a_sentence() -> None:
    guard = guarded()
    said: list[str] = []

    def leave() -> None:
        try:
            guard.__exit__(None, None, None)
        except RuntimeError as error:
            said.append(str(error))

    with guard:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert "another thread" in said[0]


def test_a_forced_tier_that_refuses_says_why(x: torch.Tensor) -> None:
    with (
        pytest.raises(RuntimeError, match=r"no tier could run it.*budget"),
        protect(tiers=["native"], budget=1),
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))


def test_options_of_the_c_conv3d_reach_it(x: torch.Tensor) -> None:
    seen: dict[str, Any] = {}

    def spy(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.update(kwargs)
        return fake_conv3d(*args, **kwargs)

    flag = object()
    tier = CpuTier(threads=2, workspace_limit=1 << 20, cancel=flag, conv3d=spy)
    with protect(tiers=[tier]):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert (seen["threads"], seen["workspace_limit"], seen["cancel"]) == (2, 1 << 20, flag)


def test_the_traceback_of_a_final_error_leads_to_the_callers_line(x: torch.Tensor) -> None:
    with inject_faults(Fault("*")), guarded(), pytest.raises(RuntimeError) as caught:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
