"""The multiview patch on a stand-in: noise of the views and of the reference, failures."""

from __future__ import annotations

import random
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import InterruptAsBase, InterruptAsException, patched, run, settings_are

from hy3d_rocm.scopes import cuda_literals

pytestmark = pytest.mark.usefixtures("one_thread")

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

PAINT = "hy3dgen.texgen.hunyuanpaint.pipeline"
MODES = ("stream", "per_image", "legacy")


def paint(wrapper: Any) -> Any:
    return wrapper.part(PAINT).PaintPipeline()


def views(wrapper: Any, pipe: Any, count: int, seed: int = 7, **more: Any) -> torch.Tensor:
    (out,) = run(
        wrapper, "Hy3DSampleMultiView", pipeline=pipe, ref_image=torch.zeros(1, 4, 4, 3),
        normal_maps=torch.zeros(count, 4, 4, 3), position_maps=torch.zeros(count, 4, 4, 3),
        view_size=4, steps=2, seed=seed, **more,
    )  # fmt: skip
    return out


def unpatched(wrapper: Any, count: int, seed: int = 7) -> torch.Tensor:
    """Upstream's own result on the CPU, with nothing done but where "cuda" points to."""
    with cuda_literals("cpu"):
        return views(wrapper, paint(wrapper), count, seed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_the_patch_the_literal_cuda_fails_here(wrapper: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        views(wrapper, paint(wrapper), 1)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("mode", ["stream", "legacy"])
def test_stream_and_legacy_equal_upstream_on_a_cpu_bit_for_bit(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, count: int
) -> None:
    generator = random.Random(count)  # replay: the number of views is the seed
    settings_are(monkeypatch, seed_mode=mode)
    for seed in (7, *(generator.randrange(2**64) for _ in range(30))):
        alone = unpatched(wrapper, count, seed)
        with patched(wrapper, "multiview"):
            assert torch.equal(views(wrapper, paint(wrapper), count, seed), alone), seed


def test_legacy_leaves_the_global_state_where_upstream_does(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpatched(wrapper, 3)
    state = torch.get_rng_state()
    settings_are(monkeypatch, seed_mode="legacy")
    torch.manual_seed(99)
    with patched(wrapper, "multiview"):
        views(wrapper, paint(wrapper), 3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode", ["stream", "per_image"])
def test_the_global_state_is_as_before(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    with patched(wrapper, "multiview"):
        views(wrapper, paint(wrapper), 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_per_image_gives_view_i_the_same_noise_for_any_number_of_views(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch, seed_mode="per_image")
    with patched(wrapper, "multiview"):
        whole = views(wrapper, paint(wrapper), 8)
        part = views(wrapper, paint(wrapper), 3)
    assert torch.equal(whole[:3], part)
    assert len({view.numpy().tobytes() for view in whole}) == 8


@pytest.mark.parametrize("error", [RuntimeError, InterruptAsBase, InterruptAsException])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_the_middle_goes_on_unchanged_and_the_next_run_is_right(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, error: type[BaseException]
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    raised = error("in the middle")
    with patched(wrapper, "multiview"):
        good = views(wrapper, paint(wrapper), 3)
        pipe = paint(wrapper)
        pipe.fail_at = (1, raised)
        with pytest.raises(error) as caught:
            views(wrapper, pipe, 3)
        assert caught.value is raised
        pipe.fail_at = None
        assert torch.equal(views(wrapper, pipe, 3), good)
        assert "encode_images" not in vars(pipe)  # nothing of ours is left on the pipeline


def test_upstreams_own_callback_stays_the_only_one(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "multiview"):
        views(wrapper, paint(wrapper), 3)
    assert fake_comfy.bar == ["upstream's", "upstream's"]


def test_the_vae_that_decodes_last_does_not_stay_on_the_gpu(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    pipe = paint(wrapper)  # the stand-in frees nothing itself, as upstream does after decoding
    with patched(wrapper, "multiview"):
        views(wrapper, pipe, 1)
    assert pipe.freed == 1


def test_switched_off_in_the_settings_the_node_is_upstreams(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch, seed_mode="per_image", patches_off=frozenset({"multiview"}))
    alone = unpatched(wrapper, 3)
    with patched(wrapper, "multiview"), cuda_literals("cpu"):
        assert torch.equal(views(wrapper, paint(wrapper), 3), alone)
