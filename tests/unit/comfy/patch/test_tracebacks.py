"""Errors of other people's code leave our guards without a frame of ours; ours keep theirs."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
import vae_patch_doubles
from places import ROOT
from vae_patch_doubles import Model, core_patched, latents, run_source

from hy3d_rocm.comfy.patch import Change, PatchSet

fake_comfy, core = patches_doubles.fake_comfy, vae_patch_doubles.core

PACKAGE = str(ROOT / "hy3d_rocm")


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def is_ours(error: BaseException) -> bool:
    return any(name.startswith(PACKAGE) for name in frames(error))


def failing(vae: Any, error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    vae.first_stage_model.before = fail
    return lambda: vae.decode(latents())


@pytest.mark.parametrize("error", [ValueError("theirs"), KeyboardInterrupt()])
def test_an_error_of_the_original_names_us_nowhere(
    core: SimpleNamespace, error: BaseException
) -> None:
    vae = core.VAE(Model())
    with core_patched(), pytest.raises(type(error)) as caught:
        failing(vae, error)()
    assert not is_ours(caught.value), frames(caught.value)
    assert frames(caught.value)[0] == __file__
    assert "<comfy.sd>" in frames(caught.value)


def test_an_error_of_torch_within_our_mode_names_us_nowhere(core: SimpleNamespace) -> None:
    """The model's own convolution is called through our mode; the latents are wrong."""
    vae = core.VAE(Model())
    with core_patched(), pytest.raises(RuntimeError, match="channels") as caught:
        vae.decode(torch.zeros(1, 5, 4, 4))
    assert not is_ours(caught.value), frames(caught.value)


def test_stacked_sets_leave_no_frame_either(core: SimpleNamespace) -> None:
    def passing(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            return original(*args)

        return method

    vae = core.VAE(Model())
    outer = PatchSet("outer")
    with core_patched():
        outer.apply([Change(core.VAE, "decode", passing)])
        with pytest.raises(ValueError, match="theirs") as caught:
            failing(vae, ValueError("theirs"))()
        assert outer.revert() == ()
    assert not is_ours(caught.value), frames(caught.value)


def test_an_error_that_we_raise_keeps_its_frames(core: SimpleNamespace) -> None:
    from hy3d_rocm.decoding.memory.budget import parse_budget

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            parse_budget("6 parsecs")

        return method

    patches = PatchSet()
    patches.apply([Change(core.VAE, "decode", refusing)])
    with pytest.raises(ValueError, match="parsecs") as caught:
        core.VAE(Model()).decode(latents())
    patches.revert()
    assert is_ours(caught.value)
    # In other people's code, but made by us within it.
    vae = core.VAE(Model())
    vae.first_stage_model.before = lambda: parse_budget("6 parsecs")  # type: ignore[assignment]
    with core_patched(), pytest.raises(ValueError, match="parsecs") as caught:
        vae.decode(latents())
    assert is_ours(caught.value)


def test_a_coroutine_of_theirs_names_us_nowhere(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PROTECT_PROMPTS", "on")
    source = """
class Node:
    FUNCTION = "run"

    def run(self):
        raise ValueError("theirs")
"""
    node = run_source("a_pack", source, monkeypatch).Node()
    with core_patched(), pytest.raises(ValueError, match="theirs") as caught:
        asyncio.run(core.execution.get_output_data("p", "u", node, {}))
    assert not is_ours(caught.value), frames(caught.value)
    assert frames(caught.value)[-2:] == ["<execution>", "<a_pack>"]
