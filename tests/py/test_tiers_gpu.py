"""Every tier on a real GPU: numerics, beyond 2^31 elements, predicted against measured bytes.

Skipped where PyTorch sees no CUDA or HIP device. The large cases need up to 40 GB of GPU memory and
are skipped, saying so, where there is less.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import differential_tiers as differential
import pytest
import torch
import torch.nn.functional as F
from router_doubles import cpu_tier, integers

from hy3d_rocm import _native
from hy3d_rocm.conv import memory
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import Tier, VendorTier, make_call, make_tier, windows

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA or HIP device on this machine"
)
GPU = torch.device("cuda:0")
TIERS = ("vendor", "gemm", "conv2d", "native", "cpu")
COUNT, SEED = 200, 11


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """The vendor library switched off, as ComfyUI does on RDNA3 and newer; no TF32."""
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), torch.inference_mode():
        yield
    torch.cuda.empty_cache()


def tier_of(name: str) -> Tier:
    return cpu_tier() if name == "cpu" else make_tier(name)


@pytest.mark.parametrize("name", TIERS)
def test_random_convolutions_are_right(name: str) -> None:
    """Replay: python tests/bench/differential_tiers.py --device cuda --tiers NAME --seed 11."""
    if name == "cpu" and not _native.available:
        pytest.skip("the C core is not built")
    result = differential.run(name, "cuda", SEED, 0, COUNT)
    assert not result["failed"], "\n".join(result["failed"][:5])
    # conv2d refuses the 2D ones, a quarter.
    assert result["ran"] >= COUNT // 2, result["refused"]


def spot_check(call: ConvCall, out: torch.Tensor, points: int = 200) -> None:
    """Random outputs, and the last one, against exact whole-number sums."""
    shape = windows.geometry(call.spec)
    x, out = windows.lifted(call.x), windows.lifted(out)
    weight = windows.lifted(call.weight)
    rows = weight.reshape(shape.groups, shape.cout // shape.groups, -1).double()
    rng = random.Random(9)
    for index in range(points):
        n, *point = (rng.randrange(size) for size in (shape.batch, *shape.out))
        if index == 0:
            n, *point = (size - 1 for size in (shape.batch, *shape.out))
        t, h, w = ((p, p + 1) for p in point)
        taps = windows.window(x[n : n + 1], shape, (t, h, w))
        exact = (rows @ taps.reshape(shape.groups, -1, 1).double()).flatten()
        got = out[n, :, point[0], point[1], point[2]].double()
        assert float((got - exact).abs().max()) < 0.5, (index, n, point)


LARGE: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "few channels": ((1, 2, 41, 5200, 5200), (2, 2, 3, 3, 3), ((2, 0), (1, 1), (1, 1))),
    "many channels": ((1, 64, 9, 2000, 2000), (64, 64, 3, 3, 3), 1),
    "one tap": ((1, 64, 9, 2000, 2000), (64, 64, 1, 1, 1), 0),
    "2d": ((1, 600, 2048, 2048), (8, 600, 3, 3), 1),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("name", TIERS)
def test_beyond_2_to_the_31_elements_every_tier_is_right(name: str, case: str) -> None:
    x_size, w_size, padding = LARGE[case]
    if name == "cpu" and case != "few channels":
        pytest.skip("minutes on a CPU; the few-channel case has as many elements")
    if name == "cpu" and not _native.available:
        pytest.skip("the C core is not built")
    if name == "conv2d" and case == "2d":
        pytest.skip("conv2d is a tier for conv3d")
    elems = torch.Size(x_size).numel()
    assert elems > 2**31
    if (memory.free_bytes(GPU) or 0) < 40e9:
        pytest.skip("less GPU memory than the case needs")
    # Few of the weights are not zero, so that sums are exact in bfloat16, too.
    generator = torch.Generator(GPU).manual_seed(1)
    x = torch.empty(x_size, dtype=torch.bfloat16, device=GPU)
    for plane in x[0]:
        plane.random_(-1, 2, generator=generator)
    weight = torch.randint(-1, 2, w_size, generator=generator, device=GPU).to(x.dtype)
    weight *= torch.rand(w_size, generator=generator, device=GPU) < 120 / weight[0].numel()
    call = make_call(x, weight, None, 1, padding)
    tier = tier_of(name)
    reason = tier.refusal(call, call.limits)
    assert reason is None, reason
    spot_check(call, tier.run(call))


CALLS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 128, 6, 162, 162), (128, 128, 3, 3, 3), {}),
    ((1, 96, 6, 322, 322), (3, 96, 3, 3, 3), {}),
    ((1, 256, 5, 160, 160), (128, 256, 1, 1, 1), {}),
    ((2, 64, 5, 100, 90), (96, 64, 3, 3, 3), {"padding": ((2, 0), (1, 1), (1, 1))}),
    ((1, 64, 9, 120, 120), (64, 32, 3, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((1, 64, 5, 100, 90), (64, 64, 3, 3, 3), {"padding": 2, "dilation": 2,
                                              "pad_modes": "replicate"}),
    ((2, 192, 320, 320), (96, 192, 3, 3), {"padding": 1}),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["plain", "last"])
@pytest.mark.parametrize("name", TIERS)
def test_no_tier_takes_more_than_it_predicts(name: str, layout: str, dtype: torch.dtype) -> None:
    """The vendor tier's figure is an estimate, held here for the plain layers only."""
    tier, over = tier_of(name), []
    for x_size, w_size, options in CALLS[:3] if name == "vendor" else CALLS:
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
        if name == "gemm":
            assert peak < 256e6
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_vendor_library_is_used_though_it_is_switched_off(dtype: torch.dtype) -> None:
    x = torch.randn(1, 32, 5, 40, 40, device=GPU, dtype=dtype)
    weight = torch.randn(32, 32, 3, 3, 3, device=GPU, dtype=dtype)
    options = {"allow_tf32": False, "deterministic": True}
    with torch.backends.cudnn.flags(enabled=True, **options):
        expected = F.conv3d(x, weight, padding=1)
    with torch.backends.cudnn.flags(enabled=False, **options):
        got = VendorTier().run(make_call(x, weight, None, 1, 1))
        native = F.conv3d(x, weight, padding=1)
    assert torch.equal(got, expected)
    assert not torch.equal(native, expected), "both sides are the same back-end: shows nothing"


def test_the_cpu_tier_overlaps_and_stays_in_order_with_the_callers_stream() -> None:
    """Input that is still being made on the stream, output used at once."""
    x = integers(1, 16, 40, 96, 96, high=1).to(GPU)
    weight = integers(16, 16, 3, 3, 3, high=1, seed=1).to(GPU)
    expected = F.conv3d(x, weight, padding=1) * 2
    side = torch.cuda.Stream(GPU)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # so that the copy below is late
        late = x.clone()
        call = make_call(late, weight, None, 1, 1)
        tier = cpu_tier()
        assert tier.refusal(call, call.limits) is None
        got = tier.run(call) * 2
        late.fill_(float("nan"))
    side.synchronize()
    assert torch.equal(got, expected)
