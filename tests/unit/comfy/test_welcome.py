"""The lines at ComfyUI's start, and what is recommended for a card."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patches_doubles import Comfy, fake_comfy, module  # noqa: F401

from hy3d_rocm import _native
from hy3d_rocm.framepack.preservation import SECOND_BYTES, WEIGHTS_BYTES, recommend
from hy3d_rocm.units import GB

SIZES = st.integers(0, 300 * GB)


def test_a_24_gb_card_gets_the_specifications_advice() -> None:
    advice = recommend(24 * GB, 24 * GB, 64 * GB)
    assert (advice.first, advice.stable, advice.unstable) == (5, (10, 15), (3, 5))
    assert (advice.preserved_bytes, advice.more_bytes) == (18 * GB, 19 * GB)
    assert not advice.fits
    assert advice.text() == (
        "18.0 GB, 75 % of the 24.0 GB that are free, are kept free in the first section, then what "
        "sections take; the other weights are swapped. Try 2.4 s (two sections, 69 frames) first, "
        "then 5 s; 10 to 15 s if that is stable, else 3 to 5 s with 19 GB preserved"
    )


def test_a_card_with_room_for_everything_keeps_all_weights() -> None:
    assert recommend(48 * GB, 48 * GB, 64 * GB).fits
    assert "all weights stay on the card" in recommend(80 * GB, 80 * GB, 64 * GB).text()


def test_a_small_card_begins_shorter() -> None:
    advice = recommend(7 * GB, 8 * GB, 64 * GB)
    assert (advice.first, advice.stable, advice.unstable) == (3, (5, 5), (1, 3))


@given(free=SIZES, used=SIZES, host=SIZES)
def test_what_is_recommended_can_be_had(free: int, used: int, host: int) -> None:
    advice = recommend(free, free + used, host)
    assert 1 <= advice.unstable[0] <= advice.first <= advice.stable[1]
    assert advice.preserved_bytes <= advice.more_bytes <= max(free, 1)
    assert advice.stable[1] == 1 or 2 * advice.stable[1] * SECOND_BYTES <= host
    assert advice.fits == (free - advice.preserved_bytes >= WEIGHTS_BYTES)


@pytest.fixture(name="welcome")
def with_comfy(fake_comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    monkeypatch.delitem(sys.modules, "server", raising=False)
    from hy3d_rocm.comfy import welcome

    return welcome


def test_on_a_machine_without_a_gpu_the_lines_say_so(welcome: Any) -> None:
    text = welcome.say({})
    head, *rest = text.splitlines()
    assert head.startswith("hy3d_rocm ")
    assert [line.split(":")[0].strip() for line in rest] == [
        "C core", "corrected in place", "memory", "MIOpen", "FramePack",
    ]  # fmt: skip
    assert "nothing: there is no AMD GPU here" in rest[1]
    assert "no VRAM limit" in rest[2]
    assert rest[3].endswith("MIOpen: not used by this torch")
    assert rest[4].endswith("FramePack: computes on cpu, nothing is preserved")


@pytest.mark.parametrize("is_there", [True, False])
def test_they_say_whether_the_core_is_there(
    welcome: Any, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(_native, "available", is_there)
    level = _native.cpu_info()["level"]
    told = f"there, {level}" if is_there else "missing: no CPU convolution, no rasteriser, no exact"
    assert f"\n  C core: {told}" in welcome.say({})


def test_on_an_amd_card_they_tell_the_cap_the_find_mode_and_the_preserved_memory(
    welcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import memory

    card = torch.device("cuda", 0)
    usage = memory.Usage(card, 20 * GB, 0, 20 * GB, "limit")
    monkeypatch.setattr(memory, "usage", lambda device=None: usage)
    monkeypatch.setattr(memory, "comfy_device", lambda: card)
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    collect = "hy3d_rocm.diagnose.miopen.places.collect"
    monkeypatch.setattr(collect, lambda environ: {"bytes": 3 * GB, "find_entries": 41})
    text = welcome.say({"MIOPEN_FIND_MODE": "FAST", "HY3D_ROCM_PATCH": "on"})
    assert "  memory: 20.0 GB free on cuda:0, VRAM limit 20GB\n" in text
    assert (
        "  MIOpen: find mode FAST, 41 results of earlier searches, 3.0 GB on disk; convolutions"
        in text
    )
    assert "  FramePack: 15.0 GB, 75 % of the 20.0 GB that are free, are kept free in the" in text
    assert "Try 2.4 s (two sections, 69 frames) first, then " in text
    assert (
        "  corrected in place: nothing that is known is loaded, or the settings switch it off\n"
        in text
    )


def test_a_line_that_cannot_be_made_costs_nothing_else(
    welcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import memory

    def broken(device: Any = None) -> Any:
        raise RuntimeError("HIP error: invalid device ordinal")

    monkeypatch.setattr(memory, "usage", broken)
    text = welcome.say({})
    assert "memory: cannot be told (RuntimeError: HIP error: invalid device ordinal)" in text
    assert len(text.splitlines()) == 6


def test_they_are_said_once_the_server_starts_after_all_packs_are_patched(
    welcome: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hooks: list[Any] = []
    server = SimpleNamespace(app=SimpleNamespace(on_startup=hooks))
    made = module("server", PromptServer=SimpleNamespace(instance=server))
    monkeypatch.setitem(sys.modules, "server", made)
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    welcome.arrange()
    assert caplog.records == []
    (hook,) = hooks
    asyncio.run(hook(None))
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("hy3d_rocm ")
