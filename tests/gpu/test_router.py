"""The router on a real GPU: real error texts, real out of memory, predicted against measured bytes.

Skipped where PyTorch sees no CUDA or HIP device; everything else of the router is tested without.
"""

from __future__ import annotations

import math
import subprocess
import sys
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import cpu_tier, guarded, integers

from hy3d_rocm import memory
from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import ConvCall, make_spec
from hy3d_rocm.conv.errors import DeviceMismatchError
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.policy import Memory
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.selfcheck import SOUND, check
from hy3d_rocm.conv.tiers import NativeTier
from hy3d_rocm.conv.verdict_store.store import Store

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA or HIP device on this machine"
)
GPU = torch.device("cuda:0")

CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 5, 6, 7), (6, 4, 3, 3, 3), {"padding": 1}),
    ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3), {"stride": 2}),
    ((1, 4, 9, 9, 9), (6, 4, 3, 3, 3), {"padding": 2, "dilation": 2}),
    ((2, 4, 5, 6, 7), (6, 2, 3, 3, 3), {"groups": 2}),
    ((2, 4, 5, 6, 7), (4, 1, 3, 3, 3), {"groups": 4, "padding": 1}),
    ((2, 4, 5, 6, 7), (6, 4, 1, 1, 1), {}),
    ((1, 4, 5, 6, 7), (6, 4, 3, 2, 2), {"padding": "same"}),
    ((4, 5, 6, 7), (6, 4, 3, 3, 3), {}),
    ((0, 4, 5, 6, 7), (6, 4, 3, 3, 3), {}),
    ((2, 4, 6, 7), (6, 4, 3, 3), {"padding": 1}),
    ((2, 4, 8, 8), (6, 4, 3, 3), {"dilation": 2}),
    ((2, 4, 6, 7), (8, 1, 3, 3), {"groups": 4}),
    ((2, 4, 6, 7), (6, 2, 3, 3), {"groups": 2}),
]


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, nothing_remembered: None) -> None:
    known = Memory(GPU, Store.open(":memory:"))
    monkeypatch.setattr(policy, "_memories", {GPU: known})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tier", ["native", "cpu"])
def test_each_tier_is_exact_on_the_gpu(tier: str, dtype: torch.dtype) -> None:
    only = NativeTier() if tier == "native" else cpu_tier()
    for x_size, w_size, options in CASES:
        # Products of ones, at most 108 of them and a bias: exact in bfloat16 too.
        x, weight = integers(*x_size, high=1), integers(*w_size, high=1, seed=1)
        bias = integers(w_size[0], high=1, seed=2)
        conv: Any = F.conv3d if len(w_size) == 5 else F.conv2d
        expected = conv(x, weight, bias, **options)
        with protect(tiers=[only]) as guard:
            got = conv(*(t.to(GPU, dtype) for t in (x, weight, bias)), **options)
        assert guard.stats.calls == 1
        assert (got.device, got.dtype) == (GPU, dtype)
        assert torch.equal(got.cpu().float(), expected), (x_size, w_size, options)


def test_the_native_tier_takes_what_it_predicts() -> None:
    x, weight = torch.ones(1, 32, 9, 64, 64, device=GPU), torch.ones(64, 32, 3, 3, 3, device=GPU)
    with protect(tiers=["native"]) as guard:
        F.conv3d(x, weight, padding=1)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = F.conv3d(x, weight, padding=1)
        peak = torch.cuda.max_memory_allocated() - before - out.numel() * 4
    predicted = guard.stats.as_dict()["rows"][0]["predicted_bytes"]
    # The allocator rounds each block up to 2 MiB at most.
    assert predicted <= peak + (2 << 20)
    assert peak <= predicted + (4 << 20)


def test_columns_beyond_2_to_the_31_are_right() -> None:
    """The native operators count in 64 bits, so the tier need not refuse large shapes."""
    for x_size, w_size in (
        ((1, 64, 20, 252, 252), (2, 64, 3, 3, 3)),
        ((1, 256, 1024, 1024), (2, 256, 3, 3)),
    ):
        x = integers(*x_size, high=1).to(GPU)
        weight = integers(*w_size, high=1, seed=1).to(GPU)
        elems = math.prod(w_size[1:]) * math.prod(x_size[2:])
        assert elems > 2**31
        if (memory.free_bytes(GPU) or 0) < elems * 6:
            pytest.skip("less GPU memory than the case needs")
        conv: Any = F.conv3d if len(w_size) == 5 else F.conv2d
        expected = conv(x.double(), weight.double(), padding=1)
        with protect(tiers=["native"]):
            got = conv(x, weight, padding=1)
        assert torch.equal(got.double(), expected)
        del x, expected, got


def test_real_mismatches_are_sentences() -> None:
    x, weight = torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 3, 3, 3)
    for a, b in ((x.to(GPU), weight), (x, weight.to(GPU))):
        for enabled in (True, False):
            with (
                torch.backends.cudnn.flags(enabled=enabled),
                guarded() as guard,
                pytest.raises(DeviceMismatchError, match=f"input on {a.device}, weight on"),
            ):
                F.conv3d(a, b)
            assert guard.stats.failures == 0
            with (
                torch.backends.cudnn.flags(enabled=enabled),
                guarded(),
                pytest.raises(DeviceMismatchError),
            ):
                F.conv2d(a[:, :, 0], b[:, :, 0])


def test_real_out_of_memory_ends_on_the_cpu_with_the_same_frames() -> None:
    x = integers(1, 32, 9, 96, 96, high=1).to(GPU)
    weight = integers(8, 32, 3, 3, 3, high=1, seed=1).to(GPU)
    expected = F.conv3d(x, weight, padding=1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(GPU).total_memory
    held = torch.cuda.memory_reserved()
    # The im2col buffer needs 27 times the input: room for four times.
    room = held + 4 * x.numel() * 4 + (32 << 20)
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with torch.backends.cudnn.flags(enabled=False), guarded() as guard:
            got = F.conv3d(x, weight, padding=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(got, expected)
    assert guard.stats.recovered == 1
    assert "until this protect() ends: hy3d_rocm on the CPU" in guard.stats.lines[0]


def test_a_lost_device_is_said_and_not_retried() -> None:
    program = """
import torch, torch.nn.functional as F
from hy3d_rocm.conv import protect, DeviceLostError
x, w = torch.ones(1, 2, 4, 4, 4).cuda(), torch.ones(3, 2, 3, 3, 3).cuda()
with torch.inference_mode(), protect(synchronize=True) as guard:
    try:
        torch.zeros(4).cuda()[torch.tensor([99]).cuda()]
        F.conv3d(x, w)
    except DeviceLostError as error:
        assert "restart ComfyUI" in str(error), error
        assert guard.stats.failures == 0
        print("said")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "said" in done.stdout, done.stderr[-2000:]


def test_channels_last_stays_channels_last() -> None:
    x = integers(1, 4, 5, 6, 7).to(GPU).contiguous(memory_format=torch.channels_last_3d)
    weight = integers(6, 4, 3, 3, 3).to(GPU)
    with inject_faults([Fault("current")]), guarded() as guard:
        out = F.conv3d(x, weight)
    assert out.is_contiguous(memory_format=torch.channels_last_3d)
    assert guard.stats.recovered == 1
    assert math.prod(out.shape) > 0


def tiers_of(guard: Any) -> dict[str, int]:
    rows = guard.stats.as_dict()["rows"]
    return {r["tier"]: r["calls"] - r["failures"] for r in rows if r["calls"] > r["failures"]}


@pytest.mark.skipif(torch.version.hip is not None, reason="on AMD nothing is trusted unproven")
def test_a_healthy_machine_runs_what_it_would_run_anyway() -> None:
    x, weight = integers(1, 16, 5, 32, 32).to(GPU), integers(16, 16, 3, 3, 3).to(GPU)
    expected = F.conv3d(x, weight)
    with protect() as guard:
        for _ in range(20):
            assert torch.equal(F.conv3d(x, weight), expected)
    assert tiers_of(guard) == {"current": 20}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_with_the_library_off_a_layer_is_computed_without_im2col_and_measured(
    dtype: torch.dtype,
) -> None:
    x = integers(1, 64, 9, 64, 64, high=1).to(GPU, dtype)
    weight = integers(64, 64, 3, 3, 3, high=1, seed=1).to(GPU, dtype)
    call = call_of(x, weight)
    # At most 64 * 27 products of ones: whole numbers that float32 sums hold, rounded once.
    expected = F.conv3d(x.double(), weight.double()).to(dtype)
    with torch.backends.cudnn.flags(enabled=False), protect() as guard:
        for _ in range(400):
            got = F.conv3d(x, weight)
        torch.cuda.synchronize()
        F.conv3d(x, weight)
    assert check("triton", call, got) == SOUND
    assert torch.equal(got, expected)
    first = guard.stats.as_dict()["rows"][0]
    assert first["tier"] != "native", guard.stats.table()
    known = policy.memory_for(GPU).records(call.spec)
    assert first["tier"] in known, "it was measured in passing"
    assert guard.stats.raised == guard.stats.failures == 0, guard.stats.lines


def call_of(x: torch.Tensor, weight: torch.Tensor) -> ConvCall:
    spec = make_spec((x, weight, None, 1, 0, 1, 1), weight.dim() - 2)
    assert spec is not None
    function: Any = F.conv3d if spec.ndim == 3 else F.conv2d
    return ConvCall(spec, x, weight, None, lambda: function(x, weight))


def test_the_self_check_counts_beyond_2_to_the_31() -> None:
    if (memory.free_bytes(GPU) or 0) < 16 << 30:
        pytest.skip("less GPU memory than the case needs")
    x = torch.ones(1, 8, 18, 4096, 4096, device=GPU, dtype=torch.bfloat16)
    x[:, :, -1] = 2  # beyond element 2^31 of each channel's view of the whole
    weight = torch.ones(8, 8, 1, 1, 1, device=GPU, dtype=torch.bfloat16)
    assert x.numel() > 2**31
    call, result = call_of(x, weight), torch.full_like(x, 8)
    result[:, :, -1] = 16
    assert check("triton", call, result) == SOUND
    result[:, :, -1] = 8  # one of the 64 places is the last corner
    assert check("triton", call, result, Random(0)).fault == "tier"
    result[:, :, -1] = 16
    result[0, 7, 17, 4095, 4094] = float("nan")
    assert "(0, 7, 17, 4095, 4094)" in check("triton", call, result, Random(1)).detail


def test_a_graph_is_captured_with_the_tier_that_was_chosen() -> None:
    x, weight = integers(1, 16, 5, 16, 16).to(GPU), integers(16, 16, 3, 3, 3).to(GPU)
    expected = F.conv3d(x, weight)
    with torch.backends.cudnn.flags(enabled=False), protect() as guard:
        for _ in range(3):
            F.conv3d(x, weight)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = F.conv3d(x, weight)
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(got, expected)
    assert guard.stats.raised == 0
