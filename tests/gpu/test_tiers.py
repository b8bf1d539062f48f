"""Every tier on a real GPU: numerics, beyond 2^31 elements, predicted against measured bytes.

    python -m pytest tests/gpu/test_tiers.py --durations=15

Skipped where PyTorch sees no CUDA or HIP device. The large cases need up to 40 GB of GPU memory and
are skipped, saying so, where there is less. Triton's compiler takes most of the time; its random
cases share it among processes.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import differential_tiers as differential
import pytest
import torch
import torch.nn.functional as F
from router_doubles import cpu_tier, integers
from tier_calls import make_call

from hy3d_rocm import _native, memory
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import Tier, VendorTier, make_tier, windows
from hy3d_rocm.conv.triton import launch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA or HIP device on this machine"
)
GPU = torch.device("cuda:0")
TIERS = ("vendor", "triton", "gemm", "conv2d", "native", "cpu")
COUNT, SEED = 200, 11


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The vendor library switched off, as ComfyUI does on RDNA3 and newer; no TF32; no tiles that
    were tuned on this machine."""
    monkeypatch.setattr(launch, "config_for", lambda *given: None)
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), torch.inference_mode():
        yield
    torch.cuda.empty_cache()


def tier_of(name: str) -> Tier:
    return cpu_tier() if name == "cpu" else make_tier(name)


def run(tier: Tier, call: ConvCall) -> torch.Tensor:
    """A call that the tier has to take, asked as the router asks."""
    reason = tier.refusal(call, call.limits)
    assert reason is None, reason
    return tier.run(call)


@pytest.mark.parametrize("name", TIERS)
def test_random_convolutions_are_right(name: str) -> None:
    """Replay: python tests/long/differential_tiers.py --device cuda --tiers NAME --seed 11."""
    if name == "cpu" and not _native.available:
        pytest.skip("the C core is not built")
    if name == "triton":
        workers = min(10, os.cpu_count() or 1)
        result = differential.spawn(name, "cuda", SEED, 0, COUNT, workers)
    else:
        result = differential.run(name, "cuda", SEED, 0, COUNT)
    assert not result["failed"], "\n".join(result["failed"][:5])
    # conv2d refuses the 2D ones, a quarter.
    assert result["ran"] >= COUNT // 2, result["refused"]


def spot_check(call: ConvCall, out: torch.Tensor, points: int = 200) -> None:
    """Random outputs, a tenth of them at the end, against exact whole-number sums."""
    shape = call.spec.problem
    x, out = windows.lifted(call.x), windows.lifted(out)
    weight = windows.lifted(call.weight)
    rows = weight.reshape(shape.groups, shape.cout // shape.groups, -1).double()
    rng = random.Random(9)
    for index in range(points):
        n, *point = (rng.randrange(size) for size in (shape.batch, *shape.out))
        if index < points // 10:  # the very last one, and others within the last three lines
            sizes = (shape.batch, *shape.out)
            n, *point = (max(0, size - 1 - rng.randrange(3) * (index > 0)) for size in sizes)
        t, h, w = ((p, p + 1) for p in point)
        taps = windows.window(x[n : n + 1], shape, (t, h, w))
        exact = (rows @ taps.reshape(shape.groups, -1, 1).double()).flatten()
        got = out[n, :, point[0], point[1], point[2]].double()
        assert float((got - exact).abs().max()) < 0.5, (index, n, point)


# Input, weight, padding; input and output have more than 2^31 elements, but for "2d" (input only).
LARGE: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "few taps": ((1, 2, 41, 5200, 5200), (2, 2, 1, 2, 2), ((0, 0), (1, 0), (1, 0))),
    "few channels": ((1, 2, 41, 5200, 5200), (2, 2, 3, 3, 3), ((2, 0), (1, 1), (1, 1))),
    "many channels": ((1, 64, 9, 2000, 2000), (64, 64, 3, 3, 3), 1),
    "one tap": ((1, 64, 9, 2000, 2000), (64, 64, 1, 1, 1), 0),
    "2d": ((1, 600, 2048, 2048), (8, 600, 3, 3), 1),
    # Read in place where it is channels-last, and its sums cut into lines.
    "few out": ((1, 64, 9, 2000, 2000), (3, 64, 3, 3, 3), 0),
}


def large_runs() -> list[tuple[str, str, str]]:
    """(tier, case, layout). The CPU gets the case with the least work, which has as many elements;
    conv2d is a tier for conv3d; "few out" and channels-last are ways of the Triton kernels."""
    plain = [
        (name, case, "plain")
        for name in TIERS
        for case in LARGE
        if (case == "few taps") == (name == "cpu")
        and (name, case) != ("conv2d", "2d")
        and (name == "triton" or case != "few out")
    ]
    return plain + [("triton", case, "last") for case in ("many channels", "one tap", "few out")]


def large_input(size: tuple[int, ...], layout: str, generator: torch.Generator) -> torch.Tensor:
    """-1, 0 and 1 in bfloat16."""
    flat = torch.empty(math.prod(size), dtype=torch.bfloat16, device=GPU)
    for part in flat.split(1 << 28):
        part.random_(-1, 2, generator=generator)
    if layout == "plain":
        return flat.view(size)
    n, c, *rest = size
    return flat.view(n, *rest, c).movedim(-1, 1)


@pytest.mark.parametrize(("name", "case", "layout"), large_runs())
def test_beyond_2_to_the_31_elements_every_tier_is_right(name: str, case: str, layout: str) -> None:
    x_size, w_size, padding = LARGE[case]
    if name == "cpu" and not _native.available:
        pytest.skip("the C core is not built")
    assert math.prod(x_size) > 2**31
    if (memory.free_bytes(GPU) or 0) < 40e9:
        pytest.skip("less GPU memory than the case needs")
    # Few of the weights are not zero, so that sums are exact in bfloat16, too.
    generator = torch.Generator(GPU).manual_seed(1)
    x = large_input(x_size, layout, generator)
    weight = torch.randint(-1, 2, w_size, generator=generator, device=GPU).to(x.dtype)
    weight *= torch.rand(w_size, generator=generator, device=GPU) < 120 / weight[0].numel()
    call = make_call(x, weight, None, 1, padding)
    out = run(tier_of(name), call)
    assert case in ("2d", "few out") or out.numel() > 2**31
    assert out.is_contiguous(memory_format=call.spec.memory_format)
    spot_check(call, out)


CALLS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 128, 6, 162, 162), (128, 128, 3, 3, 3), {}),
    ((1, 96, 6, 322, 322), (3, 96, 3, 3, 3), {}),
    ((1, 256, 5, 160, 160), (128, 256, 1, 1, 1), {}),
    ((2, 64, 5, 100, 90), (96, 64, 3, 3, 3), {"padding": ((2, 0), (1, 1), (1, 1))}),
    ((1, 64, 9, 120, 120), (64, 32, 3, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((1, 64, 5, 100, 90), (64, 64, 3, 3, 3), {"padding": 2, "dilation": 2}),
    ((2, 192, 320, 320), (96, 192, 3, 3), {"padding": 1}),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["plain", "last"])
@pytest.mark.parametrize("name", TIERS)
def test_no_tier_takes_more_than_it_predicts(name: str, layout: str, dtype: torch.dtype) -> None:
    """The vendor tier's figure is an estimate, held here for the plain layers only. Triton has a
    second to compile each layer, so all of them are for one layout and dtype."""
    tier, over = tier_of(name), []
    usual = (layout, dtype) == ("plain", torch.bfloat16)
    few = name == "vendor" or (name == "triton" and not usual)
    for x_size, w_size, options in CALLS[:3] if few else CALLS:
        x = torch.randn(x_size, device=GPU, dtype=dtype)
        if layout == "last":
            kept = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
            x = x.contiguous(memory_format=kept)
        weight, bias = (torch.randn(s, device=GPU, dtype=dtype) for s in (w_size, w_size[:1]))
        call = make_call(x, weight, bias, **options)
        if tier.refusal(call, call.limits) is not None:
            continue
        tier.run(call)  # libraries are loaded
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = tier.run(call)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
        predicted = tier.workspace_bytes(call.spec)
        # The allocator rounds blocks up to 512 bytes, large ones to 2 MiB.
        if peak > predicted + (4 << 20):
            over.append(f"{x_size} -> {w_size[0]} {options}: {peak} > {predicted}")
        assert peak < {"gemm": 256e6, "triton": 64e6}.get(name, math.inf), (x_size, options)
        del out
    assert not over, "\n".join(over)


def switches() -> tuple[Any, ...]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32,
            matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
            torch.are_deterministic_algorithms_enabled())  # fmt: skip


@pytest.mark.parametrize("name", TIERS)
def test_no_flag_of_the_process_changes_even_for_a_moment(name: str) -> None:
    tier, before = tier_of(name), switches()
    x, weight = integers(1, 64, 9, 64, 64, high=1), integers(64, 64, 3, 3, 3, high=1, seed=1)
    call = make_call(x.to(GPU), weight.to(GPU), None, 1, 1)
    stop, seen = threading.Event(), set()

    def watch() -> None:
        while not stop.is_set():
            seen.add(switches())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(5):
            tier.run(call) if tier.refusal(call, call.limits) is None else None
    finally:
        stop.set()
        watcher.join()
    assert seen == {before}


def operators_of(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, set[str]]:
    """The result, and the names of all of PyTorch's operators that were called for it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = function()
    return out, {event.key for event in profile.key_averages()}


LIBRARY = {"aten::cudnn_convolution", "aten::miopen_convolution"}
NATIVE = {"aten::slow_conv_dilated3d", "aten::slow_conv3d_forward", "aten::conv_depthwise3d"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_vendor_library_is_used_though_it_is_switched_off(dtype: torch.dtype) -> None:
    """Told by the operators that are called: results may be equal in every bit."""
    x = torch.randn(1, 32, 5, 40, 40, device=GPU, dtype=dtype)
    weight = torch.randn(32, 32, 3, 3, 3, device=GPU, dtype=dtype)
    options = {"allow_tf32": False, "deterministic": True}
    with torch.backends.cudnn.flags(enabled=True, **options):
        expected, by_library = operators_of(lambda: F.conv3d(x, weight, padding=1))
    call = make_call(x, weight, None, 1, 1)
    with torch.backends.cudnn.flags(enabled=False, **options):
        got, by_tier = operators_of(lambda: run(VendorTier(), call))
        _, switched_off = operators_of(lambda: F.conv3d(x, weight, padding=1))
    assert switched_off & NATIVE, switched_off
    assert not switched_off & LIBRARY, "the switch does nothing here, so the tier shows nothing"
    assert by_tier & LIBRARY, by_tier
    assert not by_tier & NATIVE
    if by_library & LIBRARY:  # some versions of PyTorch avoid cuDNN for conv3d in half types
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", TIERS)
def test_a_tier_stays_in_order_with_the_callers_stream(name: str) -> None:
    """Input that is still being made on the stream, output used at once."""
    if name == "cpu" and not _native.available:
        pytest.skip("the C core is not built")
    tier = tier_of(name)
    x = integers(1, 16, 40, 96, 96, high=1).to(GPU)
    weight = integers(16, 16, 3, 3, 3, high=1, seed=1).to(GPU)
    # The first call compiles and loads, which would hide a race.
    expected = run(tier, make_call(x, weight, None, 1, 1)) * 2
    if name not in ("vendor", "conv2d", "cpu"):  # which may transform (Winograd), and round
        assert torch.equal(expected, F.conv3d(x, weight, padding=1) * 2)
    side = torch.cuda.Stream(GPU)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # so that the copy below is late
        late = x.clone()
        got = run(tier, make_call(late, weight, None, 1, 1)) * 2
        late.fill_(float("nan"))
    side.synchronize()
    assert torch.equal(got, expected)
