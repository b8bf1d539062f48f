"""The self-check: sound results pass for every shape, wrong ones do not, and NaN gets an author."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import one_thread

from hy3d_rocm.conv.call import ConvCall, make_spec
from hy3d_rocm.conv.selfcheck import SAMPLES, SOUND, Finding, check, diagnose

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def small_machine() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield


def make_call(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any
) -> ConvCall:
    ndim = weight.dim() - 2
    values = (
        x, weight, bias, options.get("stride", 1), options.get("padding", 0),
        options.get("dilation", 1), options.get("groups", 1),
    )  # fmt: skip
    spec = make_spec(values, ndim)
    assert spec is not None
    function: Any = F.conv3d if ndim == 3 else F.conv2d
    return ConvCall(spec, x, weight, bias, lambda: function(x, weight, bias, **options))


def random_call(pick: random.Random, dtype: torch.dtype) -> ConvCall:
    generator = torch.Generator().manual_seed(pick.randrange(2**31))
    ndim, groups = pick.choice((2, 3)), pick.choice((1, 1, 2, 3))
    cin, cout = groups * pick.randint(1, 4), groups * pick.randint(1, 3)
    kernel = [pick.randint(1, 3) for _ in range(ndim)]
    options: dict[str, Any] = {
        "stride": [pick.randint(1, 3) for _ in range(ndim)],
        "padding": [pick.randint(0, 2) for _ in range(ndim)],
        "dilation": [pick.randint(1, 2) for _ in range(ndim)],
        "groups": groups,
    }
    if pick.random() < 0.2:
        options.update(stride=1, padding="same")
    size = [pick.randint(5, 8) for _ in range(ndim)]
    batch = [] if pick.random() < 0.2 else [pick.randint(1, 3)]
    draw = lambda *n: torch.randn(n, generator=generator).to(dtype)  # noqa: E731
    bias = draw(cout) if pick.random() < 0.5 else None
    return make_call(draw(*batch, cin, *size), draw(cout, cin // groups, *kernel), bias, **options)


def reference(call: ConvCall) -> torch.Tensor:
    """The exact sums (float64), rounded once."""
    wide = [None if t is None else t.double() for t in call.operands()]
    spec = call.spec
    sides = zip(reversed(spec.pad_before), reversed(spec.pad_after), strict=True)
    padded = F.pad(wide[0], [n for pair in sides for n in pair])  # type: ignore[arg-type]
    function: Any = F.conv3d if spec.ndim == 3 else F.conv2d
    out = function(padded, *wide[1:], spec.stride, 0, spec.dilation, spec.groups)
    result: torch.Tensor = (out if spec.batched else out[0]).to(spec.dtype)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sound_result_of_any_shape_passes(dtype: torch.dtype) -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    for index in range(40):
        call = random_call(pick, dtype)
        # Without oneDNN 3.12, which the check catches: for float16 and bfloat16 on a CPU with AMX
        # it gives garbage where the output has one column and the stride leaves columns over.
        with torch.backends.mkldnn.flags(enabled=False):
            native = call.run_current()
        for tier, result in (("triton", reference(call)), ("native", native)):
            found = check(tier, call, result, pick)
            assert found == SOUND, f"seed {seed}, {index}: {call.spec}: {found}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_that_are_wrong_everywhere_are_found_for_any_shape(dtype: torch.dtype) -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    lies: dict[str, Any] = {
        "zero": torch.zeros_like,
        "twice": lambda r: 2 * r,
        "negative": torch.neg,
        "one more": lambda r: r + 1,
    }
    for index in range(20):
        call = random_call(pick, dtype)
        sound = reference(call)
        for name, lie in lies.items():
            found = check("triton", call, lie(sound), pick)
            assert found.fault == "tier", f"seed {seed}, {index}, {name}: {call.spec}"
            assert "outputs are wrong" in found.detail


def test_a_lie_in_one_tenth_of_the_outputs_is_found() -> None:
    """64 random places miss a tenth with a chance of 0.9^62 = 0.15 %; the seed here does not."""
    generator = torch.Generator().manual_seed(0)
    call = make_call(
        torch.randn(1, 8, 6, 20, 20, generator=generator),
        torch.randn(8, 8, 3, 3, 3, generator=generator), padding=1,
    )  # fmt: skip
    result = call.run_current()
    broken = torch.where(torch.rand(result.shape, generator=generator) < 0.1, result + 1, result)
    assert check("triton", call, broken, random.Random(0)).fault == "tier"


def test_the_rounding_of_the_tiers_own_arithmetic_is_no_lie_and_more_is() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 64, 4, 9, 9, generator=generator)
    weight = torch.randn(16, 64, 3, 3, 3, generator=generator)
    call = make_call(x, weight, padding=1)
    backwards = F.conv3d(x.flip(1), weight.flip(1), padding=1)  # another order of summation
    assert check("triton", call, backwards) == SOUND
    coarse = F.conv3d(x.bfloat16().float(), weight, padding=1)  # a factor was rounded
    assert check("triton", call, coarse).fault == "tier"


def test_winograds_rounding_is_allowed_to_a_library_and_to_nobody_else() -> None:
    """Noise of the data type's unit on the factors, as transforms in that type cause it."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 32, 4, 9, 9, generator=generator)
    weight = torch.randn(16, 32, 3, 3, 3, generator=generator)
    call = make_call(x.half(), weight.half(), padding=1)
    noise = 1 + 2.0**-9 * torch.randn(x.shape, generator=generator)
    noisy = F.conv3d(x.half().float() * noise, weight.half().float(), padding=1).half()
    assert check("vendor", call, noisy) == SOUND
    assert check("triton", call, noisy).fault == "tier"
    for lie in (torch.zeros_like(noisy), 2 * noisy, -noisy, noisy.roll(1, -1)):
        assert check("vendor", call, lie).fault == "tier"


def test_nan_from_finite_input_is_the_tiers_fault_wherever_it_is() -> None:
    call = make_call(torch.ones(1, 4, 6, 30, 30), torch.ones(4, 4, 3, 3, 3), padding=1)
    for value in (float("nan"), float("inf")):
        result = call.run_current()
        result[0, 3, 5, 29, 28] = value  # a single one: hardly ever among the 64
        found = check("triton", call, result)
        assert found.fault == "tier"
        assert "(0, 3, 5, 29, 28)" in found.detail


def test_overflow_of_float16_is_the_precisions_fault() -> None:
    call = make_call(
        torch.full((1, 8, 4, 6, 6), 64.0).half(), torch.full((2, 8, 3, 3, 3), 8.0).half()
    )
    result = call.run_current()
    assert bool(result.isinf().all())
    found = check("triton", call, result)
    assert found.fault == "precision"
    assert "1.106e+05" in found.detail, "27 * 8 * 512"
    assert "bfloat16" in found.detail
    mixed = torch.cat([result[..., :-1], torch.full_like(result[..., -1:], float("nan"))], -1)
    assert check("triton", call, mixed).fault == "precision", "NaN there is no tier's doing"


def test_nan_in_nan_out_is_nobodys_fault() -> None:
    x = torch.ones(1, 4, 6, 9, 9)
    x[0, 0, 3] = float("nan")
    call = make_call(x, torch.ones(4, 4, 3, 3, 3), padding=1)
    assert check("triton", call, call.run_current()) == SOUND
    assert diagnose(call, call.run_current()) == Finding()


def test_no_global_generator_is_touched_and_a_seed_replays() -> None:
    call = make_call(torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3))
    result = call.run_current()
    before = (torch.random.get_rng_state(), random.getstate())
    check("triton", call, result)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()
    found = [check("triton", call, result + 1, random.Random(7)) for _ in range(2)]
    assert found[0] == found[1]
    assert f"of {SAMPLES} outputs" in found[0].detail


def test_autocast_and_empty_results_are_judged_as_pytorch_computes_them() -> None:
    x, weight = torch.randn(1, 8, 5, 6, 6), torch.randn(4, 8, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        call = make_call(x, weight)
        assert call.spec.dtype is torch.bfloat16
        assert check("triton", call, reference(call)) == SOUND
    empty = make_call(x[:0], weight)
    assert check("triton", empty, empty.run_current()) == SOUND
