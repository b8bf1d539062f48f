"""Programs on a real GPU: what torch's streams and allocator add.

    python -m pytest tests/gpu/test_programs.py

Skipped where PyTorch sees no CUDA or HIP device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import EVERY_KIND, relative_error, tiny_latents, tiny_vae, unsplit  # noqa: E402
from program_doubles import by_layers, compiled, family_of, graph_of, never  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.triton import (  # noqa: E402
    ahead,
    jit,
    work,
)
from hy3d_rocm.decoding import DecodeOptions, decode_with_report, placing  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.faults import retry_out_of_memory  # noqa: E402
from hy3d_rocm.decoding.graph import record  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Conv,
    ModuleWeights,
    Norm,
)
from hy3d_rocm.decoding.memory.steps import StepWorkspace  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402
from hy3d_rocm.decoding.placing import Transfers  # noqa: E402
from hy3d_rocm.decoding.run import Run  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device here"),
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
]
GPU = torch.device("cuda:0")
MIB = 1 << 20
SLICE = 4 * 16 * 194 * 194 * 2  # four padded frames of the block's video


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    """float32 products as they are, not by TF32; no gradients."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def backend(dtype: torch.dtype) -> TorchBackend:
    return TorchBackend(ModuleWeights(dtype, GPU))


def schedule(graph: Any, x: Any, **request: Any) -> Any:
    rules = OperatorWorkspace(GPU)
    asked = StepWorkspace(graph, backend(x.dtype), rules, x.dtype)
    more = {"is_host": 0, "may_spill": 1, "input_bytes": 0 if x.is_cuda else x.element_size()}
    return compiled(graph, x, asked=asked, **(more | request))


def carried_out(graph: Any, x: Any, program: Any, recover: Callable[..., bool] = never) -> Any:
    """The frames, in host memory as decode() keeps them."""
    transfers = Transfers(GPU, program.copies_bytes) if program.copies_bytes else None
    run = Run(graph, backend(x.dtype), GPU, x.dtype, transfers=transfers, recover=recover)
    parts = []
    for _, frames in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
        parts.append(frames.cpu())
        del frames
    if transfers is not None:
        transfers.close()
    return torch.cat(parts, 2)


@pytest.mark.parametrize("kind", ["hunyuan", "wan", "ltx"])
def test_a_decode_on_the_gpu_is_the_unsplit_one(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 4, 3, 4)
    expected = unsplit(vae, z)
    plain = record(family_of(kind, vae))
    for graph in (plain, by_layers(plain)):
        for slice_bytes, chunk in ((1, 1), (20_000, 2), (1 << 40, 4)):
            program = schedule(graph, z, slice_bytes=slice_bytes, chunk=chunk).program
            got = carried_out(graph, z, program)
            assert relative_error(got, expected) <= 1e-5


def blocks(channels: int, dtype: torch.dtype) -> Callable[[Any, Any], Any]:
    """Three residual blocks of the same two convolutions."""
    torch.manual_seed(0)
    convs = []
    for _ in range(2):
        module = torch.nn.Conv3d(channels, channels, 3).to(GPU, dtype)
        norm = torch.nn.GroupNorm(4, channels).to(GPU, dtype)
        convs.append(
            Conv(
                module, before=(2, 1, 1), after=(0, 1, 1), modes=("replicate",) * 3,
                norm=Norm("group", norm, 1e-6, 4, bias="bias"), act="silu",
            )
        )  # fmt: skip

    def function(e: Any, x: Any) -> Any:
        for _ in range(3):
            x = e.conv(e.conv(x, convs[0]), convs[1], add=x)
        return x

    return function


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_slices_on_the_host_change_no_bit_and_hold_no_more(share: float) -> None:
    """Copies on streams of their own beside the computing stream, many times over: a copy that was
    read or overwritten too early shows. The allocator's peak is what the program states and what
    libraries take."""
    x = torch.randn(1, 16, 48, 192, 192, dtype=torch.bfloat16)
    graph = graph_of(blocks(16, torch.bfloat16), x)
    everything = schedule(graph, x, slice_bytes=SLICE)
    expected = carried_out(graph, x, everything.program)
    most = everything.program.candidate["device_bytes"]
    least = schedule(graph, x, slice_bytes=SLICE, device_budget=1).smallest_budget
    assert least < most / 2
    budget = least + int(share * (most - least))
    program = schedule(graph, x, slice_bytes=SLICE, device_budget=budget).program
    assert program.candidate["stored_bytes"] > 0
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = carried_out(graph, x, program)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        assert torch.equal(got, expected)
        assert peak <= program.candidate["device_bytes"] + 160 * MIB


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_a_first_decode_compiles_was_foretold(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache; what this process then asks Triton for lies there."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead, "_here", set())
    monkeypatch.setattr(jit, "_compiled", {})
    work.work_of.cache_clear()
    foretold, want = set(), ahead.want

    def noted(kernel: Any, index: int) -> bool:
        foretold.add(ahead.name_of(kernel.item, kernel.facts, index))
        return want(kernel, index)

    monkeypatch.setattr(ahead, "want", noted)
    vae = tiny_vae(kind).to(GPU, torch.bfloat16)
    z = tiny_latents(vae, 1 if "image" in kind else 4, 6, 5).to(GPU, torch.bfloat16)
    decode_with_report(family_of(kind, vae), z, strategy="streamed")
    ahead.finish(lambda: None)
    assert len(jit._compiled) > 3
    assert len(foretold) >= len(jit._compiled)
    assert ahead._here == foretold
    work.work_of.cache_clear()


def test_a_failed_allocation_is_tried_again_on_the_gpu() -> None:
    """A real one: the process is given less than the whole video takes, and relief gives back what
    was held against it."""
    x = torch.randn(1, 16, 24, 192, 192, dtype=torch.bfloat16)
    graph = graph_of(blocks(16, torch.bfloat16), x)
    program = schedule(graph, x, slice_bytes=SLICE).program
    expected = carried_out(graph, x, program)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    ballast = [torch.empty(256 * MIB, dtype=torch.uint8, device=GPU)]
    used = torch.cuda.memory_reserved() + 8 * MIB
    reliefs: list[int] = []

    def relieve() -> None:
        reliefs.append(1)
        ballast.clear()
        torch.cuda.empty_cache()

    try:
        torch.cuda.set_per_process_memory_fraction(used / total)
        got = carried_out(graph, x, program, retry_out_of_memory(relieve))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert reliefs
    assert not ballast
    assert torch.equal(got, expected)


@pytest.mark.parametrize("frames_bytes", [1, 1 << 27])
def test_frames_reach_the_result_while_the_gpu_goes_on(
    frames_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "ON_THEIR_WAY_BYTES", frames_bytes)
    vae = tiny_vae("wan").to(GPU)
    z = tiny_latents(vae, 6, 3, 4)
    z = torch.cat([z, z.flip(2)])  # two samples
    expected = unsplit(vae, z.to(GPU)).cpu()
    for options in (DecodeOptions(chunk_size=1), DecodeOptions(slice_bytes=1 << 12)):
        made, report = decode_with_report(vae, z, strategy="streamed", options=options)
        assert relative_error(made, expected) < 1e-4, report.plan
        out = torch.full_like(made, 7)
        given, _ = decode_with_report(vae, z, strategy="streamed", options=options, out=out)
        assert given is out
        assert torch.equal(out, made)
    whole, _ = decode_with_report(vae, z, strategy="whole")
    assert relative_error(whole, expected) < 1e-6


@pytest.mark.parametrize("last", [True, False])
def test_a_value_that_is_not_finite_is_found_on_its_way(last: bool) -> None:
    """Also in the frames that come last, after which nothing is put."""
    vae = tiny_vae("wan").to(GPU)
    z = tiny_latents(vae, 5, 3, 4)
    z[:, :, -1 if last else 0] *= 1e7  # too much for float16
    options = DecodeOptions(chunk_size=1)
    made, report = decode_with_report(
        vae, z, strategy="streamed", precision="fp16", options=options
    )
    (event,) = report.events
    assert event["event"] == "not finite"
    assert ("frames 13 to 16" if last else "frames 0 to 0") in event["error"]
    assert report.dtype == "float32"
    assert relative_error(made, unsplit(vae, z.to(GPU)).cpu()) < 1e-4
