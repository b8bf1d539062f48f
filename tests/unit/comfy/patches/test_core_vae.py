"""ComfyUI's VAE class, patched: failing convolutions, parts, NaN, cancels, what is left alone.

The class is a stand-in; tests/unit/comfy/patches/test_core_vae_in_comfyui.py has the real ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
import vae_patch_doubles
from patches_doubles import InterruptAsBase, InterruptAsException
from vae_patch_doubles import Model, core_patched, latents, pixels

from hy3d_rocm.conv import Fault, forget, inject_faults, protect

fake_comfy, core = patches_doubles.fake_comfy, vae_patch_doubles.core

METHODS = ("decode", "decode_tiled", "encode", "encode_tiled")


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    forget()


def call(vae: Any, name: str) -> torch.Tensor:
    made: torch.Tensor = getattr(vae, name)(pixels() if "encode" in name else latents())
    return made


@pytest.mark.parametrize("mode", ["protect", "full"])
def test_a_failing_convolution_ends_in_the_same_result(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("HY3D_ROCM_VAE", mode)
    vae = core.VAE(Model())
    for name in METHODS:
        want = call(vae, name)
        with inject_faults(Fault("current")):
            with pytest.raises(RuntimeError, match="No suitable algorithm"):
                call(vae, name)
            with core_patched():
                assert torch.equal(call(vae, name), want), name
            with pytest.raises(RuntimeError, match="No suitable algorithm"):
                call(vae, name)


def test_switched_off_by_either_setting_it_is_comfyuis_own(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import settings

    vae = core.VAE(Model())
    with core_patched():
        for name in METHODS:
            call(vae, name)
        monkeypatch.setenv("HY3D_ROCM_VAE", "off")
        for name in METHODS:
            call(vae, name)
        monkeypatch.delenv("HY3D_ROCM_VAE")
        now = settings.Settings("stream", "auto", frozenset({"core-vae"}))
        monkeypatch.setattr(settings, "current", lambda: now)
        for name in METHODS:
            call(vae, name)
    assert vae.first_stage_model.modes == [1] * 4 + [0] * 8


def model_called(module: str, name: str) -> Any:
    return type(name, (Model,), {"__module__": module})()


@pytest.mark.parametrize(
    "change",
    [
        lambda vae: setattr(vae, "latent_dim", 1),
        lambda vae: setattr(vae, "extra_1d_channel", 16),
        lambda vae: setattr(vae, "first_stage_model", model_called("comfy.taesd.taesd", "TAESD")),
        lambda vae: setattr(vae, "first_stage_model", model_called("comfy.ldm.x.audio_vae", "A")),
    ],
    ids=["sound in one axis", "sound in two", "a preview's", "an audio model"],
)
def test_previews_and_sound_are_left_alone(
    core: SimpleNamespace, change: Callable[[Any], None]
) -> None:
    vae = core.VAE(Model())
    change(vae)
    with core_patched():
        for name in METHODS:
            call(vae, name)
    assert vae.first_stage_model.modes == [0, 0, 0, 0]


def test_inside_of_somebodys_protect_nothing_is_added(core: SimpleNamespace) -> None:
    vae = core.VAE(Model())
    with core_patched(), protect():
        call(vae, "decode")
    assert vae.first_stage_model.modes == [1]


def full_is(monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any]) -> None:
    """The setting is "full" and our nodes' decode and encode are `work`."""
    from hy3d_rocm.comfy.patches import vaes

    monkeypatch.setenv("HY3D_ROCM_VAE", "full")
    monkeypatch.setattr(vaes, "run_vae", work)


def report(**fields: Any) -> Any:
    from hy3d_rocm.decoding.report import DecodeReport

    return DecodeReport("X", (), (), "cpu", "float32", 0, "none", **fields)


def test_in_full_decode_and_encode_are_what_our_nodes_do(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def work(vae: Any, given: torch.Tensor, *, budget: str, **asked: Any) -> Any:
        seen.append((vae, tuple(given.shape), budget, asked["strategy"], asked["who"]))
        return given * 0, report()

    full_is(monkeypatch, work)
    monkeypatch.setenv("HY3D_ROCM_VAE_BUDGET", "6GB")
    vae = core.VAE(Model())
    before = dict(vars(vae))
    with core_patched():
        assert not call(vae, "decode").any()
        assert not vae.encode(pixel_samples=pixels()).any()
    assert seen == [
        (vae, (2, 2, 4, 4), "6GB", "auto", "VAE.decode"),
        (vae, (2, 4, 4, 2), "6GB", "auto", "VAE.encode"),
    ]
    assert vars(vae) == before
    assert vae.first_stage_model.modes == []


def test_where_our_decode_fails_comfyuis_runs_and_its_own_errors_are_not_tried_twice(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_is(
        monkeypatch,
        lambda vae, given, own, **_: (own(given), report(strategy="own", plan={"how": "so"})),
    )
    vae = core.VAE(Model())
    with core_patched():
        call(vae, "decode")
        with pytest.raises(RuntimeError, match="channels"):
            vae.decode(torch.zeros(1, 5, 4, 4))
        assert len(vae.first_stage_model.modes) == 2

        def too_small(vae: Any, given: Any, **_: Any) -> Any:
            raise ValueError("6 MB is too small")

        full_is(monkeypatch, too_small)
        call(vae, "decode")
    assert len(vae.first_stage_model.modes) == 3


def test_tiles_that_were_asked_for_stay(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_is(monkeypatch, pytest.fail)
    vae = core.VAE(Model())
    with core_patched():
        call(vae, "decode_tiled")
        call(vae, "encode_tiled")
    assert vae.first_stage_model.modes == [1, 1]


def test_why_it_is_not_split_is_said_once(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(vae: Any, given: Any, **_: Any) -> Any:
        raise TypeError("its layers are strange\nand more")

    full_is(monkeypatch, refuse)
    vae = core.VAE(Model())
    want = call(vae, "encode")
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    with core_patched():
        for _ in range(3):
            assert torch.equal(call(vae, "encode"), want)
    lines = [r.getMessage() for r in caplog.records if "in its own way" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("hy3d_rocm: VAE.encode")
    assert lines[0].endswith(": its layers are strange")


def test_options_for_the_model_go_to_the_model(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_is(monkeypatch, lambda vae, given, **_: (given, report()))
    vae = core.VAE(Model())
    with core_patched():
        vae.decode(latents(), vae_options={"chunks": 3})
        vae.decode(latents(), {"chunks": 4})
        vae.decode(samples_in=latents(), vae_options={})
    assert vae.first_stage_model.options == [{"chunks": 3}, {"chunks": 4}]


@pytest.mark.parametrize("mode", ["protect", "full"])
def test_out_of_memory_outside_of_convolutions_is_comfyuis_to_retry(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("HY3D_ROCM_VAE", mode)
    vae = core.VAE(Model())
    want = call(vae, "decode")
    errors = [torch.OutOfMemoryError("HIP out of memory")]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    vae.first_stage_model.before = fail_once
    with core_patched():
        assert torch.equal(call(vae, "decode"), want)
    assert len(vae.tiled) == 1


def test_nan_from_a_back_end_is_computed_again_with_each_convolution_checked(
    core: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    vae = core.VAE(Model())
    want = call(vae, "decode")
    with core_patched():
        call(vae, "decode")  # the first result of a shape is checked anyway
        # Lies as often as it is asked: seen only where each result is looked at.
        vae.first_stage_model.before = lambda: call_twice()
        fault = Fault("current", effect="nan", first=1)

        def call_twice() -> None:
            torch.nn.functional.conv2d(latents(), vae.first_stage_model.weight, padding=1)

        with inject_faults(fault):
            got = call(vae, "decode")
    assert torch.equal(got, want)
    assert "VAE.decode gave NaN: once more" in caplog.text


def test_nan_that_no_convolution_made_is_given_back_with_a_sentence(
    core: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    vae = core.VAE(Model())
    vae.process_output = lambda frames: frames * float("nan")
    with core_patched():
        assert call(vae, "decode").isnan().all()
        assert len(vae.first_stage_model.modes) == 2
        assert "cannot hold its values" in caplog.text
        vae.decode(latents() * float("nan"))  # and what came in as NaN is not tried again
        assert len(vae.first_stage_model.modes) == 3


@pytest.mark.parametrize("kind", [InterruptAsBase, InterruptAsException])
def test_a_cancel_goes_through_as_it_is(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    from hy3d_rocm.comfy.patches import vaes

    monkeypatch.setattr(core.comfy.management, "InterruptProcessingException", kind)
    vae = core.VAE(Model())
    for mode in ("protect", "full"):
        monkeypatch.setenv("HY3D_ROCM_VAE", mode)
        for name in METHODS:
            core.comfy.interrupt = kind()
            with core_patched(), pytest.raises(kind):
                call(vae, name)
            assert not vaes.LOCAL.modes


def test_what_went_another_way_is_kept_for_the_status(core: SimpleNamespace) -> None:
    from hy3d_rocm.comfy.nodes import machine

    vae = core.VAE(Model())
    with core_patched(), inject_faults(Fault("current")):
        call(vae, "decode")
    (decodes,) = [s for s in machine.report() if s.title.startswith("Decodes")]
    assert decodes.lines[0].startswith("VAE.decode, in place, by its own code, with failing")
    assert "; 1 of 1 convolutions went another way than the first" in decodes.lines[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda VAE: delattr(VAE, "decode_tiled"),
        lambda VAE: setattr(VAE, "decode", lambda self, samples, options=None: None),
        lambda VAE: setattr(VAE, "encode", lambda self, pixel_samples: pixel_samples),
    ],
)
def test_a_changed_class_is_not_as_we_know_it(
    core: SimpleNamespace, change: Callable[[Any], None]
) -> None:
    from hy3d_rocm.comfy.patches import upstream, vaes

    change(core.VAE)
    (place,) = upstream.find("comfyui", {})
    assert "has no" in (vaes.CORE_SPECS[0].expects(place) or "")


def test_taken_back_the_class_is_as_it_was(core: SimpleNamespace) -> None:
    before = dict(vars(core.VAE))
    with core_patched():
        assert vars(core.VAE)["decode"] is not before["decode"]
    assert dict(vars(core.VAE)) == before
