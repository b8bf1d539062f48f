"""The gate: HY3D_ROCM_PATCH, HY3D_ROCM, and what torch says of the GPU."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hy3d_rocm.comfy.patch.gate import amd_gpu, read_choice, should_patch


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
    (SimpleNamespace(), False, "torch sees no GPU"),
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


def test_a_torch_that_cannot_be_imported_is_no_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found, reason = amd_gpu()
    assert not found
    assert "torch cannot be imported" in reason


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


KNOWN = ("delight", "vae-decode")
GOOD = ["", "auto", "on", "off", "on,", ",on", "On , -Delight", "-delight", "-delight,-vae-decode"]
BAD = [
    "yes",
    "1",
    "on,off",
    "on-delight",
    "auto,-",
    "on,-nothing",
    "delight",
    "- delight x",
    "on off",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_grammar_allows_is_no_problem(text: str) -> None:
    assert read_choice(text, KNOWN).problem is None


@pytest.mark.parametrize("text", BAD)
def test_what_it_does_not_allow_is_auto_with_a_sentence(text: str) -> None:
    choice = read_choice(text, KNOWN)
    assert choice.mode == "auto"
    assert choice.problem is not None
    assert repr(text) in choice.problem
    assert "delight, vae-decode" in choice.problem


def test_mode_and_names_are_read_in_any_order() -> None:
    for order in itertools.permutations(["on", "-delight", " -VAE-decode "]):
        choice = read_choice(",".join(order), KNOWN)
        assert choice == ("on", frozenset(KNOWN), None)


def test_names_that_can_be_read_are_left_out_whatever_else_is_wrong() -> None:
    assert "delight" in read_choice("yes,-delight", KNOWN).left_out


def test_names_are_not_looked_at_where_none_are_known() -> None:
    assert read_choice("on,-anything").problem is None
