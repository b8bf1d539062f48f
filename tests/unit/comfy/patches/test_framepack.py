"""FramePackWrapper corrected in place, on its double: applied, taken back, unloading in order.

docs/framepack.md says what was tried with the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from framepack_fixtures import (  # noqa: F401
    Card,
    Loaded,
    applied_and_taken_back,
    attributes,
    comfy_with_a_vae,
    cpu_is_a_card,
    sample,
    transformer,
    wrapper_found,
)
from patches_doubles import (  # noqa: F401
    Comfy,
    InterruptAsBase,
    InterruptAsException,
    fake_comfy,
    module,
    settings_are,
)


def test_all_four_are_applied_and_taken_back_without_a_trace(place: Any) -> None:
    from hy3d_rocm.comfy.patches.engine import PatchSet
    from hy3d_rocm.comfy.patches.framepack import SPECS

    before = attributes(place)
    sets = []
    for spec in SPECS:
        assert spec.expects(place) is None
        sets.append(PatchSet(spec.name))
        sets[-1].apply(spec.changes(place))
    assert [patches.label for patches in sets] == [
        "framepack-import", "framepack-unload", "framepack-memory", "framepack-preview",
    ]  # fmt: skip
    assert attributes(place) != before
    for patches in reversed(sets):  # as the installation does
        assert patches.revert() == ()
    now = attributes(place)
    for owner, names in before.items():
        assert now[owner].keys() == names.keys()
        assert all(now[owner][name] is value for name, value in names.items())


def test_the_settings_know_every_patch_by_name(place: Any) -> None:
    from hy3d_rocm.comfy.patches.framepack import SPECS
    from hy3d_rocm.comfy.settings import PATCHES

    assert {spec.name for spec in SPECS} <= set(PATCHES)


def test_patched_it_makes_what_upstream_makes(
    place: Any, apply: Callable[..., None], card: Card
) -> None:
    alone = sample(place)
    apply()
    assert torch.equal(sample(place), alone)
    assert card.sections == 2


def test_models_leave_in_the_specifications_order_one_kind_at_a_time(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    loaded = comfy.management.current_loaded_models
    loaded[:] = [
        Loaded("Siglip", "vision_model"), Loaded("AutoencoderKL", "decoder"),
        Loaded("Llama", "encode_token_weights"), Loaded("Clip", "encode_token_weights"),
    ]  # fmt: skip
    apply("framepack-unload")
    sample(place)
    assert comfy.unloaded == [["Llama", "Clip"], ["AutoencoderKL"], ["Siglip"]]
    assert loaded == []


@pytest.mark.parametrize(
    ("call", "gone", "left"),
    [
        ("encode", ["Llama", "AutoencoderKL"], ["Siglip", "Other"]),
        ("encode_image", ["Llama", "AutoencoderKL", "Siglip"], ["Other"]),
        ("decode", ["Llama", "Siglip", "AutoencoderKL"], ["Other"]),
        ("decode_tiled", ["Llama", "Siglip", "AutoencoderKL"], ["Other"]),
    ],
)
def test_each_kind_goes_when_its_work_is_done(
    call: str, gone: list[str], left: list[str], comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.queue[1] = (0, "id", {"7": {"class_type": "FramePackSampler", "inputs": {}}}, {}, [])
    loaded = comfy.management.current_loaded_models
    loaded[:] = [
        Loaded("Other", "weights"), Loaded("AutoencoderKL", "decoder"),
        Loaded("Llama", "encode_token_weights"), Loaded("Siglip", "vision_model"),
    ]  # fmt: skip
    apply("framepack-unload")
    owner = comfy.vision if call == "encode_image" else comfy.vae
    assert getattr(owner, call)("x")[1] == "x"
    assert [name for names in comfy.unloaded for name in names] == gone
    assert sorted(repr(one) for one in loaded) == sorted(left)


def test_a_previewers_small_vae_unloads_nothing(comfy: Any, apply: Callable[..., None]) -> None:
    """It decodes at every step, while the sampler's models are at work."""
    comfy.queue[1] = (0, "id", {"7": {"class_type": "FramePackSampler", "inputs": {}}}, {}, [])
    comfy.management.current_loaded_models[:] = [Loaded("TAEHV", "decoder")]
    comfy.vae.first_stage_model = type("TAEHV", (), {})()
    comfy.vae.latent_dim = 3
    apply("framepack-unload")
    assert comfy.vae.decode("x") == ("decode", "x")
    assert comfy.unloaded == []


def test_prompts_without_a_framepack_sampler_are_left_as_they_are(
    comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.queue[1] = (0, "id", {"7": {"class_type": "KSampler", "inputs": {}}}, {}, [])
    comfy.management.current_loaded_models[:] = [Loaded("AutoencoderKL", "decoder")]
    apply("framepack-unload")
    assert comfy.vae.decode("x") == ("decode", "x")
    assert comfy.unloaded == []


@pytest.mark.parametrize("error", [InterruptAsBase(), InterruptAsException(), ValueError("no")])
def test_after_a_failure_or_a_cancel_the_transformer_leaves_the_card(
    error: BaseException, place: Any, apply: Callable[..., None]
) -> None:
    model = transformer(place)

    def fail() -> None:
        raise error

    model.on_step = fail
    with pytest.raises(type(error)):
        sample(place, model)
    alone = list(model.moved)  # to the card; upstream then leaves it there
    model.moved.clear()
    apply("framepack-unload")
    with pytest.raises(type(error)):
        sample(place, model)
    assert model.moved == [*alone, "cpu"]
