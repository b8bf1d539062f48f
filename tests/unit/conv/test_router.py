"""The chain: what fails is computed otherwise, and all else looks as without protect()."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import (
    ScriptedTier,
    SmallNet,
    cpu_tier,
    default_tiers,
    guarded,
    integers,
    raising,
)

from hy3d_rocm import _native, memory
from hy3d_rocm._fallback import INSTALL
from hy3d_rocm.conv import faults, forget, releasing
from hy3d_rocm.conv.errors import DeviceLostError, DeviceMismatchError
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.tiers import CurrentTier, NativeTier

RETRIED = [
    faults.MIOPEN_NO_ALGORITHM, faults.MIOPEN_UNKNOWN, faults.MIOPEN_INTERNAL, faults.NO_ENGINE,
    faults.HIP_OOM, faults.CPU_OOM, faults.BLOCK_ALLOCATOR,
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("nothing_remembered")


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


def test_a_lost_device_is_asked_nothing(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    def trap(*args: Any) -> Any:
        raise AssertionError("the device was asked")

    monkeypatch.setattr("hy3d_rocm.conv.fallback.can_retry", trap)
    monkeypatch.setattr(memory, "free_bytes", trap)
    monkeypatch.setattr(releasing, "release", trap)
    broken = Fault("current", text=faults.ILLEGAL_ACCESS)
    with inject_faults(broken), guarded(), pytest.raises(DeviceLostError):
        F.conv3d(x, integers(3, 2, 3, 3, 3))


def test_a_lost_device_behind_a_vague_status_is_named(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    lost = torch.AcceleratorError(faults.DEVICE_ASSERT)
    monkeypatch.setattr("hy3d_rocm.conv.fallback.ask_device", lambda call: [lost])
    broken = Fault("current", text="cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
    with (
        inject_faults(broken),
        guarded() as guard,
        pytest.raises(DeviceLostError, match="device-side assert") as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert caught.value.__cause__ is lost
    assert guard.stats.failures == 0


def test_a_mismatch_in_disguise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Could not run 'aten::slow_conv3d_forward' with arguments from the 'CUDA' backend."

    def refuse(*args: Any) -> Any:
        raise NotImplementedError(text)

    x, weight = integers(1, 2, 4, 4, 4), integers(3, 2, 3, 3, 3).to("meta")
    mode = protect()
    with mode:
        top = torch.overrides._get_current_function_mode()
        assert top is not None
        with pytest.raises(DeviceMismatchError, match="input on cpu, weight on meta"):
            top.run(
                top.entry_of((x, weight, None, 1, 0, 1, 1), 3), (x, weight, None), refuse, (), {}
            )


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


def test_without_the_c_core_the_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(_native, "available", False)
    broken = [Fault("current"), Fault("native", text=faults.CPU_OOM)]
    with (
        inject_faults(broken),
        protect(tiers=["current", "native", "cpu"]),
        pytest.raises(RuntimeError, match="No suitable algorithm") as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert INSTALL in caught.value.__notes__[0]


def test_without_a_blas_library_the_c_tier_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(_native, "available", True)
    monkeypatch.setattr(_native, "blas_info", lambda: {"available": False, "error": "no file"})
    with (
        inject_faults([Fault("current"), Fault("native")]),
        protect(tiers=["current", "native", "cpu"]),
        pytest.raises(RuntimeError, match="No suitable algorithm") as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert "no BLAS library (no file)" in caught.value.__notes__[0]


@pytest.mark.parametrize("text", RETRIED)
def test_when_every_tier_fails_with_a_known_text_the_caller_sees_it(
    text: str, x: torch.Tensor
) -> None:
    with (
        inject_faults(Fault("*", text=text)) as (fault,),
        guarded() as guard,
        pytest.raises(RuntimeError) as caught,
    ):
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    assert str(caught.value) == text
    assert fault.fired == 3
    assert (guard.stats.failures, guard.stats.raised) == (3, 1)


def test_the_traceback_of_a_final_error_leads_to_the_callers_line(x: torch.Tensor) -> None:
    with inject_faults(Fault("*")), guarded(), pytest.raises(RuntimeError) as caught:
        F.conv3d(x, integers(3, 2, 3, 3, 3))
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
