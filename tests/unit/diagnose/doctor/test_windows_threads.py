"""Machines of public threads that were not looked at while the rules for Windows were written.

When they were first examined, six of the twelve had the right finding first (`at_first`): four of
eight, and two of four after rules were added. With what the others showed, rules were added again.
So this holds what was found, and is no measure any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import GB, Change, Facts, changed, put
from windows_machines import (
    CUSTOM,
    HALO,
    RAPHAEL,
    RX580,
    RX6700,
    RX9060,
    RX9070,
    Card,
    Windows,
    Wsl,
    gpu,
    split,
)

from hy3d_rocm.diagnose.doctor import examination
from hy3d_rocm.diagnose.doctor.examination import judge

GITHUB = "https://github.com"
RX6900 = ("AMD Radeon RX 6900 XT", "73BF", "gfx1030", 16)


def under_zluda(card: Card) -> Facts:
    return gpu(card, name=f"{card[0]} [ZLUDA]", architecture="")


def family(name: str, version: str) -> list[str]:
    return [f"{n}-{version}" for n in ("rocm", "rocm_sdk_core", f"rocm_sdk_libraries_{name}")]


@dataclass(frozen=True)
class Thread:
    link: str
    machine: Windows | Wsl
    finding: str
    words: str  # in the remedy
    at_first: bool
    change: Change = lambda facts: None


def windows(**parts: Any) -> Windows:
    return Windows(**{"environ": {}, **parts})


THREADS = [
    Thread(
        "Comfy-Org/desktop/issues/1745",
        windows(cards=(RX6900,), wheels=CUSTOM, torch="2.9.1+rocm7.2.1", software=""),
        "rdna2-crashes", "torch[device-gfx1030]", at_first=False,
        change=put("torch", {"error": "died (exit code 3221225477)", "is_hang": False}),
    ),
    Thread(
        "ROCm/legacy-rocm-build/issues/5733",
        windows(wheels=family("custom", "0.1.dev0"), torch="2.9.1+cpu"),
        "torch-replaced", "torch[device-gfx1100]", at_first=True,
    ),
    Thread(
        "ROCm/TheRock/issues/1079",
        windows(cards=(HALO,), wheels=family("gfx110X_dgpu", "7.0.0rc20250717"),
                torch="2.7.0a0+rocm7.0.0rc20250717", kernels=("gfx1100", "gfx1101", "gfx1102")),
        "architecture-missing", "torch[device-gfx1151]", at_first=True,
    ),
    Thread(
        "ROCm/legacy-rocm-build/issues/5535",
        Wsl(bridge="", torch="2.8.0+rocm7.0.2", listed=()),
        "wsl-no-bridge", "librocdxg", at_first=True,
    ),
    Thread(
        "ROCm/legacy-rocm-build/issues/4490",
        Wsl(bridge="", older_bridge=True, torch="2.4.0+rocm6.3.4", listed=()),
        "wsl-sees-no-gpu", "Adrenalin", at_first=True,
    ),
    Thread(
        "lshqqytiger/stable-diffusion-webui-amdgpu/issues/652",
        windows(cards=(RAPHAEL, RX9070), wheels=(), torch="2.7.1+cu118", zluda=True,
                environ={"HIP_PATH": "C:\\Program Files\\AMD\\ROCm\\6.4"},
                torch_says={"gpus": [under_zluda(RAPHAEL), under_zluda(RX9070)]}),
        "integrated-gpu-first", "HIP_VISIBLE_DEVICES=1", at_first=False,
    ),
    Thread(  # at first by this machine, whose torch had no kernels for its card
        "patientx-cfz/comfyui-rocm/issues/69",
        windows(cards=(RX6700,), wheels=split("gfx1031", version="7.14.0"), listed=(),
                torch="2.12.0+rocm7.14.0", kernels=("gfx1030", "gfx1031"),
                environ={"HIP_VISIBLE_DEVICES": "1"}),
        "torch-sees-no-gpu", "unset HIP_VISIBLE_DEVICES", at_first=False,
    ),
    Thread(  # the thread does not tell the card
        "lllyasviel/FramePack/issues/75",
        windows(memory=16 * GB, page_files=("C:\\pagefile.sys 16384 16384",)),
        "page-file-fixed", "let Windows manage", at_first=False,
    ),
    Thread(  # its installer had taken the processor's GPU for the card
        "unslothai/unsloth/issues/7776",
        windows(cards=(RAPHAEL, RX9060), wheels=family("gfx103X_all", "7.13.0"),
                torch="2.11.0+rocm7.13.0", kernels=("gfx1030", "gfx1031", "gfx1036")),
        "architecture-missing", "torch[device-gfx1200]", at_first=False,
    ),
    Thread(
        "vladmandic/sdnext/issues/3307",
        windows(cards=(RX6700,), wheels=(), torch="2.3.0+cu118", zluda=True),
        "zluda-without-sdk", "HIP SDK", at_first=False,
    ),
    Thread(
        "LykosAI/StabilityMatrix/issues/1711",
        windows(cards=(RX580,), wheels=(), torch=""),
        "torch-not-installed", "install", at_first=True,
    ),
    Thread(  # a Python for which AMD has no wheels
        "aqarooni02/Comfyui-AMD-Windows-Install-Script/issues/2",
        windows(cards=(RX9070,), wheels=(), torch="2.9.0"),
        "torch-not-for-amd", "torch[device-gfx1201]", at_first=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread.link)
def test_the_machine_of_a_thread_is_told(
    thread: Thread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "host_facts", {})
    first = judge(changed(thread.machine.facts(tmp_path), thread.change))[0]
    assert first.id == thread.finding, f"{GITHUB}/{thread.link}"
    assert thread.words in first.remedy


def test_half_of_them_were_right_at_first() -> None:
    assert sum(thread.at_first for thread in THREADS) * 2 == len(THREADS)
