"""The delight patch on a stand-in: noise of batches, random states, failures, switches."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import patches_doubles
import pytest
import torch
from patches_doubles import InterruptAsBase, InterruptAsException, patched, run, settings_are

pytestmark = pytest.mark.usefixtures("one_thread")

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

SIZE = {"width": 4, "height": 4, "cfg_image": 1.0}
MODES = ("stream", "per_image", "legacy")


def images(count: int) -> torch.Tensor:
    return torch.zeros(count, 4, 4, 3)


def pipeline(wrapper: Any, kind: str = "Pipeline", **attributes: Any) -> Any:
    made = getattr(wrapper.part("hy3dgen.texgen.hunyuanpaint.pipeline"), kind)()
    made.__dict__.update(attributes)
    return made


def delight(wrapper: Any, pipe: Any, count: int, seed: int = 42, **more: Any) -> torch.Tensor:
    """What the node gives for black images: the noise alone, since the stand-in adds it."""
    (out,) = run(
        wrapper, "Hy3DDelightImage", delight_pipe=pipe, seed=seed,
        **({"image": images(count), "steps": 2} | SIZE), **more,
    )  # fmt: skip
    return out


def states() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(), random.getstate(),
        (numpy_state[0], numpy_state[1].tobytes(), *numpy_state[2:]),
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("mode", MODES)
def test_image_one_is_upstreams_in_every_mode(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, count: int
) -> None:
    alone = delight(wrapper, pipeline(wrapper), count)
    settings_are(monkeypatch, seed_mode=mode)
    with patched(wrapper, "delight"):
        ours = delight(wrapper, pipeline(wrapper), count)
    assert torch.equal(ours[0], alone[0])


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("mode", ["stream", "per_image"])
def test_further_images_of_a_batch_get_noise_of_their_own(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, count: int
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    with patched(wrapper, "delight"):
        noise = delight(wrapper, pipeline(wrapper), count)
        again = delight(wrapper, pipeline(wrapper), count)
    assert len({picture.numpy().tobytes() for picture in noise}) == count
    assert torch.equal(noise, again)


def test_per_image_does_not_depend_on_how_a_batch_is_split(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.pipeline import PipelineProxy

    settings_are(monkeypatch, seed_mode="per_image")
    with patched(wrapper, "delight"):
        whole = delight(wrapper, pipeline(wrapper), 8)
        first = delight(wrapper, pipeline(wrapper), 3)
        rest = PipelineProxy(pipeline(wrapper), seed_mode="per_image", first_index=3)
        last = delight(wrapper, rest, 5)
    assert torch.equal(torch.cat([first, last]), whole)


def test_legacy_equals_the_unpatched_node_bit_for_bit(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch, seed_mode="legacy")
    generator = random.Random(20261121)  # replay: the same seed gives the same 200 cases
    for _ in range(200):
        seed, count = generator.randrange(2**64), generator.choice([1, 2, 3])
        alone, state = delight(wrapper, pipeline(wrapper), count, seed), states()
        with patched(wrapper, "delight"):
            torch.manual_seed(1)
            ours = delight(wrapper, pipeline(wrapper), count, seed)
        assert torch.equal(ours, alone), (seed, count)
        assert states()[0] == state[0], (seed, count)  # left as upstream leaves it


@pytest.mark.parametrize("mode", ["stream", "per_image"])
@pytest.mark.parametrize("fails", [False, True])
def test_global_random_states_are_as_before(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, fails: bool
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    pipe = pipeline(wrapper, fail_at=(1, RuntimeError("HIP out of memory")) if fails else None)
    torch.manual_seed(5)
    before = states()
    with patched(wrapper, "delight"):
        if fails:
            with pytest.raises(RuntimeError, match="HIP out of memory"):
                delight(wrapper, pipe, 3)
        else:
            delight(wrapper, pipe, 3)
    assert states() == before


@pytest.mark.parametrize("error", [RuntimeError, InterruptAsBase, InterruptAsException])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_the_middle_goes_on_unchanged_and_the_next_run_is_right(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str, error: type[BaseException]
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    raised = error("in the middle")
    with patched(wrapper, "delight"):
        good = delight(wrapper, pipeline(wrapper), 3)
        pipe = pipeline(wrapper, fail_at=(1, raised))
        with pytest.raises(error) as caught:
            delight(wrapper, pipe, 3)
        assert caught.value is raised
        assert pipe.freed == 1  # the offload hooks got what the call's own end would have given
        pipe.fail_at = None
        assert torch.equal(delight(wrapper, pipe, 3), good)


@pytest.mark.parametrize("kind", [InterruptAsBase, InterruptAsException])
def test_comfyuis_cancel_ends_the_node_at_the_next_step(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    settings_are(monkeypatch)
    pipe = pipeline(wrapper)
    with patched(wrapper, "delight"):
        good = delight(wrapper, pipe, 3)
        fake_comfy.interrupt = kind()
        with pytest.raises(kind):
            delight(wrapper, pipe, 3)
        assert len(pipe.seen) == 3 + 1  # no second image was begun
        assert torch.equal(delight(wrapper, pipe, 3), good)


def test_the_bar_stands_for_all_steps_of_all_images(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "delight"):
        delight(wrapper, pipeline(wrapper), 3)
    assert fake_comfy.bar == [(done, 6) for done in range(1, 7)]


def test_switched_off_in_the_settings_the_node_is_upstreams(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = delight(wrapper, pipeline(wrapper), 3)
    settings_are(monkeypatch, patches_off=frozenset({"delight"}))
    pipe = pipeline(wrapper)
    with patched(wrapper, "delight"):
        ours = delight(wrapper, pipe, 3, seed_mode="per_image")
    assert torch.equal(ours, alone)
    assert all(generator is torch.default_generator for _, generator in pipe.seen)


def test_the_nodes_own_input_goes_before_a_proxys_mode_and_that_before_the_settings(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.pipeline import PipelineProxy

    wanted = {}
    with patched(wrapper, "delight"):
        for mode in MODES:
            settings_are(monkeypatch, seed_mode=mode)
            wanted[mode] = delight(wrapper, pipeline(wrapper), 3)
        settings_are(monkeypatch, seed_mode="stream")
        proxy = PipelineProxy(pipeline(wrapper), seed_mode="per_image")
        assert torch.equal(delight(wrapper, proxy, 3), wanted["per_image"])
        assert torch.equal(delight(wrapper, proxy, 3, seed_mode="legacy"), wanted["legacy"])
        plain = delight(wrapper, pipeline(wrapper), 3, seed_mode="setting")
        assert torch.equal(plain, wanted["stream"])


def test_an_unknown_seed_mode_is_a_sentence(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "delight"), pytest.raises(ValueError, match="give one of stream"):
        delight(wrapper, pipeline(wrapper), 1, seed_mode="random")


class DeviceRaises:
    """Mixed in: a pipeline whose device properties raise."""

    @property
    def device(self) -> torch.device:
        raise RuntimeError("no device yet")

    _execution_device = device


@pytest.mark.parametrize("strange", ["meta", "raises"])
def test_a_pipeline_that_tells_no_device_runs_where_comfyui_does(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, strange: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings_are(monkeypatch)
    alone = delight(wrapper, pipeline(wrapper), 1)
    base = type(pipeline(wrapper))
    if strange == "meta":
        pipe = pipeline(
            wrapper, device=torch.device("meta"), _execution_device=torch.device("meta")
        )
    else:
        pipe = type("Strange", (DeviceRaises, base), {"__init__": lambda self: None})()
        pipe.__dict__.update(seen=[], freed=0, fail_at=None)
    with patched(wrapper, "delight"), caplog.at_level(logging.INFO, "hy3d_rocm"):
        assert torch.equal(delight(wrapper, pipe, 1), alone)
    assert "Hy3DDelightImage: Using input device: cpu" in caplog.text


def test_memory_lines_stand_before_and_after(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "delight"), caplog.at_level(logging.INFO, "hy3d_rocm"):
        delight(wrapper, pipeline(wrapper), 1)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("[")]
    assert [line.partition("]")[0] for line in lines] == ["[Before Delight", "[After Delight"]
