"""Made-up Windows and WSL machines for the doctor: a registry, packages, what torch says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from doctor_machines import GB, Change, Facts, torch_says, write

from hy3d_rocm.conv.verdict_store.records import DISPLAY_DRIVERS
from hy3d_rocm.diagnose.doctor import windows
from hy3d_rocm.diagnose.doctor.examination import collect
from hy3d_rocm.diagnose.doctor.windows import System
from hy3d_rocm.diagnose.env.machine import Machine, parse_version, rocm_wheels

# name, PCI device, architecture, GB
XTX = ("AMD Radeon RX 7900 XTX", "744C", "gfx1100", 24)
RX9070 = ("AMD Radeon RX 9070 XT", "7550", "gfx1201", 16)
RX9060 = ("AMD Radeon RX 9060 XT", "7590", "gfx1200", 16)
RX7800 = ("AMD Radeon RX 7800 XT", "747E", "gfx1101", 16)
RX6800 = ("AMD Radeon RX 6800 XT", "73BF", "gfx1030", 16)
RX6700 = ("AMD Radeon RX 6700 XT", "73DF", "gfx1031", 12)
RAPHAEL = ("AMD Radeon(TM) Graphics", "164E", "gfx1036", 1)
GRANITE = ("AMD Radeon(TM) Graphics", "13C0", "gfx1036", 1)
HALO = ("AMD Radeon(TM) 8060S Graphics", "1586", "gfx1151", 64)
CEZANNE = ("AMD Radeon(TM) Graphics", "1638", "gfx90c", 1)  # 5600G
RX580 = ("Radeon RX 580 Series", "67DF", "", 8)
PHOENIX = ("AMD Radeon 780M Graphics", "15BF", "gfx1103", 4)
Card = tuple[str, str, str, int]
FAMILY = ["rocm-7.13.0", "rocm_sdk_core-7.13.0", "rocm_sdk_libraries_gfx110x_all-7.13.0"]
CUSTOM = ["rocm-7.2.1", "rocm_sdk_core-7.2.1", "rocm_sdk_libraries_custom-7.2.1"]


def split(*names: str, version: str = "10.0.0") -> list[str]:
    """The wheels of one index for all GPUs, with the kernels of these."""
    own = [f"rocm_sdk_device_{n}-{version}" for n in names]
    own += [f"amd_torch_device_{n}-2.13.0+rocm{version}" for n in names]
    return [f"{n}-{version}" for n in ("rocm", "rocm_sdk_core", "rocm_sdk_libraries")] + own


def gpu(card: Card, **more: Any) -> Facts:
    name, _, architecture, gib = card
    size = gib * GB
    return {
        "name": name, "architecture": architecture, "memory_bytes": size, "total_bytes": size,
        "free_bytes": size - GB // 4, "allocated_bytes": 0, "reserved_bytes": 0, **more,
    }  # fmt: skip


@dataclass
class Windows:
    """A PC; every part may be changed. torch: "" for none. listed: what torch lists, None for all
    cards that have a driver. gone: cards that the registry keeps and that are no longer there.
    undriven: those of the cards that have no driver of AMD's."""

    cards: Sequence[Card] = (XTX,)
    gone: Sequence[Card] = ()
    software: str = "26.8.1"
    driver: str = "32.0.31035.1003"
    undriven: Sequence[Card] = ()
    nvidia: bool = False
    time_out: Mapping[str, Any] | None = field(default_factory=dict)
    page_files: Any = ("?:\\pagefile.sys",)
    commit: tuple[int, int] | None = (80 * GB, 60 * GB)
    memory: int | None = 64 * GB
    wheels: Sequence[str] = field(default_factory=lambda: split("gfx1100"))
    torch: str = "2.13.0+rocm10.0.0"
    kernels: Sequence[str] = ("gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")
    listed: Sequence[Card] | None = None
    zluda: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: {"MIOPEN_FIND_MODE": "FAST"})
    torch_says: Mapping[str, Any] = field(default_factory=dict)

    def system(self) -> System:
        keys: dict[str, Mapping[str, Any]] = {}
        for number, card in enumerate((*self.gone, *self.cards)):
            name, device, _, gib = card
            is_driven = card not in self.undriven
            keys[rf"{DISPLAY_DRIVERS}\{number:04}"] = {
                "DriverDesc": name, "DriverVersion": self.driver, "ProviderName": "AMD",
                "MatchingDeviceId": rf"PCI\VEN_1002&DEV_{device}&REV_C8",
                "RadeonSoftwareVersion": self.software,
                "HardwareInformation.qwMemorySize": gib * GB,
            } if is_driven else {"DriverDesc": "Microsoft Basic Display Adapter"}  # fmt: skip
        if self.time_out is not None:
            keys[windows.TIME_OUT] = {"DxgKrnlVersion": 1, **self.time_out}
        if self.page_files is not None:
            keys[windows.PAGE_FILES] = {"PagingFiles": list(self.page_files)}
        there = [rf"PCI\VEN_1002&DEV_{c[1]}&SUBSYS_0E3B1002&REV_C8" for c in self.cards]
        there += [r"PCI\VEN_10DE&DEV_2684&SUBSYS_16FA10DE&REV_A1"] * self.nvidia
        return System(keys.get, lambda: there, lambda: self.commit)

    def facts(self, folder: Path) -> Facts:
        said = self.said()
        packages_folder = str(packages(folder, self.wheels, self.torch))
        machine = Machine(
            architectures=rocm_wheels([packages_folder])[0], gpus_can_be_listed=False,
            torch=parse_version(self.torch), rocm=parse_version(self.torch.partition("+rocm")[2]),
            torch_is_rocm=bool(said.get("hip")) or "rocm" in self.torch if self.torch else None,
            zluda=self.zluda, system="windows",
        )  # fmt: skip
        environ = {"USERPROFILE": str(folder), "HOME": str(folder), **self.environ}
        facts = collect(
            environ, root=folder / "nothing", machine=machine, torch=said, system=self.system(),
            folders=[packages_folder],
        )  # fmt: skip
        facts["memory"]["host"]["total_bytes"] = self.memory
        return settled(facts)

    def said(self) -> Facts:
        """What torch says of itself."""
        if not self.torch:
            return {"error": "ModuleNotFoundError: No module named 'torch'"}
        is_rocm = "rocm" in self.torch
        cuda = "12.8" if "+cu" in self.torch else None
        driven = [card for card in self.cards if card not in self.undriven]
        listed = (driven if self.listed is None else self.listed) if is_rocm else ()
        return torch_says(
            version=self.torch, hip="7.16.26080" if is_rocm else None, cuda=cuda,
            architectures=list(self.kernels) if is_rocm else [], gpus=[gpu(c) for c in listed],
        ) | dict(self.torch_says)  # fmt: skip


@dataclass
class Wsl:
    """A Linux on Windows. bridge: where librocdxg lies, "" for nowhere."""

    release: str = "6.6.87.2-microsoft-standard-WSL2"
    device: bool = True
    bridge: str = "opt/rocm/lib/librocdxg.so.1"
    older_bridge: bool = False
    bundled: bool = False
    torch: str = "2.9.1+rocm7.2.1"
    wheels: Sequence[str] = ()
    listed: Sequence[Card] = (XTX,)
    memory: int | None = 32 * GB
    mounts: str = "22 1 8:32 / / rw - ext4 /dev/sdc rw\n43 22 0:33 / /mnt/c rw - 9p C:\\ rw"
    environ: Mapping[str, str] = field(default_factory=dict)

    def facts(self, folder: Path) -> Facts:
        root = folder / "root"
        write(root / "proc/version", f"Linux version {self.release} (root@x) #1 SMP")
        write(root / "proc/self/mountinfo", self.mounts)
        for path, is_there in {
            "dev/dxg": self.device, self.bridge: bool(self.bridge),
            "var/lib/dpkg/info/hsa-runtime-rocr4wsl-amdgpu:amd64.list": self.older_bridge,
        }.items():  # fmt: skip
            if is_there:
                write(root / path, "")
        packages_folder = packages(folder, self.wheels, self.torch)
        if self.bundled:
            write(packages_folder / "torch/lib/libhsa-runtime64.so", "")
        rocm = parse_version(self.torch.partition("+rocm")[2])
        is_rocm = "rocm" in self.torch
        said = torch_says(
            version=self.torch, hip="7.2.1" if is_rocm else None, cuda=None,
            gpus=[gpu(card) for card in self.listed] if is_rocm else [],
        )  # fmt: skip
        machine = Machine(
            gpus_can_be_listed=not self.device, torch=parse_version(self.torch), rocm=rocm,
            torch_is_rocm=is_rocm,
        )  # fmt: skip
        environ = {"HOME": str(folder), "MIOPEN_FIND_MODE": "FAST", **self.environ}
        facts = collect(
            environ, root=root, machine=machine, torch=said, folders=[str(packages_folder)]
        )  # fmt: skip
        facts["memory"]["host"]["total_bytes"] = self.memory
        return settled(facts)


def packages(folder: Path, wheels: Sequence[str], torch: str) -> Path:
    place = folder / "site-packages"
    for name in (*wheels, *([f"torch-{torch}"] if torch else [])):
        write(place / f"{name}.dist-info/INSTALLER", "pip")
    return place


def settled(facts: Facts) -> Facts:
    """With parts of this machine as they are on a sound one."""
    facts["disks"] = []
    facts["core"] = {
        "available": True, "missing": "",
        "cpu": {"level": "avx2", "detected": "avx2", "levels": ["ref", "avx2"], "max_threads": 8},
        "blas": {"available": True, "text": "OpenBLAS", "error": ""},
    }  # fmt: skip
    facts["memory"]["holders"] = []
    facts["knowledge"] = {}
    return facts


def becomes(machine: Windows | Wsl, *changes: Change) -> Change:
    """A change that makes facts of any machine those of this one, and changes these."""

    def change(facts: Facts) -> None:
        with TemporaryDirectory() as folder:
            found = machine.facts(Path(folder))
        facts.clear()
        facts.update(found)
        for one in changes:
            one(facts)

    return change
