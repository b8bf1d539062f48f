"""FramePackWrapper's memory and previews, corrected on its double."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from framepack_fixtures import (  # noqa: F401
    HERE,
    Card,
    Loaded,
    applied_and_taken_back,
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

from hy3d_rocm.units import GB


def test_the_partial_offload_is_a_whole_one_and_its_line_is_never_printed(
    place: Any, apply: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    apply("framepack-unload")
    model = transformer(place)
    place.part("memory").offload_model_from_device_for_memory_preservation(
        model, target_device=HERE, preserved_memory_gb=8
    )
    assert model.moved == ["cpu"]
    assert "to preserve memory" not in capsys.readouterr().out


@pytest.mark.parametrize("teacache", [True, False])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_section_that_runs_out_of_memory_is_made_again_and_the_video_is_the_same(
    at: int, teacache: bool, place: Any, apply: Callable[..., None], card: Card
) -> None:
    alone = sample(place, use_teacache=teacache)
    model, steps = transformer(place), [0]

    def once() -> None:
        steps[0] += 1
        if steps[0] == at:
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 3.00 GiB.")

    model.on_step = once
    apply("framepack-memory")
    assert torch.equal(sample(place, model, use_teacache=teacache), alone)
    assert card.sections == 3


def test_upstreams_default_is_computed_and_another_value_is_kept(
    place: Any, apply: Callable[..., None], card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    apply("framepack-memory")
    caplog.set_level("INFO", logger="hy3d_rocm")
    for value in (6.0, 5.5, 6.0):
        sample(place, gpu_memory_preservation=value)
    kept = [line.split(" free: ") for line in caplog.messages if line.startswith("FramePack keeps")]
    assert [(amount.split("keeps ")[1], why.split(";")[0]) for amount, why in kept] == [
        ("6.8 GB", "75% of the 9.0 GB that are free"),
        ("2.8 GB", "a section took 2.0 GB"),
        ("5.5 GB", "the node's own value"),
        ("5.5 GB", "earlier sections took 2.0 GB"),
    ] or kept[-1][1].startswith("earlier sections took 2.0 GB")


def test_without_a_card_all_of_it_runs_where_it_is(place: Any, apply: Callable[..., None]) -> None:
    """On the CPU upstream's own placing raises: there is no CUDA memory to ask for."""
    apply("framepack-memory")
    assert sample(place).shape == (1, 16, 4, 1, 1)


@pytest.mark.parametrize(("free", "told"), [(9, "offload_device"), (90, "main_device")])
def test_the_loader_fills_the_card_only_where_sections_have_room_beside_the_weights(
    free: int, told: str, place: Any, apply: Callable[..., None], card: Card, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "framepack.safetensors"
    with file.open("wb") as handle:
        handle.truncate(8 * GB)  # sparse
    sys.modules["folder_paths"].get_full_path = lambda kind, name: str(file)  # type: ignore[attr-defined]
    monkeypatch.setattr(card, "free", lambda: free * GB)
    apply("framepack-memory")
    (made,) = place.part("LoadFramePackModel")().loadmodel("framepack.safetensors", "bf16")
    assert made["dtype"] == told  # the stand-in tells where it was to load


def test_finished_sections_are_shown_under_the_frame_in_work(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    apply("framepack-preview", "framepack-import", "framepack-memory")
    sample(place)
    assert "upstream's" not in comfy.shown
    pictures = [picture[1].size for _, _, picture in comfy.shown]
    # 3 steps of a section of 2 latent frames, then the section; the second one has it underneath.
    assert pictures == [(8, 4)] * 3 + [(16, 4)] + [(16, 12)] * 3 + [(16, 8)]
    assert comfy.frames == [(1, 16, 1, 1, 1)] * 4
    assert [(step, total) for step, total, _ in comfy.shown] == [(1, 3), (2, 3), (3, 3), (3, 3)] * 2


def test_a_preview_that_fails_costs_nothing_and_a_cancel_in_it_goes_on(
    place: Any, comfy: Any, apply: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply("framepack-preview", "framepack-memory")

    def fail(kind: str, latents: Any) -> Any:
        raise KeyError("no such layer")

    monkeypatch.setattr(comfy.previewer, "decode_latent_to_preview_image", fail, raising=False)
    assert sample(place).shape == (1, 16, 4, 1, 1)
    assert all(picture is None for _, _, picture in comfy.shown)
    comfy.base.interrupt = InterruptAsException()
    with pytest.raises(InterruptAsException):
        sample(place)


def test_with_previews_off_upstreams_callback_runs(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.previewer = None
    apply("framepack-preview", "framepack-memory")
    sample(place)
    assert comfy.shown == ["upstream's"] * 6


def test_switched_off_in_the_settings_each_does_nothing(
    place: Any, comfy: Any, apply: Callable[..., None], card: Card,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from hy3d_rocm.comfy.patches.framepack import SPECS

    apply()
    off = frozenset(spec.name for spec in SPECS) - {"framepack-import"}
    settings_are(monkeypatch, patches_off=off)
    comfy.management.current_loaded_models[:] = [Loaded("AutoencoderKL", "decoder")]
    sample(place)
    assert comfy.unloaded == []
    assert card.sections == 0
    assert comfy.shown == ["upstream's"] * 6


@pytest.mark.parametrize(
    ("owner", "name", "spec", "sentence"),
    [
        ("nodes", "sample_hunyuan", "framepack-memory", "its module nodes has no sample_hunyuan"),
        ("nodes", "sample_hunyuan", "framepack-preview", "its module nodes has no sample_hunyuan"),
        ("memory", "get_cuda_free_memory_gb", "framepack-import", "its module memory has no"),
        ("FramePackSampler", "FUNCTION", "framepack-unload", "is no V1 node (it has no FUNCTION)"),
        ("FramePackSampler", "INPUT_TYPES", "framepack-memory", "has no input gpu_memory_preser"),
    ],
)  # fmt: skip
def test_a_changed_upstream_is_left_alone_with_a_sentence(
    owner: str, name: str, spec: str, sentence: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.patches.framepack import SPECS

    monkeypatch.delattr(place.part(owner), name)
    (found,) = [one for one in SPECS if one.name == spec]
    assert sentence in (found.expects(place) or "")
