"""What a call through PipelineProxy does besides drawing: steps, cleaning up, devices, threads."""

from __future__ import annotations

import logging
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from wrapper_pipelines import tiny_delight

from hy3d_rocm import _rng
from hy3d_rocm.pipeline import PipelineProxy

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
IMAGE = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))


class Cancelled(BaseException):
    """As ComfyUI's InterruptProcessingException is in 0.33."""


@pytest.fixture(scope="module")
def delight() -> Any:
    return tiny_delight()


def picture(called: Any, seed: int = 5, steps: int = 3, **options: Any) -> torch.Tensor:
    return called(  # type: ignore[no-any-return]
        prompt="", image=IMAGE, generator=torch.Generator().manual_seed(seed), output_type="pt",
        num_inference_steps=steps, **options,
    ).images[0]  # fmt: skip


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_steps_are_reported_and_change_no_bit(delight: Any, mode: Any) -> None:
    steps: list[tuple[int, int]] = []
    watched = PipelineProxy(delight, seed_mode=mode, on_step=lambda *at: steps.append(at))
    assert torch.equal(picture(watched), picture(PipelineProxy(delight, seed_mode=mode)))
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_what_on_step_raises_ends_the_call_and_the_next_is_as_if_it_had_not_been(
    delight: Any, mode: Any
) -> None:
    seen: list[int] = []

    def stop(done: int, _total: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise Cancelled("stop")

    proxy = PipelineProxy(delight, seed_mode=mode, on_step=stop)
    before, results = _rng.capture(), []
    for _ in range(2):
        try:
            results.append(picture(proxy))
        except Cancelled:
            assert _rng.same(before, _rng.capture())
    assert seen == [1, 2, 1, 2, 3]
    assert torch.equal(results[0], picture(PipelineProxy(delight, seed_mode=mode)))


def test_a_callers_own_callback_is_left_alone(delight: Any) -> None:
    own, ours = [], []

    def callback(_pipe: Any, step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
        own.append(step)
        return state

    proxy = PipelineProxy(delight, on_step=lambda *at: ours.append(at))
    picture(proxy, callback_on_step_end=callback)
    assert own == [0, 1, 2]
    assert not ours


def test_a_pipeline_without_the_callback_is_not_given_one() -> None:
    class Plain:
        def __call__(self, generator: Any, **rest: Any) -> dict[str, Any]:
            return rest

    def positional(image: Any, callback_on_step_end: Any = None) -> Any:
        return callback_on_step_end

    given = torch.Generator().manual_seed(1)
    assert PipelineProxy(Plain(), on_step=print)(generator=given) == {}
    assert PipelineProxy(positional, on_step=print)(IMAGE, "mine") == "mine"


class Offloaded:
    """Counts how often its hooks are freed; fails on demand, as its cleaning up may."""

    device = CPU

    def __init__(self, cleaning_fails: bool = False) -> None:
        self.freed = 0
        self.cleaning_fails = cleaning_fails

    def maybe_free_model_hooks(self) -> None:
        self.freed += 1
        if self.cleaning_fails:
            raise RuntimeError("no hooks here")

    def __call__(self, generator: Any = None, error: BaseException | None = None) -> torch.Tensor:
        noise = torch.randn(4, generator=generator)
        if error is not None:
            raise error
        self.maybe_free_model_hooks()  # a pipeline's own last line
        return noise


@pytest.mark.parametrize("error", [RuntimeError("HIP out of memory"), Cancelled("stop")])
@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_hooks_are_freed_once_after_an_error_and_after_a_cancel(error: Any, mode: Any) -> None:
    pipeline = Offloaded()
    proxy = PipelineProxy(pipeline, seed_mode=mode)
    with pytest.raises(type(error)) as caught:
        proxy(generator=torch.Generator().manual_seed(2), error=error)
    assert caught.value is error
    assert pipeline.freed == 1
    result = proxy(generator=torch.Generator().manual_seed(2))
    assert pipeline.freed == 2
    assert torch.equal(result, torch.randn(4, generator=torch.Generator().manual_seed(2)))


def test_a_cleaning_up_that_fails_does_not_hide_the_first_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = PipelineProxy(Offloaded(cleaning_fails=True))
    with caplog.at_level(logging.WARNING, "hy3d_rocm"), pytest.raises(Cancelled):
        proxy(generator=torch.Generator(), error=Cancelled("stop"))
    assert "could not free its models after an error: no hooks here" in caplog.text


class Told:
    """A pipeline whose attributes are those it is made with; an exception is raised instead."""

    def __init__(self, **told: Any) -> None:
        self.__dict__["told"] = told

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__.get("told", {}).get(name, AttributeError(name))
        if isinstance(value, BaseException):
            raise value
        return value

    def __call__(self, image: torch.Tensor, generator: Any = None) -> torch.Tensor:
        return image + torch.randn(image.shape, generator=generator)


WEIGHTS = SimpleNamespace(parameters=lambda: iter([torch.zeros(1)]))
BROKEN = RuntimeError("not told")


@pytest.mark.parametrize(
    ("told", "default", "expected"),
    [
        ({"device": torch.device("meta")}, "cpu", "cpu"),
        ({"device": torch.device("meta"), "components": {"unet": WEIGHTS}}, "cuda:1", "cpu"),
        ({"device": torch.device("meta"), "_execution_device": CPU}, "cuda:1", "cpu"),
        ({"device": BROKEN, "_execution_device": BROKEN}, "cpu", "cpu"),
        ({"device": BROKEN, "_execution_device": BROKEN, "main_device": CPU}, None, "cpu"),
        ({"main_device": BROKEN}, "cpu", "cpu"),
        ({"main_device": torch.device("cuda:1")}, None, "cuda:1"),
    ],
)
@pytest.mark.parametrize("mode", ["stream", "legacy"])
def test_strange_answers_about_the_device_are_survived(
    told: dict[str, Any], default: Any, expected: str, mode: Any
) -> None:
    proxy = PipelineProxy(Told(**told), default, seed_mode=mode)
    assert proxy.device == torch.device(expected)
    if expected == "cpu":
        result = proxy(torch.zeros(4), generator=torch.Generator(proxy.device).manual_seed(3))
        assert torch.equal(result, torch.randn(4, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("own", ["cpu", "meta", "lazy", "raises"])
def test_in_legacy_the_device_is_the_pipelines_own_where_a_generator_can_be_made(own: str) -> None:
    answer = BROKEN if own == "raises" else torch.device(own)
    told = Told(device=answer, _execution_device=torch.device("cuda:1"))
    expected = "cpu" if own == "cpu" else "cuda:1"
    assert PipelineProxy(told, seed_mode="legacy").device == torch.device(expected)
    assert PipelineProxy(told).device == torch.device("cuda:1")


def test_two_threads_with_different_seeds_get_the_pictures_that_they_get_alone() -> None:
    """Upstream's multiview seeds the global state too, and draws its posteriors from it."""
    both_inside = threading.Barrier(2)

    class Painter:
        device = CPU
        meeting = False

        def encode_images(self, images: torch.Tensor) -> torch.Tensor:
            if self.meeting:
                both_inside.wait(60)
            return torch.randn(images.shape)

        def __call__(self, image: torch.Tensor, generator: Any, num_in_batch: int) -> torch.Tensor:
            first = self.encode_images(image)
            return torch.cat(
                [first, torch.randn(4, generator=generator), self.encode_images(image)]
            )

    def pictures(pipeline: Any, seed: int) -> torch.Tensor:
        made = []
        for _ in range(20):
            torch.manual_seed(seed)
            given = torch.Generator(device=pipeline.device).manual_seed(seed)
            made.append(pipeline(torch.zeros(4), generator=given, num_in_batch=1))
        return torch.stack(made)

    alone = [pictures(PipelineProxy(Painter()), seed) for seed in (1, 2)]
    Painter.meeting = True
    shared = PipelineProxy(Painter())
    for proxies in ([shared, shared], [PipelineProxy(Painter()), PipelineProxy(Painter())]):
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(pictures, proxies, (1, 2)))
        assert all(torch.equal(*pair) for pair in zip(results, alone, strict=True))


def test_two_threads_with_real_pipelines_get_the_pictures_that_they_get_alone() -> None:
    pipelines = [PipelineProxy(tiny_delight()) for _ in range(2)]

    def pictures(proxy: Any, seed: int) -> torch.Tensor:
        return torch.stack([picture(proxy, seed, 2) for _ in range(3)])

    alone = [pictures(proxy, seed) for proxy, seed in zip(pipelines, (1, 2), strict=True)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(pictures, pipelines, (1, 2)))
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


def test_only_states_that_changed_are_put_back_and_told() -> None:
    numpy = pytest.importorskip("numpy")
    assert sys.modules["numpy"] is numpy
    numpy.random.standard_normal()  # leaves a second number, or takes it: no word of state changes
    draws = {
        "cpu": lambda: torch.rand(1),
        "python": random.random,
        "numpy": numpy.random.standard_normal,
    }
    for name, draw in draws.items():
        before = _rng.capture()
        expected = draw()
        assert not _rng.same(before, _rng.capture())
        changed = _rng.put_back(before)
        assert _rng.same(before, _rng.capture())
        assert [at for at in draws if getattr(changed, at) is not None] == [name]
        assert draw() == expected


def test_a_batch_follows_hooks_that_change_within_it() -> None:
    delight = tiny_delight()
    proxy = PipelineProxy(delight)
    with proxy.batch():
        assert proxy.device == CPU
        picture(proxy, steps=1)
        for index in (0, 1):  # what accelerate's hooks say, one after another
            for part in (delight.vae, delight.text_encoder, delight.unet):
                part._hf_hook = SimpleNamespace(execution_device=torch.device("cuda", index))
            assert proxy.device == torch.device("cuda", index)
        for part in (delight.vae, delight.text_encoder, delight.unet):
            del part._hf_hook
        assert proxy.device == CPU


def test_the_device_is_where_diffusers_executes_under_any_offload() -> None:
    accelerate = pytest.importorskip("accelerate")
    from diffusers.hooks import apply_group_offloading

    delight = tiny_delight()
    for part in (delight.vae, delight.text_encoder, delight.unet):
        accelerate.cpu_offload_with_hook(part, "cuda:1")
        assert PipelineProxy(delight).device == delight._execution_device
    delight = tiny_delight()
    apply_group_offloading(delight.unet, torch.device("cuda:1"), CPU, offload_type="leaf_level")
    assert PipelineProxy(delight).device == delight._execution_device
