"""The tiers one by one, without a GPU: numerics, cutting, refusals, and what they leave alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import differential_tiers as differential
import pytest
import tier_cases
import torch
import torch.nn.functional as F
from places import TESTS
from router_doubles import conv_on_tier, cpu_tier, integers, one_thread
from tier_calls import make_call

from hy3d_rocm import _native
from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import (  # fmt: skip
    TIER_NAMES,
    Limits,
    NativeTier,
    make_tier,
    native,
    windows,
)

SHAPES = TESTS / "shapes" / "video_vae_layers.json"
COUNT, SEED = 150, 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield


@pytest.mark.parametrize("name", ["gemm", "conv2d", "native", "cpu", "staged"])
def test_random_convolutions_stay_within_the_proven_bound(name: str) -> None:
    """Replay: python tests/long/differential_tiers.py --tiers NAME --seed 5 --first INDEX."""
    if name in ("cpu", "staged") and not _native.available:
        pytest.skip("the C core is not built")
    result = differential.run(name, "cpu", SEED, 0, COUNT)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["ran"] >= 100
    assert 0 < result["worst"] <= 1


def some_spec(device: str = "cpu", **changes: Any) -> ConvSpec:
    x, weight = torch.empty(1, 4, 6, 7, 8), torch.empty(6, 2, 3, 3, 3)
    padding = ((2, 0), (1, 1), (0, 1))
    spec = make_call(x, weight, None, 2, padding, 1, 2).spec
    return dataclasses.replace(spec, device=torch.device(device), **changes)


def test_a_spec_survives_json() -> None:
    for spec in (some_spec(), some_spec("cuda:1", dtype=torch.bfloat16, channels_last=True)):
        data = json.loads(json.dumps(spec.to_json()))
        assert ConvSpec.from_json(data) == spec
        assert hash(ConvSpec.from_json(data)) == hash(spec)


def test_flops_are_two_a_product() -> None:
    spec = make_call(torch.empty(2, 4, 5, 5, 5), torch.empty(6, 2, 3, 3, 3), groups=2).spec
    assert spec.flops == 2 * (2 * 6 * 3 * 3 * 3) * (2 * 27)


def test_every_tier_has_a_name_and_an_unknown_one_is_a_sentence() -> None:
    assert [make_tier(name).name for name in TIER_NAMES] == list(TIER_NAMES)
    with pytest.raises(ValueError, match=r"'quick' is no tier; use 'current', .* or 'cpu'"):
        make_tier("quick")


@pytest.mark.parametrize("name", ["vendor", "triton"])
def test_gpu_tiers_refuse_the_cpu_in_words(name: str) -> None:
    call = make_call(torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 3, 3, 3))
    reason = make_tier(name).refusal(call, Limits())
    assert reason is not None
    assert "GPU" in reason
    with pytest.raises(RuntimeError, match=f"the tier '{name}' can't take this convolution: .*GPU"):
        conv_on_tier(make_tier(name), call.x, call.weight)


def test_arguments_that_make_no_convolution_are_sentences() -> None:
    x, weight = torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 3, 3, 3)
    for options, said in (
        ({"padding": ((1, 1), (1, 1))}, "a pair"),
        ({"padding": -1}, "none below zero"),
        ({"groups": 3}, "make no convolution"),
    ):
        with pytest.raises(ValueError, match=said):
            make_call(x, weight, **options)


def test_the_current_tier_takes_padding_that_pytorch_has_no_words_for() -> None:
    x, weight = integers(1, 2, 4, 5, 6), integers(3, 2, 3, 3, 3, seed=1)
    got = conv_on_tier(make_tier("current"), x, weight, None, 1, ((2, 0), (1, 0), (1, 1)))
    padded = F.pad(x, (1, 1, 1, 0, 2, 0))
    assert torch.equal(got, F.conv3d(padded, weight))


def test_a_window_is_the_padded_input_cut_out() -> None:
    """Random padding and boxes; replay by the printed index."""
    for index in range(300):
        rng = random.Random(index)
        case = dataclasses.replace(tier_cases.random_case(SEED, index), dtype=torch.float32)
        if len(case.size) == 2 or case.batch == 0:
            continue
        x, weight, _ = tier_cases.make_tensors(case, SEED, whole=True)
        x = x if x.dim() == 5 else x[None]
        spec = make_call(x, weight, None, case.stride, case.pads, case.dilation, case.groups).spec
        shape = spec.problem
        whole = x
        for axis, pair in enumerate(case.pads):
            pad = [0] * 6
            pad[2 * (2 - axis) : 2 * (3 - axis)] = pair
            whole = F.pad(whole, pad)
        box = tuple(sorted((rng.randrange(n), rng.randrange(n) + 1)) for n in shape.out)
        box = tuple((a, max(b, a + 1)) for a, b in box)
        expected = whole
        for axis, part in enumerate(box):
            first, last = shape.span(axis, part)
            expected = expected.narrow(axis + 2, first + shape.pad_before[axis], last - first)
        assert torch.equal(windows.window(x, shape, box), expected), (index, case, box)


def test_boxes_cover_the_output_once() -> None:
    for steps in itertools.product((1, 2, 3, 7), repeat=3):
        seen = torch.zeros(5, 7, 3)
        for (t0, t1), (h0, h1), (w0, w1) in windows.boxes(((0, 5), (0, 7), (0, 3)), steps):
            assert t1 - t0 <= steps[0]
            assert h1 - h0 <= steps[1]
            assert w1 - w0 <= steps[2]
            seen[t0:t1, h0:h1, w0:w1] += 1
        assert bool((seen == 1).all())


def test_native_is_cut_to_the_budget_and_gives_the_same_sums() -> None:
    x, weight = integers(1, 4, 6, 20, 20), integers(5, 4, 3, 3, 3, seed=1)
    expected = F.conv3d(x, weight, padding=1)
    call = make_call(x, weight, None, 1, 1)
    whole = NativeTier().workspace_bytes(call.spec)
    tried = set()
    for share in (1, 2, 5, 20, 60):
        limits = Limits(budget=call.spec.out_bytes + whole // share)
        call = make_call(x, weight, None, 1, 1, limits=limits)
        assert NativeTier().refusal(call, limits) is None
        tried.add(native._steps(call.spec, whole // share))
        assert torch.equal(NativeTier().run(call), expected)
    assert len(tried) == 5
    limits = Limits(budget=call.spec.out_bytes + whole // 1000)
    assert "one output row" in str(NativeTier().refusal(call, limits))


def flags() -> dict[str, Any]:
    cudnn = torch.backends.cudnn
    return {
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("name", ["gemm", "conv2d", "native", "cpu"])
def test_no_flag_of_the_process_changes(name: str) -> None:
    tier = cpu_tier() if name == "cpu" else make_tier(name)
    x, weight = integers(1, 4, 4, 9, 9, high=1), integers(3, 4, 3, 3, 3, high=1, seed=1)
    before, seen = flags(), []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        """Looks at the flags at each operator that the tier calls."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(flags() == before)
            return func(*args, **(kwargs or {}))

    with Watch():
        got = conv_on_tier(tier, x, weight, None, 1, 1)
    assert torch.equal(got, F.conv3d(x, weight, padding=1))
    assert seen
    assert all(seen)
    assert flags() == before
