"""`hy3d-rocm diagnose`: what is said to do fits the system and the card that the log shows."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from diagnose_cases import all_cases

from hy3d_rocm.diagnose import diagnose
from hy3d_rocm.diagnose.rule import Rule
from hy3d_rocm.diagnose.rules import BY_ID

CASES = all_cases()
NO_GPU = "RuntimeError: No HIP GPUs are available\n"
WSL = (
    "WSL environment detected.\n",
    "crw-rw-rw- 1 root root 10, 125 /dev/dxg\n",
    "dlopen /opt/rocm/lib/librocdxg.so\n",
    "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22\n",
    "Linux-6.6.87.1-microsoft-standard-WSL2-x86_64-with-glibc2.39\n",
)
# What belongs to Linux on the machine itself: WSL has no /dev/kfd, no amdgpu and no such groups.
NOT_IN_WSL = re.compile(r"usermod -|modprobe amdgpu|amdgpu\.\w+=|--group-add|linux-firmware")


@pytest.mark.parametrize("shown", WSL)
def test_wsl_is_not_told_of_groups_or_modules(shown: str) -> None:
    for case in CASES:
        if any(word in case.text for word in ("amdgpu", "kfd", "off the bus")):
            continue  # the kernel's own driver: these are no logs of WSL
        for found in diagnose(shown + case.text):
            assert not NOT_IN_WSL.search(f"{found.do} {found.otherwise}"), (found.rule, case.text)


def test_a_wheel_that_sees_no_gpu_in_wsl_is_told_of_its_own_run_time() -> None:
    (found,) = diagnose(NO_GPU + WSL[-1])
    assert found.rule == "wsl-torch-runtime"
    assert "torch/lib/libhsa-runtime64.so" in found.do.replace('"/torch', "torch")


@pytest.mark.parametrize(
    "shown",
    [
        "$ docker run -it --device=/dev/kfd --device=/dev/dri --group-add video rocm/pytorch\n",
        "podman exec -it comfy bash\n",
        "root@101acc334128:/var/lib/jenkins# rocminfo\n",
    ],
)
def test_in_a_container_the_groups_numbers_are_given_in_place_of_usermod(shown: str) -> None:
    (found,) = diagnose(shown + "Unable to open /dev/kfd read-write: Permission denied\n")
    assert "--group-add" in found.do
    assert "usermod" not in found.do


WINDOWS = (
    "amdhip64_7.dll: hipGetDeviceCount\n",
    "  #0 0x00007fffc9250000 (torch_hip.dll+0x0)\n",
    "Device: privateuseone, using DirectML\n",
    "import torch_directml\n",
    "Press any key to continue . . .\n",
    "HIP SDK 6.4\n",
)
# Rules whose lines only Linux writes.
LINUX_ONLY = re.compile(
    r"amdgpu|kfd|/dev/|\.so\b|HSA|hsa_|kernel|ROCk|dkms|BlockAllocator|Killed\b|systemd"
    r"|GLIBC|GPU node|member of"
)


@pytest.mark.parametrize("shown", WINDOWS)
def test_windows_is_told_no_command_of_linux(shown: str) -> None:
    for case in CASES:
        if LINUX_ONLY.search(case.text):
            continue
        for found in diagnose(shown + case.text):
            assert not re.search(r"\b(?:sudo|export|unset|usermod|swapfile)\b", found.do), (
                found.rule
            )


PROCESSOR_BESIDE = "GPU 0: gfx1103\nDevice: cuda:1 AMD Radeon RX 7900 XTX : native\n"


@pytest.mark.parametrize("shown", ["", "Platform: Windows\n", WSL[0], "podman exec -it x bash\n"])
@pytest.mark.parametrize(
    "rule", [rule for rule in BY_ID.values() if rule.beside], ids=lambda r: r.id
)
def test_a_gpu_in_the_processor_beside_a_card_is_hidden_before_anything_else(
    rule: Rule, shown: str
) -> None:
    case = next(case for case in CASES if case.expected == (rule.id,) and "gfx" not in case.text)
    (found,) = diagnose(shown + PROCESSOR_BESIDE + case.text)
    assert found.do == rule.beside
    (alone,) = diagnose(shown + PROCESSOR_BESIDE.split("\n")[1] + "\n" + case.text)
    assert alone.do != rule.beside


def test_an_nvidia_card_is_not_told_of_amds_driver() -> None:
    crash = "Device: cuda:0 {} : native\nC:\\x\nCUDA error: unspecified launch failure\n"
    (theirs,) = diagnose(crash.format("NVIDIA GeForce RTX 4090"))
    (ours,) = diagnose(crash.format("AMD Radeon RX 9070 XT"))
    assert "Adrenalin" not in theirs.do
    assert "Adrenalin" in ours.do


def test_only_the_card_that_the_sources_name_is_told_to_switch_cwsr_off() -> None:
    for rule in BY_ID.values():
        assert "cwsr" not in f"{rule.do} {rule.windows} {rule.wsl} {rule.otherwise}", rule.id
    fault = "Memory access fault by GPU node-1 on address 0x7. Reason: Page not present.\n"
    (found,) = diagnose("Device: cuda:0 AMD Radeon 8060S Graphics : native\n" + fault)
    assert "amdgpu.cwsr_enable=0" in found.do
    (found,) = diagnose("Device: cuda:0 AMD Radeon RX 9070 XT : native\n" + fault)
    assert "cwsr" not in f"{found.do} {found.otherwise}"
    (found,) = diagnose(WSL[0] + "gfx1151\n" + fault)
    assert "cwsr" not in f"{found.do} {found.otherwise}"


def page_of_causes() -> ModuleType:
    """tools/site/causes.py, which is no part of the package."""
    path = Path(__file__).resolve().parents[2] / "tools" / "site" / "causes.py"
    spec = importlib.util.spec_from_file_location("causes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_causes_shows_every_action_of_every_rule() -> None:
    causes = page_of_causes()
    for rule in BY_ID.values():
        entry = causes.entry(rule)
        actions = (rule.do, rule.windows, rule.wsl, rule.container, rule.decode, rule.beside,
                   rule.gfx1151)  # fmt: skip
        for action in filter(None, actions):
            assert causes.plain(causes.MACHINE.filled(action)) in entry, (rule.id, action)
