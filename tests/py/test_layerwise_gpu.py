"""The engine that goes layer by layer on a real GPU: what torch's streams and allocator add.

    python -m pytest tests/py/test_layerwise_gpu.py

Skipped where PyTorch sees no CUDA or HIP device.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import relative_error, tiny_latents, tiny_vae, unsplit  # noqa: E402
from layerwise_doubles import WatchedKeeper, joined  # noqa: E402

from hy3d_rocm.decode.engines.layerwise import LayerEngine  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.layers import Conv, Local, Norm  # noqa: E402
from hy3d_rocm.decode.torch_backend import TorchBackend  # noqa: E402
from hy3d_rocm.decode.transfers import StreamMover  # noqa: E402
from hy3d_rocm.decode.weights import ModuleWeights  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA or HIP device on this machine"
)
GPU = torch.device("cuda:0")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    """float32 products as they are, not by TF32; no gradients."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def engine_for(dtype: Any, slice_bytes: int, **options: Any) -> LayerEngine:
    return LayerEngine(TorchBackend(ModuleWeights(dtype, GPU)), GPU, slice_bytes, **options)


@pytest.mark.parametrize("kind", ["hunyuan", "wan", "ltx"])
def test_a_decode_on_the_gpu_is_the_unsplit_one(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 4, 3, 4)
    expected = unsplit(vae, z)
    for slice_bytes in (1, 20_000, 1 << 40):
        engine = engine_for(torch.float32, slice_bytes)
        got = joined(engine, family_for(vae).decode(engine, engine.enter(z)))
        assert relative_error(got.cpu(), expected) <= 1e-5


def block(channels: int, dtype: Any) -> list[Conv]:
    """The two convolutions of a residual block."""
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        module = torch.nn.Conv3d(channels, channels, 3).to(GPU, dtype)
        norm = torch.nn.GroupNorm(4, channels).to(GPU, dtype)
        found.append(
            Conv(
                module,
                before=(2, 1, 1),
                after=(0, 1, 1),
                modes=("replicate",) * 3,
                norm=Norm("group", norm, 1e-6, 4, bias="bias"),
                act="silu",
            )
        )
    return found


def run_block(engine: LayerEngine, x: Any, convs: list[Conv]) -> Any:
    handle = engine.local(engine.enter(x), Local(lambda f, first: f.clone(), lambda n: n))
    for _ in range(3):
        h = engine.conv(handle, convs[0], keep=True)
        handle = engine.conv(h, convs[1], add=handle)
    return handle


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_slices_on_the_host_change_no_bit_and_hold_no_more(share: float) -> None:
    """Copies on streams of their own beside the computing stream, many times over: a copy that was
    read or overwritten too early shows. The allocator's peak is held by the limit, what a grain
    reads and makes, and its workspace."""
    x = torch.randn(1, 16, 48, 192, 192, device=GPU, dtype=torch.bfloat16)
    convs = block(16, torch.bfloat16)
    frame = x[:, :, :1].nbytes
    slice_bytes = 4 * 16 * 194 * 194 * 2
    expected = joined(free := engine_for(torch.bfloat16, slice_bytes), run_block(free, x, convs))
    most = free.keeper.peak_resident
    assert most >= 2 * 48 * frame
    for _ in range(3):
        limit = int(share * most)
        engine = engine_for(torch.bfloat16, slice_bytes)
        engine.keeper = WatchedKeeper(StreamMover(GPU), limit)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = run_block(engine, x, convs)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        keeper = engine.keeper
        assert isinstance(keeper, WatchedKeeper)
        assert keeper.sent > 0
        assert keeper.brought > 0
        assert keeper.peak_resident <= max(limit, keeper.largest_grain)
        assert torch.equal(joined(engine, out), expected)
        # A grain's padded input (4 + 2 frames), the float blocks of the moments, what cuDNN takes.
        assert peak <= max(limit, keeper.largest_grain) + 16 * 6 * frame + 160 * MIB


def test_a_failed_allocation_is_tried_again_on_the_gpu() -> None:
    """A real one: the process is given less than the whole video takes, and on_pressure gives back
    what was held against it."""
    x = torch.randn(1, 16, 24, 192, 192, device=GPU, dtype=torch.bfloat16)
    convs = block(16, torch.bfloat16)
    slice_bytes = 4 * 16 * 194 * 194 * 2
    first = engine_for(torch.bfloat16, slice_bytes)
    expected = joined(first, run_block(first, x, convs))
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    ballast = [torch.empty(256 * MIB, dtype=torch.uint8, device=GPU)]
    used = torch.cuda.memory_reserved() + 8 * MIB

    def relieve() -> None:
        ballast.clear()
        torch.cuda.empty_cache()

    try:
        torch.cuda.set_per_process_memory_fraction(used / total)
        engine = engine_for(torch.bfloat16, slice_bytes, on_pressure=relieve)
        got = joined(engine, run_block(engine, x, convs))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert engine.grains.repeated >= 1
    assert not ballast
    assert torch.equal(got, expected)
