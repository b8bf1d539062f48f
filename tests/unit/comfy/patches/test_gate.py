"""The gate: HY3D_ROCM_PATCH, HY3D_ROCM, and what torch says of the GPU."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import vae_patch_doubles

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.import_hooks import switched_on
from hy3d_rocm.comfy.patches.install import amd_gpu, should_patch
from hy3d_rocm.diagnose.env.choices import Choice, read_patch_choice

fake_comfy, core = patches_doubles.fake_comfy, vae_patch_doubles.core


def fake_torch(hip: str | None, *names: str | Exception, available: Any = True) -> Any:
    def is_available() -> bool:
        if isinstance(available, Exception):
            raise available
        return bool(available)

    def get_device_name(index: int) -> str:
        name = names[index]
        if isinstance(name, Exception):
            raise name
        return name

    cuda = SimpleNamespace(
        is_available=is_available, device_count=lambda: len(names), get_device_name=get_device_name
    )
    return SimpleNamespace(version=SimpleNamespace(hip=hip), cuda=cuda)


BROKEN = RuntimeError("driver")
MACHINES = [
    (fake_torch("6.4", "AMD Radeon RX 7900 XTX"), True, "AMD GPU: AMD Radeon RX 7900 XTX (ROCm 6"),
    (fake_torch("7.1", "gfx1151"), True, "AMD GPU: gfx1151 (ROCm 7.1)"),
    (fake_torch("7.1", BROKEN), True, "AMD GPU: GPU 0 (ROCm 7.1)"),
    (fake_torch("6.4", available=False), False, "no GPU here that torch (ROCm 6.4) can use"),
    (fake_torch("6.4", "gfx1151", available=BROKEN), False, "no GPU here that torch (ROCm"),
    (fake_torch(None, "NVIDIA H200"), False, "there is no AMD GPU here (NVIDIA H200)"),
    (fake_torch(None, "AMD Radeon RX 6800 [ZLUDA]"), True, "[ZLUDA]"),
    (fake_torch(None, "Radeon VII"), True, "Radeon VII"),
    (fake_torch(None, "NVIDIA T4", "Some GPU [ZLUDA]"), True, "Some GPU [ZLUDA]"),
    (fake_torch(None, BROKEN, "radeon pro"), True, "radeon pro"),
    (fake_torch(None, "NVIDIA RAMDAC 1"), False, "no AMD GPU"),  # "amd" inside a word
    (fake_torch(None, available=False), False, "torch sees no GPU"),
    (fake_torch(None, available=AssertionError("not compiled")), False, "torch sees no GPU"),
]


@pytest.mark.parametrize(("torch", "amd", "text"), MACHINES)
def test_an_amd_gpu_is_known_by_rocm_or_by_name(
    torch: Any, amd: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    found, reason = amd_gpu()
    assert found is amd
    assert text in reason
    assert should_patch({})[0] is amd
    assert ("HY3D_ROCM_PATCH=on" in should_patch({})[1]) is not amd  # a no says how to get a yes


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HY3D_ROCM_PATCH": "on"}, True),
        ({"HY3D_ROCM_PATCH": " ON , -mesh"}, True),
        ({"HY3D_ROCM_PATCH": "off"}, False),
        ({"HY3D_ROCM_PATCH": "-mesh,off"}, False),
        ({"HY3D_ROCM": "off", "HY3D_ROCM_PATCH": "on"}, False),
        ({"HY3D_ROCM": "on", "HY3D_ROCM_PATCH": "on"}, True),
    ],
)
def test_the_user_s_word_comes_before_the_gpu_and_without_torch(
    environ: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # asking it would be a "no"
    assert should_patch(environ)[0] is expected


def test_switched_off_says_by_what_and_how_to_switch_it_on() -> None:
    assert should_patch({"HY3D_ROCM_PATCH": "off"})[1] == (
        "HY3D_ROCM_PATCH=off switches its corrections off; set it to auto or on and restart "
        "ComfyUI to have them"
    )


GOOD = ["", "auto", "on", "off", "on,", ",on", "On , -Delight", "-delight", "-delight,-vae-decode"]
# What is written, and what the sentence asks.
BAD = [
    ("yes", "(yes): "),
    ("1", "(1): "),
    ("banana", "(banana): "),
    ("on,off", "(on and off at once): "),
    ("on-delight", "(on-delight: did you mean -delight?): "),
    ("auto,-", "(-): "),
    ("on,-nothing", "(-nothing): "),
    ("on,-delihgt", "(-delihgt: did you mean -delight?): "),
    ("-frampack-unload", "(-frampack-unload: did you mean -framepack-unload?): "),
    ("delight", "(delight: did you mean -delight?): "),
    ("-off", "(-off: did you mean off?): "),
    ("onn", "(onn: did you mean on?): "),
    ("- delight x", "(-delight x: did you mean -delight?): "),
    ("on off", "(on off"),
]


def read(text: str) -> Choice:
    return read_patch_choice({"HY3D_ROCM_PATCH": text})


@pytest.mark.parametrize("text", GOOD)
def test_what_the_grammar_allows_is_no_problem(text: str) -> None:
    assert read(text).problem is None


@pytest.mark.parametrize(("text", "asks"), BAD)
def test_what_cannot_be_read_is_off_and_the_nearest_name_is_asked_for(text: str, asks: str) -> None:
    choice = read(text)
    assert choice.mode == "off"
    assert choice.left_out == {*settings.PATCHES, "prompts"}
    assert choice.problem is not None
    assert f"HY3D_ROCM_PATCH={text} is not understood {asks}" in choice.problem
    assert "nothing is corrected in place" in choice.problem
    assert should_patch({"HY3D_ROCM_PATCH": text}) == (
        False, f"HY3D_ROCM_PATCH={text} is not understood"
    )  # fmt: skip
    for name in settings.PATCHES:
        assert not switched_on(name, {"HY3D_ROCM_PATCH": text})


def test_mode_and_names_are_read_in_any_order() -> None:
    for order in itertools.permutations(["on", "-delight", " -VAE-decode "]):
        assert read(",".join(order)) == ("on", frozenset({"delight", "vae-decode"}), None)


def test_every_patch_can_be_left_out_by_its_name(core: Any) -> None:
    from hy3d_rocm.comfy.patches.upstream import PACKS

    names = [spec.name for pack in PACKS for spec in pack.specs()]
    assert read(",".join(f"-{name}" for name in names)).problem is None
