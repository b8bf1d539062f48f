"""Windows and WSL as the doctor reads them: whole made-up machines, one that says nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import GB, healthy
from windows_machines import (
    CEZANNE,
    CUSTOM,
    FAMILY,
    GRANITE,
    HALO,
    PHOENIX,
    RAPHAEL,
    RX580,
    RX6700,
    RX9060,
    RX9070,
    XTX,
    Card,
    Windows,
    Wsl,
    split,
)

from hy3d_rocm.conv.verdict_store.records import DISPLAY_DRIVERS
from hy3d_rocm.diagnose import cards as all_cards
from hy3d_rocm.diagnose.doctor import examination, windows
from hy3d_rocm.diagnose.doctor.examination import (
    FOLDER,
    Examination,
    collect,
    judge,
    rules_of_file,
)
from hy3d_rocm.diagnose.doctor.finding import Facts as Seen
from hy3d_rocm.diagnose.doctor.finding import Severity
from hy3d_rocm.diagnose.doctor.windows import System
from hy3d_rocm.diagnose.env import machine
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.memory import is_apu


@pytest.fixture(autouse=True)
def outside_of_comfyui(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "host_facts", {})


def found(machine: Windows | Wsl, folder: Path) -> list[str]:
    facts = machine.facts(folder)
    assert json.loads(json.dumps(facts)) == facts
    assert Examination(facts, tuple(judge(facts))).text()
    return [finding.id for finding in judge(facts)]


HIP_SDK = {"HIP_PATH": "C:\\Program Files\\AMD\\ROCm\\6.4\\", "PATH": "C:\\Windows"}
WSL_ON = {"HSA_ENABLE_DXG_DETECTION": "1"}

MACHINES: dict[str, tuple[Windows | Wsl, list[str]]] = {
    "one index for all GPUs, 7900 XTX": (Windows(), []),
    "wheels of a family, 7900 XTX": (Windows(wheels=FAMILY, torch="2.11.0+rocm7.13.0"), []),
    "AMD's wheels of 7.2.1, 7900 XTX": (Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.1"), []),
    "HIP SDK and ZLUDA": (
        Windows(wheels=(), torch="2.7.0+cu118", zluda=True, environ={**HIP_SDK, "ZLUDA_X": "1"}),
        ["miopen-empty"],
    ),
    "CUDA over ROCm": (Windows(torch="2.9.0+cu128"), ["torch-replaced"]),
    "CPU over ROCm, processor's GPU beside": (
        Windows(cards=(RAPHAEL, XTX), torch="2.13.0"), ["torch-replaced"],
    ),
    "CPU and never a ROCm": (Windows(torch="2.13.0", wheels=()), ["torch-not-for-amd"]),
    "NVIDIA's card and a CPU build, processor's GPU beside": (
        Windows(cards=(RAPHAEL,), nvidia=True, torch="2.13.0", wheels=()), [],
    ),
    "NVIDIA's card hidden, processor's GPU beside": (
        Windows(cards=(RAPHAEL,), nvidia=True, torch="2.9.0+cu128", wheels=(),
                environ={"CUDA_VISIBLE_DEVICES": "-1", "MIOPEN_FIND_MODE": "FAST"}),
        [],
    ),
    "NVIDIA's card, a CUDA build over ROCm's wheels, processor's GPU beside": (
        Windows(cards=(RAPHAEL,), nvidia=True, torch="2.9.0+cu128", wheels=split("gfx1036")), [],
    ),
    "NVIDIA's card alone and a CPU build": (
        Windows(cards=(), nvidia=True, torch="2.13.0", wheels=()), ["no-amd-gpu"],
    ),
    "NVIDIA's card and a CPU build, a card of AMD's beside": (
        Windows(nvidia=True, torch="2.13.0", wheels=()), ["torch-not-for-amd"],
    ),
    "NVIDIA's card outside of a Strix Halo that is computed on": (
        Windows(cards=(HALO,), nvidia=True), ["wheels-for-other-gpus"],
    ),
    "ZLUDA, NVIDIA's card beside": (
        Windows(cards=(PHOENIX,), nvidia=True, wheels=(), torch="2.7.0+cu118", zluda=True),
        ["zluda-without-sdk"],
    ),
    "RX 580 and DirectML": (
        Windows(cards=(RX580,), torch="2.4.1", wheels=()), ["torch-not-for-amd"],
    ),
    "5600G and a CPU build over ROCm's wheels": (
        Windows(cards=(CEZANNE,), torch="2.13.0"), ["torch-not-for-amd"],
    ),
    "Strix Halo with half its memory": (Windows(cards=(HALO,), wheels=split("gfx1151")), []),
    "Strix Halo with the wheels of another": (Windows(cards=(HALO,)), ["wheels-for-other-gpus"]),
    "6700 XT with the wheels of the 6800": (
        Windows(cards=(RX6700,), wheels=split("gfx1030"), kernels=("gfx1030",)),
        ["wheels-for-other-gpus"],
    ),
    "a laptop's own GPU alone": (
        Windows(cards=(PHOENIX,), wheels=split("gfx1103"), kernels=("gfx1103",)), [],
    ),
    "processor's GPU first": (Windows(cards=(GRANITE, XTX)), ["integrated-gpu-first"]),
    "processor's GPU second": (Windows(cards=(XTX, GRANITE)), ["architecture-partly"]),
    "processor's GPU first, and no kernels for one of two cards": (
        Windows(cards=(RAPHAEL, RX9060, RX9070), wheels=split("gfx1201"), kernels=("gfx1201",)),
        ["integrated-gpu-first", "architecture-partly"],
    ),
    "processor's GPU hidden": (Windows(cards=(GRANITE, XTX), listed=(XTX,)), []),
    "two cards": (
        Windows(cards=(RX9070, RX9060), wheels=split("gfx1200", "gfx1201")), [],
    ),
    "an older card in the registry": (Windows(gone=(RX9070,), wheels=split("gfx1100")), []),
    "9070 XT with the 7900's wheels": (
        Windows(cards=(RX9070,), wheels=FAMILY, kernels=("gfx1100", "gfx1101"),
                torch="2.11.0+rocm7.13.0"),
        ["architecture-missing"],
    ),
    "hidden by a variable": (
        Windows(listed=(), environ={"HIP_VISIBLE_DEVICES": "1", "MIOPEN_FIND_MODE": "FAST"}),
        ["torch-sees-no-gpu"],
    ),
    "no driver": (Windows(undriven=(XTX,)), ["card-without-driver"]),
    "a new card without a driver, the processor's GPU listed": (
        Windows(cards=(RAPHAEL, XTX), undriven=(XTX,)), ["card-without-driver"],
    ),
    "a new card without a driver, none listed": (
        Windows(cards=(RAPHAEL, XTX), undriven=(XTX,), listed=()), ["card-without-driver"],
    ),
    "a second card without a driver": (
        Windows(cards=(RX9070, XTX), undriven=(XTX,), wheels=split("gfx1201")),
        ["card-without-driver"],
    ),
    "a second card without a driver, the wrong wheels for the first": (
        Windows(cards=(RX9070, XTX), undriven=(XTX,), wheels=split("gfx1151")),
        ["wheels-for-other-gpus", "card-without-driver"],
    ),
    "the processor's GPU without a driver": (
        Windows(cards=(RAPHAEL, XTX), undriven=(RAPHAEL,)), [],
    ),
    "HIP SDK and the wheels": (
        Windows(environ={**HIP_SDK, "MIOPEN_FIND_MODE": "FAST"}), ["hip-sdk-beside"],
    ),
    "the wheels' own SDK": (
        Windows(environ={
            "HIP_PATH": "C:\\venv\\Lib\\site-packages\\_rocm_sdk_devel",
            "PATH": "C:\\venv\\Lib\\site-packages\\_rocm_sdk_devel\\bin",
            "MIOPEN_FIND_MODE": "FAST",
        }),
        [],
    ),
    "no page file": (Windows(page_files=()), ["page-file-off"]),
    "WSL": (Wsl(environ=WSL_ON), []),
    "WSL with ROCm 7.13 and newer": (
        Wsl(torch="2.13.0+rocm10.0.0", wheels=split("gfx1100"), bridge=""), [],
    ),
    "WSL without a device": (Wsl(device=False, listed=()), ["wsl-no-device"]),
    "WSL 1": (Wsl(release="4.4.0-19041-Microsoft", device=False, listed=()), ["wsl-no-device"]),
    "WSL without the bridge": (Wsl(bridge="", listed=()), ["wsl-no-bridge"]),
    "WSL, nobody told ROCm": (Wsl(listed=()), ["wsl-detection-off"]),
    "WSL with the older bridge": (Wsl(bridge="", older_bridge=True, bundled=True), []),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_whole_machine_is_told(name: str, tmp_path: Path) -> None:
    machine, expected = MACHINES[name]
    assert found(machine, tmp_path) == expected


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Windows(torch="2.9.0+cu128"), '"torch[device-gfx1100]"'),
        (Windows(cards=(RAPHAEL, RX9070), torch="2.9.0+cu128"), '"torch[device-gfx1201]"'),
        (Windows(cards=(RX9060, RX9070), torch="2.9.0+cu128"), '"torch[device-all]"'),
        (Windows(cards=(RAPHAEL, XTX)), "HIP_VISIBLE_DEVICES=1"),
        (Windows(cards=(RAPHAEL, RX9060, RX9070), wheels=split("gfx1200")),
         "HIP_VISIBLE_DEVICES=1,2"),
        (Windows(cards=(HALO, XTX), wheels=split("gfx1100", "gfx1151")), "HIP_VISIBLE_DEVICES=1"),
        (Windows(cards=(XTX, RAPHAEL)), "HIP_VISIBLE_DEVICES=0"),
        (Windows(listed=(), environ={"HIP_VISIBLE_DEVICES": "1"}), "unset HIP_VISIBLE_DEVICES"),
        (Wsl(listed=(), environ={**WSL_ON, "HIP_VISIBLE_DEVICES": "-1"}),
         "unset HIP_VISIBLE_DEVICES"),
        (Wsl(listed=(), environ={**WSL_ON, "ROCR_VISIBLE_DEVICES": ""}),
         "unset ROCR_VISIBLE_DEVICES"),
        (Wsl(bridge="", older_bridge=True, listed=(), environ={"HIP_VISIBLE_DEVICES": "-1"}),
         "unset HIP_VISIBLE_DEVICES"),
        (Wsl(listed=(), environ={"HIP_VISIBLE_DEVICES": "-1"}), "HSA_ENABLE_DXG_DETECTION=1"),
        (Wsl(listed=(), environ=WSL_ON), "Adrenalin"),
        (Wsl(release="4.4.0-19041-Microsoft", device=False, listed=()), "--set-version"),
    ],
)  # fmt: skip
def test_the_remedy_is_this_machines(machine: Windows | Wsl, words: str, tmp_path: Path) -> None:
    first = judge(machine.facts(tmp_path))[0]
    assert words in first.remedy


UNSERVED = [
    Windows(cards=(RX580,), torch="2.4.1", wheels=()),
    Windows(cards=(RX580, RAPHAEL), torch="2.4.1", wheels=()),
    Windows(cards=(CEZANNE,), torch="2.4.1", wheels=()),
    Windows(cards=(CEZANNE,), torch="2.13.0"),
    Windows(cards=(CEZANNE,), torch="2.9.0+cu128"),
    Windows(cards=(CEZANNE,)),
    Windows(cards=(CEZANNE,), wheels=FAMILY, kernels=()),
    Windows(cards=(CEZANNE,), listed=()),
    Windows(cards=(RX580,), listed=()),
    Windows(cards=(RX580,), torch="", wheels=()),
]


@pytest.mark.parametrize("machine", UNSERVED)
def test_no_wheels_are_proposed_for_a_gpu_that_has_none(machine: Windows, tmp_path: Path) -> None:
    told = judge(machine.facts(tmp_path))
    assert told
    assert not [f.remedy for f in told if "pip install" in f.remedy or "ROCm build" in f.remedy]


@pytest.mark.parametrize("machine", UNSERVED[:5])
def test_that_a_gpu_has_no_wheels_is_advice(machine: Windows, tmp_path: Path) -> None:
    [told] = judge(machine.facts(tmp_path))
    assert (told.id, told.severity) == ("torch-not-for-amd", Severity.ADVICE)
    assert f"ROCm has no wheels for {machine.cards[0][0]}" in told.remedy


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ((CEZANNE, XTX), '"torch[device-gfx1100]"'), ((HALO,), '"torch[device-gfx1151]"'),
        ((RX580, RX9070), '"torch[device-gfx1201]"'), ((PHOENIX,), '"torch[device-gfx1103]"'),
    ],
)  # fmt: skip
def test_wheels_are_proposed_for_a_gpu_that_has_some(
    cards: tuple[Card, ...], words: str, tmp_path: Path
) -> None:
    [told] = judge(Windows(cards=cards, torch="2.13.0", wheels=()).facts(tmp_path))
    assert (told.id, told.severity) == ("torch-not-for-amd", Severity.ERROR)
    assert words in told.remedy


def test_cards_of_nvidia_are_told_by_what_is_there_else_by_the_registry() -> None:
    def told(there: list[str] | None, known: str = "") -> bool:
        return windows.has_nvidia(
            System(lambda _: {"MatchingDeviceId": known}, lambda: there, lambda: None)
        )

    assert told([r"pci\ven_10de&dev_2684"])
    assert not told([r"PCI\VEN_1002&DEV_10DE"], r"PCI\VEN_10DE&DEV_2684")
    assert told(None, r"PCI\VEN_10DE&DEV_2684")
    assert not told(None)


def test_the_card_without_a_driver_is_named(tmp_path: Path) -> None:
    [told] = judge(Windows(cards=(RAPHAEL, XTX), undriven=(XTX,)).facts(tmp_path))
    assert told.evidence == "PCI 1002:744c (gfx1100): no driver of AMD's"


def test_a_variable_that_windows_does_not_read_is_said(tmp_path: Path) -> None:
    machine = Windows(cards=(RAPHAEL, XTX), environ={"ROCR_VISIBLE_DEVICES": "1"})
    [told] = [f for f in judge(machine.facts(tmp_path)) if f.id == "integrated-gpu-first"]
    assert "ROCR_VISIBLE_DEVICES is set, which is for Linux" in told.evidence


def test_who_replaced_torch_is_evidence(tmp_path: Path) -> None:
    machine = Windows(torch="2.10.0")
    place = tmp_path / "site-packages/torch-2.10.0.dist-info"
    place.mkdir(parents=True)
    (place / "direct_url.json").write_text('{"url": "https://me:secret@example.org/torch.whl"}')
    facts = machine.facts(tmp_path)
    assert "by pip, 20" in Examination(facts, ()).text()
    assert facts["windows"]["installed"]["from"] == "https://example.org/torch.whl"
    evidence = judge(facts)[0].evidence
    assert evidence.startswith("torch 2.10.0 (by pip, 20")
    assert "rocm-sdk-device-gfx1100 10.0.0" in evidence


def test_where_nobody_knows_how_torch_came_the_version_is_evidence(tmp_path: Path) -> None:
    facts = Windows(torch="2.9.0+cu128").facts(tmp_path) | {}
    facts["windows"]["installed"] = {}
    assert judge(facts)[0].evidence.startswith("torch 2.9.0+cu128 is no ROCm build; of ROCm are")


@pytest.mark.parametrize(
    ("wheels", "told"), [(FAMILY, ["gfx110x"]), (split("gfx1030"), ["gfx1030"]), ((), [])]
)
def test_a_made_up_machine_is_told_by_its_wheels(
    wheels: Sequence[str], told: list[str], tmp_path: Path
) -> None:
    assert Windows(wheels=wheels).facts(tmp_path)["machine"]["architectures"] == told


@pytest.mark.parametrize(
    ("told", "extra"),
    [("gfx1100", "device-gfx1100"), ("gfx110X", "device-all"), ("gfx110x", "device-all")],
)
def test_a_family_is_no_device(told: str, extra: str) -> None:
    assert Seen({"machine": {"architectures": [told]}}).device_extra == extra


def test_a_memory_that_is_not_known_is_no_reason(tmp_path: Path) -> None:
    assert found(Wsl(memory=None, environ=WSL_ON), tmp_path) == []


# What is read


def test_cards_are_those_that_are_there_with_their_newest_drivers(tmp_path: Path) -> None:
    def entry(number: int, driver: str) -> tuple[str, dict[str, Any]]:
        return rf"{DISPLAY_DRIVERS}\{number:04}", {
            "DriverDesc": "AMD Radeon RX 7900 XTX", "DriverVersion": driver,
            "MatchingDeviceId": r"pci\ven_1002&dev_744c&subsys_471e1da2",
            "HardwareInformation.qwMemorySize": (24 * GB).to_bytes(8, "little"),
        }  # fmt: skip

    keys = dict([entry(0, "31.0.9.1"), entry(1, "32.0.10.2"), entry(4, "32.0.2.9")])
    keys[rf"{DISPLAY_DRIVERS}\0002"] = {"MatchingDeviceId": r"PCI\VEN_10DE&DEV_2684"}
    keys[windows.ADRENALIN] = {"RadeonSoftwareVersion": "26.8.1"}

    def drivers(*there: str) -> list[str]:
        return [card["driver"] for card in windows.cards(System(keys.get, lambda: there, no))]

    def no() -> None:
        return None

    named = r"PCI\VEN_1002&DEV_744C&SUBSYS_1"
    assert drivers(named, r"PCI\VEN_10DE&DEV_2684") == ["32.0.10.2"]
    assert drivers(named, named) == ["32.0.10.2", "32.0.2.9"]
    assert drivers(r"PCI\VEN_10DE&DEV_2684") == []
    [card] = windows.cards(System(keys.get, lambda: [named], no))
    assert (card["memory_bytes"], card["software"], card["architecture"]) == (
        24 * GB, "26.8.1", "gfx1100",
    )  # fmt: skip
    # Nobody can say what is there: then all that the registry has.
    assert len(windows.cards(System(keys.get, no, no))) == 3
    unknown = windows.cards(System(keys.get, lambda: [r"PCI\VEN_1002&DEV_1234"], no))
    assert [(c["name"], c["driver"]) for c in unknown] == [("PCI 1002:1234", "")]
    [unread] = windows.cards(System(lambda _: None, lambda: [named], no))
    assert unread["driver"]  # nobody knows that it has none


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["?:\\pagefile.sys"], (False, False, 0)),
        (["C:\\pagefile.sys 0 0"], (False, False, 0)),
        (["C:\\pagefile.sys 1024 4096", "D:\\my pages\\pagefile.sys 10 10"], (False, True, 4106)),
        (["C:\\pagefile.sys 0 0", "D:\\pagefile.sys 10 10"], (False, False, 10)),
        ([], (True, False, 0)),
        ([""], (True, False, 0)),
        ("", (True, False, 0)),
    ],
)
def test_page_files_are_read(written: Any, expected: tuple[bool, bool, int]) -> None:
    system = System(lambda _: {"PagingFiles": written}, lambda: None, lambda: None)
    facts = windows.page_file(system)
    assert facts is not None
    assert (facts["is_off"], facts["is_fixed"], facts["most_bytes"] >> 20) == expected


@pytest.mark.parametrize("values", [None, {}, {"PagingFiles": None}, {"PagingFiles": 7}])
def test_page_files_that_are_not_told_are_unknown(values: Any) -> None:
    assert windows.page_file(System(lambda _: values, lambda: None, lambda: None)) is None


@pytest.mark.parametrize(
    ("environ", "version", "on_path"),
    [
        ({"HIP_PATH": "C:\\Program Files\\AMD\\ROCm\\6.4\\"}, "6.4", []),
        ({"Path": "C:\\a;C:\\Program Files\\AMD\\ROCm\\5.7\\bin;"}, "5.7",
         ["C:\\Program Files\\AMD\\ROCm\\5.7\\bin"]),
        ({"hip_path": "D:\\hip", "PATH": '"D:\\hip\\bin";D:\\hip\\lib;D:\\other\\bin'}, "",
         ['"D:\\hip\\bin"']),
    ],
)  # fmt: skip
def test_a_hip_sdk_is_told(environ: dict[str, str], version: str, on_path: list[str]) -> None:
    facts = windows.sdk(environ)
    assert facts is not None
    assert (facts["version"], facts["on_path"]) == (version, on_path)


def test_no_hip_sdk_is_told() -> None:
    assert windows.sdk({"PATH": "C:\\Windows;C:\\Python312\\Scripts"}) is None


def test_the_drivers_libraries_are_told(tmp_path: Path) -> None:
    (tmp_path / "System32").mkdir()
    for name in ("amdhip64_6.dll", "amdhip64_7.dll", "kernel32.dll"):
        (tmp_path / "System32" / name).touch()
    assert windows.runtimes({"SystemRoot": str(tmp_path)}) == ["amdhip64_6.dll", "amdhip64_7.dll"]


@pytest.mark.parametrize(
    ("names", "families", "devices", "is_split"),
    [
        (FAMILY, ["gfx110x"], [], False),
        (["rocm_sdk_libraries_gfx1151-7.10.0"], ["gfx1151"], [], False),
        (CUSTOM, [], [], False),
        (split("gfx1100", "gfx1201"), [], ["gfx1100", "gfx1201"], True),
        (["rocm_docs_core-1.0", "rocm_bootstrap-0.3.0"], [], [], False),
    ],
)
def test_wheels_say_for_which_gpus_they_are(
    names: list[str], families: list[str], devices: list[str], is_split: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / f"{name}.dist-info").mkdir()
    facts = windows.wheels([str(tmp_path), str(tmp_path / "missing")])
    assert (facts["families"], facts["devices"]) == (families, devices)
    assert facts["is_split"] is is_split
    assert bool(facts["names"]) is (bool(families or devices) or names == CUSTOM)


def test_a_disk_of_windows_is_told_by_its_mount(tmp_path: Path) -> None:
    def slow(path: str, mounts: str = Wsl.mounts) -> list[str]:
        facts = Wsl(mounts=mounts, environ={"MIOPEN_USER_DB_PATH": path}).facts(tmp_path)
        told: list[str] = facts["windows"]["windows_disks"]
        return told

    assert slow("/mnt/c/Users/x") == [f"databases in {Path('/mnt/c/Users/x')}"]
    assert slow("/mnt/cache") == []
    below = f"{Wsl.mounts}\n44 43 8:48 / /mnt/c/linux rw - ext4 /dev/sdd rw"
    assert slow("/mnt/c/linux/db", below) == []


def test_every_integrated_gpu_is_known_by_what_the_bus_calls_it() -> None:
    """Their names tell nothing: "AMD Radeon(TM) Graphics"."""
    unnamed = [c.architecture for c in all_cards.cards().values() if is_apu(c.architecture)]
    assert {"gfx1036", "gfx1035", "gfx1103", "gfx1150", "gfx1151"} <= set(unnamed)
    for card in all_cards.cards().values():
        for device in card.devices:
            told = all_cards.architecture_of("AMD Radeon(TM) Graphics", device.upper())
            assert told == card.architecture
    assert all_cards.architecture_of("AMD Radeon RX 7900 XTX", "") == "gfx1100"
    assert all_cards.architecture_of("Intel Arc", "56a0") == ""


# Where nothing can be read, and elsewhere


def fails(*_: Any) -> Any:
    raise OSError("refused")


@pytest.mark.parametrize(
    "system",
    [
        System(lambda _: None, lambda: None, lambda: None),
        System(lambda _: {}, list, lambda: None),
        System(lambda _: {"PagingFiles": 3, "TdrDelay": "x", "MatchingDeviceId": 7}, list, fails),
        System(lambda _: {"MatchingDeviceId": "VEN_1002&DEV_744C", "DriverDesc": 3}, fails, fails),
        System(fails, fails, fails),
        System(fails, lambda: [r"PCI\VEN_1002&DEV_744C"], fails),
    ],
)
def test_a_windows_that_says_nothing_is_examined(system: System, tmp_path: Path) -> None:
    told = Windows(cards=()).said()
    facts = collect(
        {}, root=tmp_path, machine=Machine(system="windows", gpus_can_be_listed=False),
        torch=told, system=system, folders=[str(tmp_path / "none"), "\0"],
    )  # fmt: skip
    ids = {finding.id for finding in judge(facts)}
    assert not ids & {rule.id for rule in rules_of_file(FOLDER / "windows.toml")}
    assert not ids & {"rule-failed", "card-without-driver", "torch-replaced"}
    assert facts["windows"]["host"] == "windows"
    assert Examination(facts, ()).text()
    json.dumps(facts)


@pytest.mark.skipif(sys.platform == "win32", reason="it is asked there")
def test_elsewhere_windows_is_not_asked() -> None:
    assert windows.registry_values(windows.TIME_OUT) is None
    assert windows._adapters() is None
    assert windows._commit() is None
    assert windows.collect({}) == {} or windows.collect({})["host"] == "wsl"


@pytest.mark.skipif(sys.platform != "linux", reason="about Linux")
def test_on_linux_the_doctor_says_what_it_said(tmp_path: Path) -> None:
    facts = healthy(tmp_path)
    assert set(facts) == {
        "system", "versions", "torch", "core", "driver", "rules", "variables", "machine", "judged",
        "kernel", "memory", "miopen", "disks", "knowledge", "when", "self_test",
    }  # fmt: skip
    shown = Examination(facts, ()).as_dict()
    assert "Windows" not in Examination(facts, ()).text().split()
    assert set(shown["facts"]) == set(facts)
    assert Seen(facts).architectures == ["gfx1100"]
    assert [f.id for f in judge(facts)] == ["self-test"]


# ZLUDA


@pytest.mark.parametrize(
    "made", ["zluda/nvcuda.dll", ".zluda/nvcuda.dll", "zluda/zluda.exe", "torch/lib/nvrtc_cuda.dll"]
)
def test_zluda_is_told_by_its_files(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    cuda = {"__version__": "2.7.0+cu118", "cuda": "11.8"}
    assert not machine.uses_zluda({}, cuda, tmp_path / "torch")
    (tmp_path / made).parent.mkdir(parents=True)
    (tmp_path / made).touch()
    assert machine.uses_zluda({}, cuda, tmp_path / "torch")
    assert not machine.uses_zluda({}, {"__version__": "2.9.0+rocm7.0"}, tmp_path / "torch")
    monkeypatch.setattr(sys, "platform", "linux")
    assert not machine.uses_zluda({}, cuda, tmp_path / "torch")
