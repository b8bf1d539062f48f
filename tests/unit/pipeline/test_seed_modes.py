"""Seed modes: what each promises, on the real pipeline classes and over many seeds."""

from __future__ import annotations

import random
from typing import Any

import how_much
import pytest
import torch
from wrapper_pipelines import delight, multiview, tiny_delight, tiny_paint

from hy3d_rocm import _rng
from hy3d_rocm._fallback.seed import seed_image
from hy3d_rocm.pipeline import PipelineProxy, seed_mode_of, unwrap
from hy3d_rocm.scopes import cuda_literals

pytestmark = pytest.mark.usefixtures("one_thread")

SEED = 20250701
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def paint() -> Any:
    return tiny_paint()


@pytest.fixture(scope="module")
def delighter() -> Any:
    return tiny_delight()


class Painter:
    """Draws as HunyuanPaintPipeline does: posteriors globally, latents and steps by generator."""

    device = CPU

    def encode_images(self, images: torch.Tensor) -> torch.Tensor:
        return torch.randn(images.shape)

    def __call__(
        self, image: Any = None, generator: Any = None, num_in_batch: int = 1, fail: bool = False
    ) -> torch.Tensor:
        reference = self.encode_images(torch.zeros(1, 1, 2, 1, 1)).reshape(1, 2)
        maps = self.encode_images(images=torch.zeros(1, num_in_batch, 2, 1, 1)).reshape(-1, 2)
        noise = [randn((num_in_batch, 3), generator) for _ in range(2)]
        if fail:
            raise RuntimeError("HIP out of memory")
        return torch.cat([reference.expand(num_in_batch, 2), maps, *noise], dim=1)


def randn(shape: tuple[int, ...], generator: Any) -> torch.Tensor:
    """As diffusers' randn_tensor: a list of generators makes one row each."""
    if isinstance(generator, list):
        rows = [torch.randn((1, *shape[1:]), generator=one) for one in generator]
        assert len(rows) == shape[0]
        return torch.cat(rows)
    return torch.randn(shape, generator=generator)


def paint_upstream(pipeline: Any, seed: int, views: int = 3) -> torch.Tensor:
    torch.manual_seed(seed)
    generator = torch.Generator(device=pipeline.device).manual_seed(seed)
    return pipeline(generator=generator, num_in_batch=views)  # type: ignore[no-any-return]


def loop_upstream(pipeline: Any, seed: int, count: int) -> torch.Tensor:
    return torch.cat([pipeline(generator=torch.manual_seed(seed)) for _ in range(count)])


def all_differ(pictures: torch.Tensor) -> bool:
    rows = [row.numpy().tobytes() for row in pictures]
    return len(set(rows)) == len(rows)


def test_a_caller_who_gives_the_global_generator_shares_it_with_encode_images() -> None:
    """As upstream does then: one stream for both, however many images."""
    proxy = PipelineProxy(Painter())
    results = loop_upstream(proxy, 6, 2)
    torch.manual_seed(6)
    pipeline = Painter()
    plain = [pipeline(generator=torch.default_generator) for _ in range(2)]
    assert torch.equal(results, torch.cat(plain))


def test_the_promises_hold_for_many_seeds() -> None:
    """20 in the gate, a thousand in `make test-long`."""
    chosen = random.Random(SEED)
    pipeline = Painter()
    proxies = {mode: PipelineProxy(pipeline, seed_mode=mode) for mode in ("stream", "legacy")}
    for _ in range(how_much.of(20, 1000)):
        seed = chosen.choice(
            (chosen.getrandbits(64), chosen.getrandbits(32), chosen.getrandbits(6))
        )
        plain = loop_upstream(pipeline, seed, 3)
        stream = loop_upstream(proxies["stream"], seed, 3)
        assert torch.equal(stream[0], plain[0]), seed
        assert all_differ(stream), seed
        assert torch.equal(loop_upstream(proxies["legacy"], seed, 3), plain), seed
        parts = [
            loop_upstream(
                PipelineProxy(pipeline, seed_mode="per_image", first_index=first), seed, n
            )
            for first, n in ((0, 3), (0, 1), (1, 2))
        ]
        assert torch.equal(parts[0], torch.cat(parts[1:])), seed
        assert torch.equal(parts[0][0], plain[0]), seed
        views = paint_upstream(pipeline, seed)
        assert torch.equal(paint_upstream(proxies["stream"], seed), views), seed
        assert torch.equal(paint_upstream(proxies["legacy"], seed), views), seed


def test_in_per_image_a_view_depends_on_its_number_only() -> None:
    def views(first: int, count: int) -> torch.Tensor:
        proxy = PipelineProxy(Painter(), seed_mode="per_image", first_index=first)
        return paint_upstream(proxy, 9, count)

    whole = views(0, 8)
    assert torch.equal(torch.cat([views(0, 3), views(3, 5)]), whole)
    assert torch.equal(torch.cat([views(i, 1) for i in range(8)]), whole)
    latents = torch.stack(
        [
            torch.randn(3, generator=torch.Generator().manual_seed(seed_image(9, i)))
            for i in range(8)
        ]
    )
    assert torch.equal(whole[:, 4:7], latents)
    assert all_differ(whole)


def test_a_second_multiview_call_of_a_batch_goes_on_in_every_stream() -> None:
    proxy, before = PipelineProxy(Painter()), _rng.capture()
    with proxy.batch():
        first, second = (paint_upstream(proxy, 9) for _ in range(2))
    assert _rng.same(before, _rng.capture())
    assert torch.equal(first, paint_upstream(Painter(), 9))
    assert all_differ(torch.cat([first[:, 2:], second[:, 2:]]))
    assert not torch.equal(first[0, :2], second[0, :2])


@pytest.mark.parametrize("mode", ["stream", "per_image"])
def test_a_failed_multiview_call_is_repeated_with_the_same_numbers(mode: Any) -> None:
    proxy = PipelineProxy(Painter(), seed_mode=mode)
    results = []
    for attempt in range(3):
        torch.manual_seed(4)
        generator = torch.Generator().manual_seed(4)
        try:
            results.append(proxy(generator=generator, num_in_batch=2, fail=attempt == 1))
        except RuntimeError:
            continue
    expected = PipelineProxy(Painter(), seed_mode=mode)
    with expected.batch():
        wanted = [paint_upstream(expected, 4, 2) for _ in range(2)]
    assert torch.equal(torch.cat(results), torch.cat(wanted))


def test_encode_images_is_the_pipelines_own_again_after_a_call() -> None:
    pipeline = Painter()
    proxy = PipelineProxy(pipeline)
    paint_upstream(proxy, 1)
    with pytest.raises(RuntimeError, match="HIP out of memory"):
        proxy(generator=torch.manual_seed(1), fail=True)
    assert "encode_images" not in vars(pipeline)
    own = pipeline.encode_images = lambda images: torch.zeros(images.shape)  # type: ignore[method-assign]
    assert paint_upstream(proxy, 1)[:, :4].abs().sum() == 0
    assert pipeline.encode_images is own


def test_an_encode_images_of_another_thread_draws_as_it_would_alone() -> None:
    import threading

    pipeline, inside, done = Painter(), threading.Event(), threading.Event()
    encoded: list[torch.Tensor] = []

    class Waiting(Painter):
        def encode_images(self, images: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is threading.main_thread() and not inside.is_set():
                inside.set()
                assert done.wait(30)
            return super().encode_images(images)

    pipeline = Waiting()

    def other() -> None:
        assert inside.wait(30)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(5)
            encoded.append(pipeline.encode_images(torch.zeros(4)))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    result = paint_upstream(PipelineProxy(pipeline), 8)
    thread.join()
    assert torch.equal(encoded[0], torch.randn(4, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(result, paint_upstream(Painter(), 8))


def test_a_first_index_belongs_to_per_image() -> None:
    for mode in ("stream", "legacy"):
        with pytest.raises(ValueError, match=f"first_index is 2 with seed_mode '{mode}'"):
            PipelineProxy(Painter(), seed_mode=mode, first_index=2)  # type: ignore[arg-type]
    for wrong in (-1, 1.5):
        with pytest.raises((ValueError, TypeError), match=f"first_index is {wrong}; give"):
            PipelineProxy(Painter(), seed_mode="per_image", first_index=wrong)  # type: ignore[arg-type]


def test_a_proxy_tells_its_mode_and_what_it_stands_for() -> None:
    pipeline = Painter()
    proxy = PipelineProxy(pipeline, seed_mode="per_image")
    assert unwrap(proxy) is pipeline
    assert unwrap(PipelineProxy(proxy)) is pipeline
    assert unwrap(pipeline) is pipeline
    assert seed_mode_of(proxy) == "per_image"
    assert seed_mode_of(pipeline) is None


@pytest.mark.parametrize("count", how_much.of((1, 3), (1, 3, 8)))
def test_legacy_is_upstreams_delight_loop_bit_for_bit(delighter: Any, count: int) -> None:
    plain = delight(delighter, count, 7)
    after_plain = torch.get_rng_state()
    assert torch.equal(delight(PipelineProxy(delighter, seed_mode="legacy"), count, 7), plain)
    assert torch.equal(torch.get_rng_state(), after_plain)
    if count > 1:
        assert torch.equal(plain[0], plain[1])


@pytest.mark.parametrize("count", how_much.of((1, 3), (1, 3, 8)))
def test_streams_first_delight_is_upstreams_and_the_others_their_own(
    delighter: Any, count: int
) -> None:
    stream = delight(PipelineProxy(delighter), count, 7)
    assert torch.equal(stream[0], delight(delighter, 1, 7)[0])
    assert all_differ(stream)


def test_per_image_pictures_do_not_depend_on_the_split(delighter: Any) -> None:
    def part(first: int, count: int) -> torch.Tensor:
        proxy = PipelineProxy(delighter, seed_mode="per_image", first_index=first)
        return delight(proxy, count, 7)  # type: ignore[no-any-return]

    whole = part(0, 5)
    assert torch.equal(torch.cat([part(0, 3), part(3, 2)]), whole)
    assert all_differ(whole)
    assert torch.equal(whole[0], delight(delighter, 1, 7)[0])


def test_multiview_in_stream_and_legacy_is_upstream_on_the_cpu_bit_for_bit(paint: Any) -> None:
    with cuda_literals("cpu"):
        plain = multiview(paint, 3)
        for mode in ("stream", "legacy"):
            assert torch.equal(multiview(PipelineProxy(paint, seed_mode=mode), 3), plain)
        assert not torch.equal(multiview(PipelineProxy(paint), 4), plain)
    assert all_differ(plain)
    assert "encode_images" not in vars(paint)


def test_multiview_in_per_image_is_its_own_and_repeatable(paint: Any) -> None:
    with cuda_literals("cpu"):
        plain = multiview(paint, 3, 3)
        before = _rng.capture()
        results = []
        for _ in range(2):
            proxy = PipelineProxy(paint, seed_mode="per_image")
            with proxy.batch():
                results.append(multiview(proxy, 3, 3))
        assert _rng.same(before, _rng.capture())
    assert torch.equal(*results)
    assert not torch.equal(results[0], plain)
    assert all_differ(results[0])
