"""The acceptance on a GPU: the delight pipeline at real width behind PipelineProxy, in every mode.

Needs a CUDA or ROCm device, diffusers, transformers and accelerate:

    python -m pytest -s -rs tests/gpu/test_hunyuan3d.py

HY3D_WRAPPER=DIR        a checkout of ComfyUI-Hunyuan3DWrapper: its real nodes are run as well
HY3D_GPU_TEST_DEVICE    "cuda:0"; "cpu" runs what needs no GPU, with tiny models
HY3D_GPU_TEST_WIDTH     "real" (Stable Diffusion 2.1's shapes, random weights), "tiny" on the CPU
HY3D_GPU_TEST_BACKEND   torch.compile's backend: "inductor", "eager" on the CPU
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hunyuan3d_support import (
    BACKEND,
    CPU,
    DEVICE,
    MODES,
    ON_GPU,
    SEED,
    SIZE,
    STEPS,
    WIDTH,
    NoiseRecorder,
    allocated,
    delight,
    encoding_first,
    photograph,
    say,
    set_mode,
    text_of,
)
from hunyuan3d_upstream import (
    ComfyDouble,
    delight_node,
    multiview_node,
    paint_pipeline,
    upstream_nodes,
)

from hy3d_rocm.bench.session import random_pipeline
from hy3d_rocm.pipeline import PipelineProxy

CHECKOUT = os.environ.get("HY3D_WRAPPER", "")

pytestmark = [
    pytest.mark.skipif(
        ON_GPU and not torch.cuda.is_available(),
        reason="no CUDA or ROCm device (HY3D_GPU_TEST_DEVICE=cpu runs what needs none)",
    ),
    pytest.mark.timeout(600),  # the first compiled call
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="a mismatch needs two kinds of device")
needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"{torch.cuda.device_count()} GPUs: cuda:1 is missing"
)

needs_wrapper = pytest.mark.skipif(
    not Path(CHECKOUT, "nodes.py").is_file(),
    reason=f"HY3D_WRAPPER={CHECKOUT!r} is no checkout of ComfyUI-Hunyuan3DWrapper",
)

# SPEC 001: the texts that users see.
SLOW_CONV_TEXT = (
    "Expected all tensors to be on the same device, but got weight is on cuda:0, different from "
    "other tensors on cpu (when checking argument in method wrapper_CUDA___slow_conv2d_forward)"
)
INPUT_TYPE_TEXT = (
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
)


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Any]:
    import diffusers

    diffusers.utils.logging.set_verbosity_error()  # float16 on the CPU is where offload parks it
    made = random_pipeline(WIDTH, DEVICE, torch.float16)
    yield made
    made.remove_all_hooks()
    torch.compiler.reset()


@pytest.fixture(scope="module")
def pictures(pipeline: Any) -> Callable[[str], torch.Tensor]:
    """pictures(mode): the picture of photograph 0 through the proxy; made once a mode."""
    made: dict[str, torch.Tensor] = {}

    def picture(mode: str) -> torch.Tensor:
        if mode not in made:
            set_mode(pipeline, mode, DEVICE, BACKEND)
            started = time.perf_counter()
            made[mode] = delight(PipelineProxy(pipeline))
            say(f"{mode}: first call {time.perf_counter() - started:.1f} s")
        return made[mode]

    return picture


@pytest.mark.parametrize("mode", MODES)
def test_a_cpu_image_meets_no_mismatch_in_any_mode(
    pictures: Callable[[str], torch.Tensor], mode: str
) -> None:
    picture = pictures(mode)
    assert picture.shape == (3, SIZE, SIZE)
    assert picture.isfinite().all()
    assert picture.std() > 0
    gap = (picture - pictures("plain")).abs().max().item()
    say(f"{mode}: largest difference to plain {gap:.2e} of 0..1")


@pytest.mark.parametrize("mode", ["model", "sequential"])
def test_offloaded_pictures_equal_the_plain_one_bit_for_bit(
    pictures: Callable[[str], torch.Tensor], mode: str
) -> None:
    assert torch.equal(pictures(mode), pictures("plain"))


@pytest.mark.parametrize("mode", MODES)
def test_two_runs_are_equal_bit_for_bit(
    pipeline: Any, pictures: Callable[[str], torch.Tensor], mode: str
) -> None:
    first = pictures(mode)
    set_mode(pipeline, mode, DEVICE, BACKEND)
    assert torch.equal(delight(PipelineProxy(pipeline)), first)


@pytest.mark.parametrize("mode", MODES)
def test_the_noise_is_the_cpu_generators_in_every_mode(pipeline: Any, mode: str) -> None:
    set_mode(pipeline, mode, DEVICE, BACKEND)
    recorder = NoiseRecorder()
    with recorder.open():
        delight(PipelineProxy(pipeline))
    assert recorder.differs_from(torch.Generator().manual_seed(SEED)) is None
    assert len(recorder.draws) == 1 + STEPS  # the latents, and Euler ancestral's steps


@pytest.mark.parametrize("seed_mode", ["stream", "per_image"])
def test_a_generator_on_the_gpu_draws_the_cpus_bits(
    pipeline: Any, pictures: Callable[[str], torch.Tensor], seed_mode: Any
) -> None:
    expected = pictures("plain")
    set_mode(pipeline, "plain", DEVICE)
    generator = torch.Generator(device=DEVICE).manual_seed(SEED)
    proxy = PipelineProxy(pipeline, seed_mode=seed_mode)
    assert torch.equal(delight(proxy, generator=generator), expected)


@needs_gpu
def test_legacy_draws_from_the_gpus_generator_as_given(pipeline: Any) -> None:
    set_mode(pipeline, "plain", DEVICE)
    generator, recorder = torch.Generator(device=DEVICE).manual_seed(SEED), NoiseRecorder()
    with recorder.open():
        delight(PipelineProxy(pipeline, seed_mode="legacy"), generator=generator)
    assert recorder.differs_from(torch.Generator(device=DEVICE).manual_seed(SEED)) is None


@pytest.mark.parametrize("mode", ["plain", "model"])
def test_a_batch_continues_one_stream_and_leaves_the_global_states(
    pipeline: Any, pictures: Callable[[str], torch.Tensor], mode: str
) -> None:
    first = pictures("plain")
    set_mode(pipeline, mode, DEVICE)
    proxy, recorder = PipelineProxy(pipeline), NoiseRecorder()
    cpu_state = torch.get_rng_state()
    gpu_state = torch.cuda.get_rng_state(DEVICE) if ON_GPU else cpu_state
    with proxy.batch(), recorder.open():
        made = [delight(proxy, generator=torch.manual_seed(SEED)) for _ in range(2)]
    assert torch.equal(made[0], first)
    assert not torch.equal(made[1], first)
    assert recorder.differs_from(torch.Generator().manual_seed(SEED)) is None
    assert torch.equal(torch.get_rng_state(), cpu_state)
    assert not ON_GPU or torch.equal(torch.cuda.get_rng_state(DEVICE), gpu_state)


@needs_gpu
@pytest.mark.parametrize("mode", ["plain", "model", "compiled"])
def test_the_input_type_error_is_gone_behind_the_proxy(mode: str) -> None:
    small = encoding_first(random_pipeline("tiny", DEVICE, torch.float32))
    set_mode(small, mode, DEVICE, "eager")
    assert INPUT_TYPE_TEXT in text_of(lambda: delight(small))
    set_mode(small, mode, DEVICE, "eager")
    assert delight(PipelineProxy(small)).isfinite().all()


@needs_gpu
@pytest.mark.parametrize("mode", ["plain", "model", "compiled"])
def test_the_slow_conv2d_error_is_gone_behind_the_proxy(mode: str) -> None:
    small = encoding_first(random_pipeline("tiny", DEVICE, torch.float32))
    # As PyTorch's builds without oneDNN, and as ComfyUI on RDNA3 and newer (MIOpen off).
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        set_mode(small, mode, DEVICE, "eager")
        assert SLOW_CONV_TEXT in text_of(lambda: delight(small))
        set_mode(small, mode, DEVICE, "eager")
        assert delight(PipelineProxy(small)).isfinite().all()


@needs_gpu
@pytest.mark.parametrize("mode", ["plain", "model"])
def test_a_cpu_image_at_real_width_fails_without_the_proxy_only(pipeline: Any, mode: str) -> None:
    encoding = encoding_first(pipeline)
    set_mode(encoding, mode, DEVICE)
    text = text_of(lambda: delight(encoding))
    say(f"{mode}, without the proxy: {text.splitlines()[0] if text else 'no error'}")
    assert "same device" in text or "should be the same" in text
    set_mode(encoding, mode, DEVICE)
    assert delight(PipelineProxy(encoding)).isfinite().all()
    encoding.remove_all_hooks()


@pytest.mark.parametrize("mode", ["model", "sequential"])
@pytest.mark.parametrize("place", ["unet.mid_block", "vae.decoder"])
def test_an_interrupt_in_a_step_leaves_the_next_call_working_and_memory_free(
    pipeline: Any, pictures: Callable[[str], torch.Tensor], mode: str, place: str
) -> None:
    expected = pictures("plain")
    set_mode(pipeline, mode, DEVICE)
    proxy = PipelineProxy(pipeline)
    delight(proxy)
    before = allocated() if ON_GPU else 0
    calls: list[int] = []

    def interrupt(*_arguments: Any) -> None:
        calls.append(1)
        if len(calls) == (2 if place.startswith("unet") else 1):
            raise KeyboardInterrupt

    component, part = place.split(".")
    hook = getattr(getattr(pipeline, component), part).register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        delight(proxy)
    hook.remove()
    after = allocated() if ON_GPU else 0
    say(f"{mode}: {before} bytes allocated before, {after} after an interrupted call")
    assert after <= before
    assert torch.equal(delight(proxy), expected)


def test_placing_inputs_costs_under_1_ms_a_call(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing:
        _execution_device = DEVICE

        def __call__(self, **_options: Any) -> None: ...

    proxy = PipelineProxy(inner := Nothing())
    image = photograph(device=DEVICE)
    generator = torch.Generator()

    def seconds(called: Any) -> float:
        generator.manual_seed(SEED)
        if ON_GPU:
            torch.cuda.synchronize(DEVICE)
        started = time.perf_counter()
        called(image=image, generator=generator)
        if ON_GPU:
            torch.cuda.synchronize(DEVICE)
        return time.perf_counter() - started

    caplog.set_level(logging.WARNING, logger="hy3d_rocm")
    pairs = [(seconds(proxy), seconds(inner)) for _ in range(220)][20:]
    overhead = statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)
    say(f"placement overhead {overhead * 1e6:.0f} us a call (median of {len(pairs)})")
    assert overhead < 1e-3


@needs_two
@pytest.mark.parametrize("mode", ["plain", "model", "sequential"])
def test_a_pipeline_on_the_second_gpu_stays_there(
    pipeline: Any, pictures: Callable[[str], torch.Tensor], mode: str
) -> None:
    expected, second = pictures("plain"), torch.device("cuda:1")
    set_mode(pipeline, mode, second)
    before = allocated(DEVICE)
    proxy = PipelineProxy(pipeline)
    assert proxy.device == second
    for device in (CPU, DEVICE, second):
        assert torch.equal(delight(proxy, photograph(device=device)), expected)
    assert allocated(DEVICE) <= before
    set_mode(pipeline, "plain", DEVICE)


# Upstream's own nodes.


@pytest.fixture(scope="module")
def comfy(tmp_path_factory: pytest.TempPathFactory) -> ComfyDouble:
    return ComfyDouble(DEVICE, tmp_path_factory.mktemp("comfy"))


@pytest.fixture(scope="module")
def nodes(comfy: ComfyDouble) -> Iterator[ModuleType]:
    pytest.importorskip("einops")
    with upstream_nodes(Path(CHECKOUT).resolve(), comfy) as module:
        yield module


@pytest.fixture(scope="module")
def paint(nodes: ModuleType, pipeline: Any) -> Any:
    return paint_pipeline(nodes, pipeline, WIDTH, DEVICE)


@needs_wrapper
@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("mode", MODES)
def test_upstreams_delight_node_runs_in_every_mode(
    nodes: ModuleType, comfy: ComfyDouble, pipeline: Any, mode: str, where: str
) -> None:
    comfy.device = DEVICE
    set_mode(pipeline, "plain", DEVICE)
    upstream = delight_node(nodes, pipeline)
    comfy.device = CPU if where == "cpu" else DEVICE
    set_mode(pipeline, mode, DEVICE, BACKEND)
    made = delight_node(nodes, PipelineProxy(pipeline))
    assert made.isfinite().all()
    if mode != "compiled":
        assert torch.equal(made[0], upstream[0])
    assert not torch.equal(made[1], upstream[1])  # noise of its own instead of the first image's


@needs_wrapper
@needs_gpu
@pytest.mark.parametrize("mode", ["plain", "model"])
def test_upstreams_multiview_node_on_a_cpu_image_fails_without_the_proxy_only(
    nodes: ModuleType, comfy: ComfyDouble, paint: Any, mode: str
) -> None:
    comfy.device = CPU
    set_mode(paint, mode, DEVICE)
    text = text_of(lambda: multiview_node(nodes, paint))
    say(f"multiview, {mode}, without the proxy: {text.splitlines()[0] if text else 'no error'}")
    assert "same device" in text or "should be the same" in text
    set_mode(paint, mode, DEVICE)
    multiview_node(nodes, PipelineProxy(paint))


@needs_wrapper
def test_upstreams_multiview_node_gives_the_same_views_in_every_mode(
    nodes: ModuleType, comfy: ComfyDouble, paint: Any
) -> None:
    made = {}
    for mode in ("plain", "model", "compiled"):
        for where in (CPU, DEVICE):
            comfy.device = where
            # A graph for each of two UNets is minutes of Inductor: traced, not generated.
            set_mode(paint, mode, DEVICE, "eager")
            made[mode, where] = multiview_node(nodes, PipelineProxy(paint))
        assert torch.equal(made[mode, CPU], made[mode, DEVICE]), mode
    assert torch.equal(made["model", DEVICE], made["plain", DEVICE])
    gap = (made["compiled", DEVICE] - made["plain", DEVICE]).abs().max().item()
    say(f"multiview, compiled: largest difference to plain {gap:.2e} of 0..1")


@needs_wrapper
@pytest.mark.parametrize("mode", ["plain", "model"])
def test_multiviews_noise_is_the_cpu_generators(
    nodes: ModuleType, comfy: ComfyDouble, paint: Any, mode: str
) -> None:
    comfy.device = DEVICE
    set_mode(paint, mode, DEVICE)
    recorder, encoded, drawn = NoiseRecorder(), NoiseRecorder(), NoiseRecorder()
    with recorder.open():
        multiview_node(nodes, PipelineProxy(paint))
    # The reference image, the normal maps and the position maps; then latents and steps.
    encoded.draws, drawn.draws = recorder.draws[:3], recorder.draws[3:]
    assert len(drawn.draws) == 1 + STEPS
    assert drawn.differs_from(torch.Generator().manual_seed(SEED)) is None
    assert encoded.differs_from(torch.Generator().manual_seed(SEED)) is None


@needs_wrapper
@needs_two
def test_upstreams_multiview_node_runs_on_the_second_gpu(
    nodes: ModuleType, comfy: ComfyDouble, paint: Any
) -> None:
    made = {}
    for device in (DEVICE, torch.device("cuda:1")):
        comfy.device = device
        set_mode(paint, "model", device)
        made[device] = multiview_node(nodes, PipelineProxy(paint), device)
    first, second = made.values()
    assert torch.equal(first, second)
    set_mode(paint, "plain", DEVICE)
