"""PipelineProxy on a real (tiny, random) InstructPix2Pix pipeline and on stand-ins."""

from __future__ import annotations

import copy
import logging
import sys
from typing import Any, ClassVar

import pytest
import torch

from hy3d_rocm import _rng
from hy3d_rocm._fallback.seed import seed_image
from hy3d_rocm.pipeline import PipelineProxy

CPU = torch.device("cpu")


class Recorder:
    """A pipeline that keeps what it was called with and draws four numbers, as a real one would.

    With draws_global it draws two from the global generator too (posterior.sample() does).
    """

    def __init__(self, execution: str = "cpu", device: str = "cpu", **options: bool) -> None:
        self._execution_device = torch.device(execution)
        self.device = torch.device(device)
        self.calls: list[dict[str, Any]] = []
        self.options = options

    def __call__(self, image: Any = None, generator: Any = None, **rest: Any) -> torch.Tensor:
        self.calls.append({"image": image, "generator": generator, **rest})
        one = generator[0] if isinstance(generator, list) else generator
        noise = torch.randn(4, generator=one)
        if self.options.get("draws_global"):
            noise = torch.cat([noise, torch.randn(2)])
        if rest.get("fail"):
            raise RuntimeError("HIP out of memory")
        return noise

    def to(self, *args: Any) -> Recorder:
        return self


class Travelling(torch.Tensor):
    """Notes where it is sent to, so that a machine without an accelerator can tell."""

    def to(self, device: torch.device) -> Travelling:  # type: ignore[override]
        other = torch.zeros(1).as_subclass(Travelling)
        other.destination = device  # type: ignore[attr-defined]
        return other


def upstream_loop(pipeline: Any, count: int = 3, seed: int = 42) -> torch.Tensor:
    """Reseeds the global generator once an image, as Hy3DDelightImage does."""
    return torch.stack([pipeline(generator=torch.manual_seed(seed)) for _ in range(count)])


def expected(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(4, generator=generator) for _ in range(count)])


def test_stream_gives_a_reseeding_loop_one_generator() -> None:
    assert torch.equal(upstream_loop(PipelineProxy(Recorder())), expected(42, 3))


def test_running_the_caller_again_gives_the_same_bits() -> None:
    proxy = PipelineProxy(Recorder())
    first = upstream_loop(proxy)
    assert torch.equal(upstream_loop(proxy), first)
    assert torch.equal(upstream_loop(proxy, seed=43), expected(43, 3))
    assert torch.equal(upstream_loop(proxy), first)


def test_a_traced_caller_gets_the_same_bits_and_its_tracer_goes_on() -> None:
    proxy, lines = PipelineProxy(Recorder()), []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is not upstream_loop.__code__:
            return None
        lines.append(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        results = [upstream_loop(proxy), upstream_loop(proxy)]
    finally:
        sys.settrace(before)
    assert all(torch.equal(result, expected(42, 3)) for result in results)
    assert lines.count("return") == 2


def test_per_image_seeds_follow_the_number_of_the_image_however_the_batch_is_split() -> None:
    proxy = PipelineProxy(Recorder(), seed_mode="per_image")
    whole = upstream_loop(proxy, 5)
    assert torch.equal(whole, torch.cat([expected(seed_image(42, i), 1) for i in range(5)]))
    with proxy.batch():
        head = upstream_loop(proxy, 2)
    with proxy.batch(first_index=2):
        tail = upstream_loop(proxy, 3)
    assert torch.equal(torch.cat([head, tail]), whole)


def test_legacy_is_the_pipeline_itself() -> None:
    legacy = upstream_loop(PipelineProxy(Recorder(), seed_mode="legacy"))
    assert torch.equal(legacy, upstream_loop(Recorder()))
    assert torch.equal(legacy[0], legacy[2])


@pytest.mark.parametrize("mode", ["stream", "legacy"])
def test_one_generator_made_outside_the_loop_is_used_as_it_is(mode: Any) -> None:
    for make in (torch.manual_seed, lambda seed: torch.Generator().manual_seed(seed)):
        proxy, generator = PipelineProxy(Recorder(), seed_mode=mode), make(6)
        results = [proxy(generator=generator) for _ in range(3)]
        assert torch.equal(torch.stack(results), expected(6, 3))


def test_a_generator_per_image_in_the_callers_hands_stays_per_image() -> None:
    proxy = PipelineProxy(Recorder())
    results = [proxy(generator=torch.Generator().manual_seed(s)) for s in (1, 2, 3)]
    assert torch.equal(torch.stack(results), torch.cat([expected(s, 1) for s in (1, 2, 3)]))


def test_inside_a_batch_everything_is_one_stream_and_global_states_come_back() -> None:
    proxy, before = PipelineProxy(Recorder(draws_global=True)), _rng.capture()
    with proxy.batch():
        parts = [upstream_loop(proxy, 2), upstream_loop(proxy, 1)]
    assert torch.equal(torch.cat(parts)[:, :4], expected(42, 3))
    assert _rng.same(before, _rng.capture())


@pytest.mark.parametrize("mode", ["stream", "per_image"])
def test_a_call_leaves_global_states_as_it_found_them(mode: Any) -> None:
    proxy = PipelineProxy(Recorder(draws_global=True), seed_mode=mode)
    for generator in (torch.Generator().manual_seed(1), torch.manual_seed(1)):
        for _ in range(2):
            before = _rng.capture()
            proxy(generator=generator)
            assert _rng.same(before, _rng.capture())


def test_what_the_pipeline_draws_globally_goes_on_through_the_batch() -> None:
    results = upstream_loop(PipelineProxy(Recorder(draws_global=True)))[:, 4:]
    assert torch.equal(results.flatten(), torch.randn(6, generator=torch.manual_seed(42)))


def test_a_call_without_generator_draws_from_the_global_one() -> None:
    proxy = PipelineProxy(Recorder())
    torch.manual_seed(1)
    assert not torch.equal(proxy(), proxy())


def test_a_retry_after_a_failure_draws_the_same_noise() -> None:
    proxy, results = PipelineProxy(Recorder()), []
    for attempt in range(4):
        try:
            results.append(proxy(generator=torch.manual_seed(2), fail=attempt == 1))
        except RuntimeError:
            continue
    assert torch.equal(torch.stack(results), expected(2, 3))


def test_batches_of_two_threads_do_not_meet() -> None:
    from concurrent.futures import ThreadPoolExecutor

    proxy = PipelineProxy(Recorder())

    def loop(_: int) -> torch.Tensor:
        made = [torch.Generator().manual_seed(4) for _ in range(20)]
        return torch.stack([proxy(generator=generator) for generator in made])

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(loop, range(4)):
            assert torch.equal(result, expected(4, 20))


def test_tensors_go_to_the_execution_device_and_nothing_else_moves() -> None:
    pipeline = Recorder(execution="cuda", device="cpu")  # .device as before diffusers PR 14383
    picture, kept = object(), ["text", 3]
    image = torch.zeros(3, 8, 8).as_subclass(Travelling)
    PipelineProxy(pipeline)(image, None, views=[image, (picture, {"x": image})], kept=kept)
    call = pipeline.calls[0]
    moved = [call["image"], call["views"][0], call["views"][1][1]["x"]]
    assert {tensor.destination for tensor in moved} == {torch.device("cuda")}
    assert call["views"][1][0] is picture
    assert call["kept"] is kept


def test_asking_for_the_device_gives_the_execution_device() -> None:
    for device in ("cpu", "cuda"):
        pipeline = Recorder(execution="cuda", device=device)
        assert PipelineProxy(pipeline).device == torch.device("cuda")
    assert PipelineProxy(torch.nn.Identity(), default_device="cuda:1").device.index == 1


def test_an_accelerators_generator_for_the_cpu_is_replaced() -> None:
    class AcceleratorGenerator(torch.Generator):
        device = torch.device("cuda")

        def initial_seed(self) -> int:
            return 8

    for mode in ("stream", "legacy"):
        proxy = PipelineProxy(Recorder(), seed_mode=mode)  # type: ignore[arg-type]
        assert torch.equal(proxy(generator=AcceleratorGenerator()), expected(8, 1)[0])
        proxy(generator=[AcceleratorGenerator(), torch.Generator()])
        assert {made.device for made in proxy.calls[-1]["generator"]} == {CPU}


def test_the_specifications_line_comes_once_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    proxy = PipelineProxy(Recorder())
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        upstream_loop(proxy)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("Hy3DDelightImage: Using input device: cpu (rule: ")


def test_attributes_are_the_pipelines_own() -> None:
    pipeline = Recorder()
    proxy = PipelineProxy(PipelineProxy(pipeline))
    proxy.scheduler = "another"
    assert pipeline.scheduler == "another"  # type: ignore[attr-defined]
    del proxy.scheduler
    assert not hasattr(pipeline, "scheduler")
    assert isinstance(proxy, Recorder)
    assert proxy.to("cpu") is proxy
    assert copy.copy(proxy).calls is pipeline.calls
    assert "options" in dir(proxy)
    with pytest.raises(TypeError, match="cannot be called; give a pipeline"):
        PipelineProxy(object())
    with (
        pytest.raises(ValueError, match="first_index is 1 with seed_mode 'stream'"),
        proxy.batch(first_index=1),
    ):
        pass


def test_the_demo_measures_what_it_claims() -> None:
    pytest.importorskip("diffusers")
    skimage_data = pytest.importorskip("skimage.data")
    from examples.demo.delight import run_delight_demo

    demo = run_delight_demo(
        [skimage_data.astronaut(), skimage_data.chelsea(), skimage_data.coffee()], 16, 1
    )
    assert demo.facts["input device"] in ("cpu", "cuda", "cuda:0")
    for claim in (
        "same seed, same bits",
        "first image equals upstream's, bit for bit",
        "legacy equals upstream's, all images",
        "global random states untouched",
    ):
        assert demo.facts[claim] is True, claim
    assert demo.facts["images that differ from legacy"] == "2, 3"
    assert demo.pictures["delight.png"].width > 3 * 160


@pytest.mark.parametrize("offload", ["none", "model", "sequential", "compiled"])
def test_real_pipeline_under_offload_and_compiled(offload: str) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("accelerate")
    from examples.demo.delight import delight_loop, tiny_pipeline

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if offload == "sequential" and device == "cpu":
        pytest.skip("accelerate cannot offload a CLIP text encoder from the CPU to the CPU")
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    pipeline = tiny_pipeline()
    reference = delight_loop(PipelineProxy(pipeline), images, 5, 1)
    if offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    elif offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=device)
    elif offload == "compiled":
        pipeline.to(device).unet = torch.compile(pipeline.unet, backend="eager")
    proxy = PipelineProxy(pipeline)
    result = delight_loop(proxy, images, 5, 1)
    assert proxy.device.type == ("cpu" if offload == "none" else device)
    if proxy.device.type == "cpu":
        assert torch.equal(result, reference)
    else:  # the noise is the same, the convolutions' rounding is not
        assert torch.nn.functional.mse_loss(result, reference) < 1e-4


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")


@needs_gpu
def test_offloaded_weights_meet_their_input_on_the_accelerator() -> None:
    """The mismatch of the specification, with accelerate's real hook and a real convolution."""
    accelerate = pytest.importorskip("accelerate")
    module = torch.nn.Conv2d(3, 4, 3)
    _, hook = accelerate.cpu_offload_with_hook(module, "cuda")

    class Painter:
        components: ClassVar[dict[str, Any]] = {"vae": module}
        device = CPU  # as diffusers says under offload before PR 14383

        def __call__(self, image: torch.Tensor, generator: Any = None) -> torch.Tensor:
            noise = torch.randn(1, generator=generator, device=generator.device)
            return module(image).sum() + noise.to(image.device)  # as diffusers' randn_tensor

    with pytest.raises(RuntimeError, match=r"should be the same|same device"):
        Painter()(torch.ones(1, 3, 8, 8), torch.Generator())
    hook.offload()
    proxy = PipelineProxy(Painter())
    assert proxy.device.type == "cuda"
    generator = torch.Generator(device=proxy.device).manual_seed(3)
    assert proxy(torch.ones(1, 3, 8, 8), generator=generator).device.type == "cuda"


@needs_gpu
def test_accelerator_streams_continue_and_global_states_stay() -> None:
    class Drawing(Recorder):
        def __call__(self, image: Any = None, generator: Any = None, **rest: Any) -> torch.Tensor:
            return torch.randn(4, generator=generator, device=generator.device).to("cuda")

    torch.randn(1, device="cuda")
    proxy, before = PipelineProxy(Drawing("cuda")), _rng.capture()
    fresh = (torch.Generator(device="cuda").manual_seed(5) for _ in range(3))
    results = [proxy(generator=generator) for generator in fresh]
    one = torch.Generator().manual_seed(5)  # the noise is the CPU's on every device
    assert torch.equal(
        torch.stack(results), torch.stack([Drawing()(generator=one) for _ in range(3)])
    )
    assert _rng.same(before, _rng.capture())


def test_a_device_without_generators_is_answered_with_the_cpu() -> None:
    class OnLazy(Recorder):
        _execution_device = torch.device("lazy")

    assert PipelineProxy(OnLazy()).device == CPU
    assert torch.Generator(device=PipelineProxy(OnLazy()).device).device == CPU
