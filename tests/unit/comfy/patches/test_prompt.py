"""Every node of a prompt under protect(), and what is said at the start. ComfyUI is a stand-in."""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
import vae_patch_doubles
from patch_doubles import Core
from patch_fixtures import uninstall
from vae_patch_doubles import Model, core_patched, latents

from hy3d_rocm.conv import Fault, forget, inject_faults
from hy3d_rocm.conv.router import LOCAL

fake_comfy, core = patches_doubles.fake_comfy, vae_patch_doubles.core


class Upscaler:
    FUNCTION = "go"

    def __init__(self) -> None:
        self.model = Model()

    def go(self, z: torch.Tensor) -> Any:
        return self.model.decode(z)


class Slow(Upscaler):
    async def go(self, z: torch.Tensor) -> Any:
        return self.model.decode(z)


class Decoding:
    FUNCTION = "go"

    def __init__(self, vae: Any) -> None:
        self.vae = vae

    def go(self, z: torch.Tensor) -> Any:
        return self.vae.decode(z)


def run_node(core: SimpleNamespace, node: Any) -> Any:
    """As execution.py runs it."""
    made = core.execution.get_output_data("p", "1", node, {"z": latents()}, v3_data=None)
    return asyncio.run(made)


def test_off_by_default(core: SimpleNamespace) -> None:
    node = Upscaler()
    with core_patched():
        run_node(core, node)
    assert node.model.modes == [0]


def test_switched_on_a_failing_convolution_of_any_node_ends_in_the_same_result(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    node = Upscaler()
    want = run_node(core, node)
    with inject_faults(Fault("current")):
        with pytest.raises(RuntimeError, match="No suitable algorithm"):
            run_node(core, node)
        with core_patched():
            assert torch.equal(run_node(core, node), want)
    assert node.model.modes == [0, 0, 1]
    assert not LOCAL.modes


def test_a_vae_in_a_protected_node_is_still_looked_after(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    vae = core.VAE(Model())
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    forget()
    with core_patched(), inject_faults(Fault("current")):
        run_node(core, Decoding(vae))
        run_node(core, Upscaler())
    assert vae.first_stage_model.modes == [2]
    lines = [r.getMessage() for r in caplog.records if "another way" in r.getMessage()]
    assert [line.split(":")[1] for line in lines] == [" VAE.decode", " Upscaler"]  # each once


def test_a_node_that_may_stand_still_is_left_alone(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    node = Slow()
    with core_patched():
        made = run_node(core, node)
        assert asyncio.iscoroutine(made)
        asyncio.run(made)
    assert node.model.modes == [0]


def test_what_a_node_raises_goes_through_and_the_mode_ends(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    node = Upscaler()

    def cancelled() -> None:
        raise patches_doubles.InterruptAsBase

    node.model.before = cancelled
    with core_patched(), pytest.raises(patches_doubles.InterruptAsBase):
        run_node(core, node)
    assert not LOCAL.modes


def test_an_executor_that_is_no_coroutine_is_left_alone(core: SimpleNamespace) -> None:
    from hy3d_rocm.comfy.patches import upstream, vaes

    core.execution.get_output_data = lambda prompt_id, unique_id, obj, input_data_all: None
    (place,) = upstream.find("comfyui", {})
    assert vaes.PROMPTS.expects(place) == "execution.get_output_data is no coroutine by now"


def started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, choice: str
) -> list[str]:
    """ComfyUI's start with all packs; the lines about it."""
    from hy3d_rocm.comfy.patches.install import install_patches

    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    caplog.clear()
    server = Core(monkeypatch).server
    installation = install_patches({"HY3D_ROCM_PATCH": choice})
    assert installation is not None
    server.start()
    return [record.getMessage() for record in caplog.records]


def test_at_the_start_one_line_says_what_is_in_place_and_all_is_taken_back(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy.nodes import machine

    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    before = dict(vars(core.VAE)), core.execution.get_output_data
    lines = started(monkeypatch, caplog, "on")
    assert lines == [
        "hy3d_rocm: ComfyUI: core-vae, prompts run as the VAE settings say "
        "(HY3D_ROCM_PATCH=off leaves them alone)"
    ]
    (patches,) = [s for s in machine.report() if s.title == "Patches"]
    assert patches.lines == [lines[0].removeprefix("hy3d_rocm: ")]
    assert vars(core.VAE)["decode"] is not before[0]["decode"]
    assert uninstall() == ()
    assert (dict(vars(core.VAE)), core.execution.get_output_data) == before


def test_what_the_settings_switch_off_is_not_wrapped_and_at_each_prompt_they_are_asked(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy.patches.install import installed

    own = core.VAE.decode, core.execution.get_output_data
    monkeypatch.setenv("HY3D_ROCM_VAE", "off")
    assert started(monkeypatch, caplog, "on") == []
    assert (core.VAE.decode, core.execution.get_output_data) == own
    installation = installed()
    assert installation is not None
    for vae, prompts in itertools.product(("protect", "off"), ("on", "off")):
        monkeypatch.setenv("HY3D_ROCM_VAE", vae)
        monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", prompts)
        installation.run()
        assert (core.VAE.decode is not own[0]) == (vae == "protect")
        assert (core.execution.get_output_data is not own[1]) == (prompts == "on")
    uninstall()
    assert (core.VAE.decode, core.execution.get_output_data) == own


def test_on_other_machines_comfyui_is_left_alone_and_only_the_status_says_so(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy.nodes import machine

    before = dict(vars(core.VAE))
    assert started(monkeypatch, caplog, "off") == []
    assert dict(vars(core.VAE)) == before
    (patches,) = [s for s in machine.report() if s.title == "Patches"]
    assert patches.lines[0].startswith("ComfyUI is left alone: HY3D_ROCM_PATCH=off")
    uninstall()


def test_one_left_out_by_name_or_changed_costs_one_line_and_not_the_other(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    core.VAE.encode = lambda self, pixel_samples: pixel_samples
    lines = started(monkeypatch, caplog, "on,-framepack-preview")
    assert len(lines) == 2
    assert lines[0].startswith("hy3d_rocm: ComfyUI: core-vae is left alone: ")
    assert "has no use of first_stage_model" in lines[0]
    assert "ComfyUI: prompts run as" in lines[1]
    uninstall()
    lines = started(monkeypatch, caplog, "on,-core-vae,-prompts")
    assert len(lines) == 2
    assert 'core-vae is left alone: switched off by "-core-vae"' in lines[0]
    uninstall()
