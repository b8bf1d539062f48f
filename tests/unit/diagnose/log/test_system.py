"""`hy3d-rocm diagnose`: what is said to do fits the system and the card that the log shows."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import how_much
import pytest
from diagnose_cases import Case, all_cases
from places import ROOT

from hy3d_rocm.diagnose import diagnose
from hy3d_rocm.diagnose.log.rules import Rule, by_id

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


def cases_beside(shown: str, lines: tuple[str, ...]) -> list[Case]:
    """In the gate each case stands beside one of the lines, in turns."""
    return how_much.of(CASES[lines.index(shown) :: len(lines)], CASES)


@pytest.mark.parametrize("shown", WSL)
def test_wsl_is_not_told_of_groups_or_modules(shown: str) -> None:
    for case in cases_beside(shown, WSL):
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
    r"|GLIBC|GPU node|member of|Depends"
)


@pytest.mark.parametrize("shown", WINDOWS)
def test_windows_is_told_no_command_of_linux(shown: str) -> None:
    for case in cases_beside(shown, WINDOWS):
        if LINUX_ONLY.search(case.text):
            continue
        for found in diagnose(shown + case.text):
            assert not re.search(r"\b(?:sudo|export|unset|usermod|swapfile)\b", found.do), (
                found.rule
            )


@pytest.mark.parametrize(
    "shown",
    [
        "- OS: Windows\n",
        " - OS + Distro and Version: Windows 11\n",
        "### Operating System\n\nMicrosoft Windows 11 Pro\n",
        "Operating System: Windows 10\n",
    ],
)
def test_a_report_that_names_its_system_is_believed_over_the_paths_in_it(shown: str) -> None:
    missing = 'error gathering device information "/dev/kfd": no such file or directory\n'
    (found,) = diagnose(missing + shown)
    assert "modprobe" not in found.do
    (found,) = diagnose(shown + "HIPBLAS_STATUS_INVALID_VALUE when calling `hipblasLt`\n")
    assert found.do.startswith("set ")
    (wsl,) = diagnose(missing + shown + WSL[-1])
    assert "wsl --update" in wsl.do
    (linux,) = diagnose(missing + "OS: Ubuntu 24.04\nThe windows 11 of this machine\n")
    assert "modprobe" in linux.do


DENIED = "Unable to open /dev/kfd read-write: Permission denied\n"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("me@pc:~$ rocminfo\n", "usermod"),
        ("root@pc:~# rocminfo\n", "dmesg"),
        ("root:~# rocminfo\n", "dmesg"),
        ("root is member of nogroup group\n", "docker run"),
        ("docker run --device=/dev/kfd --group-add video\n", "--group-add"),
        ("buildah from --group-add=105 --device=/dev/kfd:rw fedora\n", "setfacl"),
        ("podman run --device=/dev/kfd --group-add 39 x\n", "setfacl"),
    ],
)
def test_groups_are_named_only_to_a_user_whom_they_hold(shown: str, said: str) -> None:
    (found,) = diagnose(shown + DENIED)
    assert said in found.do
    assert ("usermod" in found.do) == (said == "usermod")


NO_MEMORY = "HIP out of memory. Tried to allocate 80.00 MiB\n"
ATTENTION = '  File "/v/attention.py", line 4, in x\nHIP out of memory\n'


@pytest.mark.parametrize("text", [NO_MEMORY, ATTENTION, NO_MEMORY.replace("HIP", "CUDA")])
def test_options_of_comfyui_are_named_only_where_comfyui_is_in_the_log(text: str) -> None:
    (other,) = diagnose("app.py: pipe.to(device)\n" + text)
    assert "--lowvram" not in other.do
    assert "--use-split" not in other.do
    (comfy,) = diagnose("got prompt\n" + text)
    assert comfy.do.startswith("Start ComfyUI")


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: operation not supported\n",
        "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR\n",
        "CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`\n",
    ],
)
@pytest.mark.parametrize("system", ["", "File C:\\ComfyUI\\main.py\n"])
def test_zludas_patch_is_named_only_where_zluda_is_in_the_log(line: str, system: str) -> None:
    (without,) = diagnose(system + "torch\n" + line)
    assert "patch" not in without.do
    (amd,) = diagnose(system + "AMD Radeon RX 6800\n" + line)
    assert "patch" not in amd.do
    (found,) = diagnose(system + "ZLUDA device [ZLUDA]\n" + line)
    assert "patchzluda" in found.do


STACK = (
    "Windows fatal exception: access violation\n\n"
    "Current thread 0x00009b60 (most recent call first):\n"
    '  File "D:\\p\\Lib\\site-packages\\{}\\enums.py", line 76 in <genexpr>\n'
)


def test_a_crash_in_a_package_is_not_put_on_amd_where_nothing_in_the_log_is_amds() -> None:
    (found,) = diagnose(STACK.format("proto"))
    assert found.rule == "crash-in-package"
    assert not re.search("Adrenalin|rocm", f"{found.do} {found.otherwise}")
    for more in ("AMD Radeon RX 6800\n", "pytorch version: 2.9.0\n"):
        assert diagnose(more + STACK.format("proto"))[0].rule == "windows-access-violation"
    (native,) = diagnose(STACK.format("triton"))
    assert native.rule == "windows-access-violation"
    assert "Adrenalin" not in native.do
    ryzen = "AMD Ryzen 9 5950X, MSC v.1929 64 bit (AMD64)\n"
    assert diagnose(ryzen + STACK.format("proto"))[0].rule == "crash-in-package"


MISSING = "OSError: libamdhip64.so.6: cannot open shared object file: No such file\n"


@pytest.mark.parametrize(
    "shown",
    [
        "GPU available: True\n", "torch.cuda.is_available(): True\n",
        "Device: cuda:0 AMD Radeon RX 9070 XT : native\n", "torch_geometric/typing.py:86: x\n",
    ],
)  # fmt: skip
def test_a_torch_that_works_is_left_as_it_is(shown: str) -> None:
    (found,) = diagnose(shown + MISSING)
    assert found.rule == "extension-rocm-version"
    assert "whl-multi-arch" not in f"{found.do} {found.otherwise}"
    for other in ("", "GPU available: False\n"):
        assert diagnose(other + MISSING)[0].rule == "rocm-library-missing"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("RX 6800S", "gfx1032"), ("RX 6700S", "gfx1032"), ("RX 6600S", "gfx1032"),
        ("RX 6600M", "gfx1032"), ("RX 6700M", "gfx1031"), ("RX 6800M", "gfx1031"),
        ("RX 6850M XT", "gfx1031"), ("RX 6500M", "gfx1034"), ("RX 7600S", "gfx1102"),
        ("RX 7700S", "gfx1102"), ("RX 7900M", "gfx1100"), ("RX 6800 XT", "gfx1030"),
        ("RX 6950 XT", "gfx1030"), ("RX 6700 XT", "gfx1031"), ("RX 7700 XT", "gfx1101"),
        ("RX 7800 XT", "gfx1101"), ("RX 7600 XT", "gfx1102"), ("RX 6650 XT", "gfx1032"),
    ],
)  # fmt: skip
def test_a_mobile_card_is_not_taken_for_the_card_of_its_number(
    name: str, architecture: str
) -> None:
    (found,) = diagnose(f"AMD Radeon {name}\nHIP error: invalid device function\n")
    assert f"device-{architecture}]" in found.do


def test_no_wheels_are_named_for_the_gpu_of_a_desktop_processor() -> None:
    (found,) = diagnose("gfx1036\n\n\n\n\n\n\nHIP error: invalid device function\n")
    assert "device-all" in found.do


CPU = "Using torch device: CPU\n"


@pytest.mark.parametrize("line", [CPU, "Device: cpu\n", "HIP (ROCm) available: False\n"])
def test_a_program_on_the_processor_is_told_where_an_amd_card_is_meant(line: str) -> None:
    radeon = "AMD Radeon RX 6800\n"
    assert [row.rule for row in diagnose(radeon + line)] == ["runs-on-cpu"]
    for shown in ("", "main.py --cpu\n", "main.py --directml\n", "GPU available: True\n"):
        other = "" if shown == "" else radeon
        assert diagnose(shown + other + line.replace("HIP (ROCm)", "CUDA")) == []


VERSION = "pytorch version: 2.6.0+cu124\n"


@pytest.mark.parametrize(
    "line", [VERSION, "torch.version.hip: None\n", "Name: torch\nVersion: 2.5.1\n"]
)
def test_a_printed_version_is_told_where_an_amd_card_is_meant(line: str) -> None:
    radeon = "AMD Radeon RX 6800\n"
    assert [row.rule for row in diagnose(radeon + line)] == ["torch-not-rocm"]
    for shown in (
        *([] if "hip" in line else [""]),  # who asks for HIP's number means an AMD card
        radeon + "Device: cuda:0 AMD Radeon RX 6800 [ZLUDA] : native\n",
        radeon + "NVIDIA GeForce RTX 3060\n", radeon + "--directml\n",
    ):  # fmt: skip
        assert diagnose(shown + line) == []
    assert diagnose(radeon + "Name: torch\nVersion: 2.5.1+rocm6.2\n") == []


DRIVER = "amdgpu 0000:c5:00.0: amdgpu: VRAM: 98304M 0x0 - 0x1 (98304M used)\n"


@pytest.mark.parametrize(
    ("more", "seen", "told"),
    [
        ("", "Total VRAM 15878 MB\n", True),
        ("", "Total VRAM 60000 MB\n", False),
        ("", "Total VRAM 512 MB\n", False),  # not a figure of what ROCm lends
        ("", "    Size:   16651264(0x3e2000) KB\n", True),
        ("", "    Size:   16651264(0x3e2000) KB\n Size: 99000000(0x5e69ec0) KB\n", False),
        (DRIVER.replace("98304M", "8192M"), "Total VRAM 15878 MB\n", False),  # the other card's
    ],
)
def test_memory_that_the_driver_has_and_the_program_does_not_see(
    more: str, seen: str, told: bool
) -> None:
    assert ("memory-unseen" in [row.rule for row in diagnose(DRIVER + more + seen)]) == told
    sysfs = "cat /sys/class/drm/card1/device/mem_info_vram_total\n103079215104\n"
    if not more:
        assert ("memory-unseen" in [row.rule for row in diagnose(sysfs + seen)]) == told
    assert diagnose(seen) == []


def test_a_first_request_beyond_the_whole_is_no_matter_of_attention() -> None:
    text = "HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.24"
    text += " GiB of which {} GiB is free. Of the allocated memory {} GiB is allocated by PyTorch"
    assert diagnose(text.format("15.09", "0.00"))[0].rule == "memory-first-request"
    assert "kernel 6.16.9" in diagnose("gfx1151\n" + text.format("15.09", "0.00"))[0].do
    assert diagnose(text.format("3.09", "12.00"))[0].rule == "memory-one-request"


def test_a_zluda_that_was_loaded_is_not_told_of_another_pytorch() -> None:
    line = "RuntimeError: No CUDA GPUs are available\n"
    (found,) = diagnose("ZLUDA load: path='C:\\x' nightly=False\n" + line)
    assert found.rule == "zluda-no-device"
    assert diagnose("ZLUDA support: experimental\n" + line)[0].rule == "no-cuda-gpu"


PROCESSOR_BESIDE = "GPU 0: gfx1103\nDevice: cuda:1 AMD Radeon RX 7900 XTX : native\n"


@pytest.mark.parametrize("shown", ["", "Platform: Windows\n", WSL[0], "podman exec -it x bash\n"])
@pytest.mark.parametrize(
    "rule", [r for r in by_id().values() if "beside" in r.instead], ids=lambda r: r.id
)
def test_a_gpu_in_the_processor_beside_a_card_is_hidden_before_anything_else(
    rule: Rule, shown: str
) -> None:
    case = next(case for case in CASES if case.expected == (rule.id,) and "gfx" not in case.text)
    (found,) = diagnose(shown + PROCESSOR_BESIDE + case.text)
    assert found.do == rule.instead["beside"]
    (alone,) = diagnose(shown + PROCESSOR_BESIDE.split("\n")[1] + "\n" + case.text)
    assert alone.do != found.do


def test_an_nvidia_card_is_not_told_of_amds_driver() -> None:
    crash = "Device: cuda:0 {} : native\nC:\\x\nCUDA error: unspecified launch failure\n"
    (theirs,) = diagnose(crash.format("NVIDIA GeForce RTX 4090"))
    (ours,) = diagnose(crash.format("AMD Radeon RX 9070 XT"))
    assert "Adrenalin" not in theirs.do
    assert "Adrenalin" in ours.do


def test_only_the_card_that_the_sources_name_is_told_to_switch_cwsr_off() -> None:
    for rule in by_id().values():
        others = (action for shown, action in rule.instead.items() if shown != "gfx1151")
        assert "cwsr" not in " ".join([rule.do, *others, rule.otherwise]), rule.id
    fault = "Memory access fault by GPU node-1 on address 0x7. Reason: Page not present.\n"
    (found,) = diagnose("Device: cuda:0 AMD Radeon 8060S Graphics : native\n" + fault)
    assert "amdgpu.cwsr_enable=0" in found.do
    (found,) = diagnose("Device: cuda:0 AMD Radeon RX 9070 XT : native\n" + fault)
    assert "cwsr" not in f"{found.do} {found.otherwise}"
    (found,) = diagnose(WSL[0] + "gfx1151\n" + fault)
    assert "cwsr" not in f"{found.do} {found.otherwise}"


def page_of_causes() -> ModuleType:
    """tools/site/causes.py, which is no part of the package."""
    path = ROOT / "tools" / "site" / "causes.py"
    spec = importlib.util.spec_from_file_location("causes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_causes_shows_every_action_of_every_rule() -> None:
    causes = page_of_causes()
    for rule in by_id().values():
        entry = causes.entry(rule)
        for action in (rule.do, *rule.instead.values()):
            assert causes.plain(causes.MACHINE.filled(action)) in entry, (rule.id, action)
