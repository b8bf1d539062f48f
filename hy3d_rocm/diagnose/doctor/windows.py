"""Windows' side: AMD cards and their drivers, the GPU's time-out, page files, HIP SDKs and ROCm's
wheels; and WSL's, where Windows has the driver.

The registry and three calls of Windows are asked, no program is run. What can't be read is None.
The registry's keys are Microsoft's (learn.microsoft.com, "TDR registry keys", "page file size") and
AMD's (DriverVersion, RadeonSoftwareVersion, HardwareInformation.qwMemorySize of a display driver).
`root` is / except in tests.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from hy3d_rocm.conv.verdict_store.records import DISPLAY_DRIVERS, registry_values
from hy3d_rocm.diagnose.cards import architecture_of
from hy3d_rocm.diagnose.env.gpu import entries, text
from hy3d_rocm.diagnose.env.machine import TARGET, parse_version, rocm_packages
from hy3d_rocm.diagnose.miopen.places import places
from hy3d_rocm.files import file_system
from hy3d_rocm.memory import ROOT

TIME_OUT = r"SYSTEM\CurrentControlSet\Control\GraphicsDrivers"
PAGE_FILES = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management"
ADRENALIN = r"SOFTWARE\AMD\CN"
_ENTRIES = 32  # drivers of display adapters, those that are no longer there among them
_AMD = re.compile(r"VEN_1002&DEV_([0-9A-F]{4})", re.IGNORECASE)
_PAGE_FILE = re.compile(r"(?P<path>.*?\.sys)(?: +(?P<least>\d+))?(?: +(?P<most>\d+))?", re.I)
_MIB = 1 << 20
_OWN_SDK = "_rocm_sdk_"  # in the names of the folders that ROCm's wheels fill
_SDK = re.compile(r"[\\/]AMD[\\/]ROCm[\\/](\d[\d.]*)", re.IGNORECASE)
_WINDOWS_DISKS = ("9p", "drvfs", "v9fs")  # how WSL mounts the disks of Windows
_BRIDGE_FOLDERS = ("opt/rocm/lib", "usr/lib/x86_64-linux-gnu", "usr/lib", "usr/local/lib")
_OLDER_BRIDGE = "var/lib/dpkg/info/hsa-runtime-rocr4wsl-amdgpu*.list"


@dataclass(frozen=True)
class System:
    """How Windows is asked; tests make one up. Each says None where it can't tell.

    values(key): all values of a key below HKEY_LOCAL_MACHINE, by name. adapters(): "PCI\\VEN_..."
    of each display adapter that is there. commit(): limit and rest, in bytes, of what all processes
    together may allocate.
    """

    values: Callable[[str], Mapping[str, Any] | None]
    adapters: Callable[[], Sequence[str] | None]
    commit: Callable[[], tuple[int, int] | None]


def collect(
    environ: Mapping[str, str],
    root: Path = ROOT,
    system: System | None = None,
    folders: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What is to be known of Windows ("host": "windows") or WSL ("wsl"); {} elsewhere.

    system: None for this one's. folders: where packages are, None for sys.path.
    """
    folders = sys.path if folders is None else folders
    if system is None and sys.platform == "win32":
        system = System(registry_values, _adapters, _commit)
    if system is not None:
        system = System(_once(system.values), _once(system.adapters), _once(system.commit))
        there = cards(system)
        found = {
            "host": "windows", "cards": there, "nvidia": has_nvidia(system),
            "time_out": time_out(system),
            "software": next((card["software"] for card in there if card["software"]), ""),
            "page_file": page_file(system), "sdk": sdk(environ),
            "runtimes": runtimes(environ),
            "commit": (held := system.commit())
            and {"limit_bytes": held[0], "free_bytes": held[1]},
        }  # fmt: skip
    elif "microsoft" in text(root / "proc/version").lower():
        found = {"host": "wsl", **wsl(environ, root, folders)}
    else:
        return {}
    return found | {"wheels": wheels(folders), "installed": installed(folders)}


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Asks each thing once; None where it raises anything: that Windows can't tell it."""

    @cache
    def asked(*given: Any) -> Any:
        try:
            return function(*given)
        except Exception:  # noqa: BLE001  (the registry's own ways)
            return None

    return asked


def cards(system: System) -> list[dict[str, Any]]:
    """AMD's display adapters that are there: by the registry, which keeps those that were taken out
    and each of a card's earlier places, so the newest drivers of as many as there are. driver: ""
    for one that has no driver of AMD's."""
    known: dict[str, list[dict[str, Any]]] = {}
    drivers = _drivers(system)
    for entry in drivers:
        named = _AMD.search(str(entry.get("MatchingDeviceId", "")))
        if named:
            known.setdefault(named[1].lower(), []).append(_card(entry, named[1].lower(), system))
    there = system.adapters()
    if there is None:
        return [card for group in known.values() for card in group]
    found = []
    devices = [named[1].lower() for named in map(_AMD.search, there) if named]
    for device in dict.fromkeys(devices):
        group = sorted(known.get(device, []), key=lambda card: parse_version(card["driver"]))[::-1]
        other = {**_card({}, device, None), "name": f"PCI 1002:{device}"}
        if drivers:
            other["driver"] = ""
        found += (group + [other] * len(devices))[: devices.count(device)]
    return found


def _drivers(system: System) -> list[Mapping[str, Any]]:
    """The registry's entries of the drivers of display adapters, old ones among them."""
    keys = (rf"{DISPLAY_DRIVERS}\{number:04}" for number in range(_ENTRIES))
    return [entry for entry in map(system.values, keys) if entry]


def has_nvidia(system: System) -> bool:
    """Whether a display adapter of NVIDIA's is there; where Windows does not tell, or ever was."""
    there = system.adapters()
    if there is None:
        there = [str(entry.get("MatchingDeviceId", "")) for entry in _drivers(system)]
    return any("VEN_10DE&" in name.upper() for name in there)


def _card(entry: Mapping[str, Any], device: str, system: System | None) -> dict[str, Any]:
    name, memory = str(entry.get("DriverDesc", "")), entry.get("HardwareInformation.qwMemorySize")
    of_all = (system.values(ADRENALIN) or {}) if system is not None else {}
    software = entry.get("RadeonSoftwareVersion") or of_all.get("RadeonSoftwareVersion")
    return {
        "name": name,
        "device": device,
        "architecture": architecture_of(name, device),
        "driver": str(entry.get("DriverVersion", "of an unknown version")),
        "software": str(software or ""),
        "memory_bytes": int.from_bytes(memory, "little") if isinstance(memory, bytes)
        else memory if isinstance(memory, int) else None,
    }  # fmt: skip


def time_out(system: System) -> dict[str, Any] | None:
    """{"delay", "level": None for Windows' own; "seconds"} of the GPU's time-out (TDR)."""
    values = system.values(TIME_OUT)
    if values is None:
        return None
    told = (values.get(name) for name in ("TdrDelay", "TdrLevel"))
    delay, level = (value if isinstance(value, int) else None for value in told)
    return {"delay": delay, "level": level, "seconds": 2 if delay is None else delay}


def page_file(system: System) -> dict[str, Any] | None:
    """{"is_off", "is_fixed", "most_bytes" of all fixed ones, "text"}."""
    values = system.values(PAGE_FILES)
    written = values.get("PagingFiles") if values is not None else None
    if not isinstance(written, list | tuple | str):
        return None
    lines = [written] if isinstance(written, str) else [str(line) for line in written]
    files = [found for line in lines if (found := _PAGE_FILE.match(line.strip()))]
    most = [int(file["most"] or 0) for file in files]
    return {
        "is_off": not files,
        "is_fixed": bool(files) and all(most),
        "most_bytes": sum(most) * _MIB,
        "text": ", ".join(line for line in lines if line.strip()) or "none",
    }


def sdk(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """A HIP SDK that the variables name: {"path", "version", "on_path": its folders on PATH,
    "is_wheels": it is the one of ROCm's own wheels, and no other is on PATH}."""
    by_name = {name.upper(): value for name, value in environ.items()}
    path = by_name.get("HIP_PATH", "")
    on_path = [folder for folder in by_name.get("PATH", "").split(";") if _is_of_sdk(folder, path)]
    if not path and not on_path:
        return None
    is_own = _OWN_SDK in path.lower()
    version = _SDK.search(on_path[0] if is_own and on_path else path or on_path[0])
    return {
        "path": path, "version": version[1].rstrip(".") if version else "",
        "on_path": on_path, "is_wheels": is_own and not on_path,
    }  # fmt: skip


def _is_of_sdk(folder: str, path: str) -> bool:
    here = PureWindowsPath(folder.strip('" '))
    if here.name.lower() != "bin" or _OWN_SDK in folder.lower():
        return False
    return bool(_SDK.search(folder) or (path and here.parent == PureWindowsPath(path)))


def runtimes(environ: Mapping[str, str]) -> list[str]:
    """HIP's run-time libraries that the driver has put into Windows' own folder."""
    by_name = {name.upper(): value for name, value in environ.items()}
    folder = Path(by_name.get("SYSTEMROOT", r"C:\Windows"), "System32")
    return [path.name for path in entries(folder) if path.name.lower().startswith("amdhip64")]


def wheels(folders: Sequence[str]) -> dict[str, Any]:
    """ROCm's own wheels: {"names": with versions, "families", "devices": for which GPUs, "when"}.

    families: of wheels for several GPUs ("gfx110X"). devices: of wheels that have one GPU's kernels
    each ("gfx1100"), which torch needs beside a neutral one (is_split).
    """
    found = rocm_packages(folders)
    targets = [match.groups() for match in map(TARGET.match, (name for name, _ in found)) if match]
    return {
        "names": [f"{name.replace('_', '-')} {version}" for name, version in found],
        "families": list(dict.fromkeys(t for kind, t in targets if kind == "libraries")),
        "devices": list(dict.fromkeys(target for kind, target in targets if kind == "device")),
        "is_split": any(name == "rocm_sdk_libraries" for name, _ in found),
        "when": max(map(_day, found.values()), default=""),
    }


def installed(folders: Sequence[str]) -> dict[str, str]:
    """How torch came here: {"version", "by", "from", "when"}, "" for what isn't known."""
    paths = (path for folder in folders for path in entries(Path(folder or ".")))
    folder = next((p for p in paths if re.fullmatch(r"torch-.*\.dist-info", p.name)), None)
    if folder is None:
        return {}
    address = ""
    with suppress(ValueError, AttributeError):
        url = urlsplit(str(json.loads(text(folder / "direct_url.json")).get("url", "")))
        address = f"https://{url.hostname}{url.path}" if url.scheme == "https" else "a file"
    return {
        "version": folder.name.removeprefix("torch-").removesuffix(".dist-info"),
        "by": text(folder / "INSTALLER") or "an installer",
        "from": address,
        "when": _day(folder),
    }


def _day(path: Path) -> str:
    try:
        return time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))
    except (OSError, ValueError, OverflowError):
        return ""


def wsl(environ: Mapping[str, str], root: Path, folders: Sequence[str]) -> dict[str, Any]:
    """Whether the GPU's device and AMD's bridge to it are there; what lies on Windows' disks."""
    libraries = [root / part for part in _BRIDGE_FOLDERS]
    libraries += sorted(root.glob("opt/rocm-*/lib"))
    for folder in folders:
        libraries += (path / "lib" for path in entries(Path(folder)) if _OWN_SDK in path.name)
    own = [path for folder in folders for path in entries(Path(folder, "torch/lib"))]
    mounts = text(root / "proc/self/mountinfo")
    return {
        "is_first": "-Microsoft" in text(root / "proc/version"),  # WSL 1 has no GPUs
        "device": (root / "dev/dxg").exists(),
        "detection": environ.get("HSA_ENABLE_DXG_DETECTION", ""),
        "bridges": [str(p) for f in libraries for p in entries(f) if "librocdxg." in p.name],
        "older_bridge": any(root.glob(_OLDER_BRIDGE)),
        "bundled": [str(path) for path in own if path.name.startswith("libhsa-runtime64.so")],
        "windows_disks": [
            f"{place.kind} in {place.path}" for place in places(environ)
            if file_system(mounts, str(place.path)) in _WINDOWS_DISKS
        ],
    }  # fmt: skip


# How this Windows is asked. Elsewhere nothing calls these.


def _adapters() -> list[str] | None:
    """By EnumDisplayDevicesW, which has an adapter once for each of its outputs; those of one have
    one DeviceKey up to its last part."""
    if sys.platform == "win32":
        import ctypes

        class Device(ctypes.Structure):
            _fields_ = [
                ("size", ctypes.c_uint32), ("name", ctypes.c_wchar * 32),
                ("text", ctypes.c_wchar * 128), ("state", ctypes.c_uint32),
                ("id", ctypes.c_wchar * 128), ("key", ctypes.c_wchar * 128),
            ]  # fmt: skip

        found: dict[str, str] = {}
        for number in range(256):
            device = Device(size=ctypes.sizeof(Device))
            ask = ctypes.windll.user32.EnumDisplayDevicesW
            if not ask(None, number, ctypes.byref(device), 0):
                break
            found[device.key.rpartition("\\")[0] or str(number)] = device.id
        return [name for name in found.values() if name]
    return None


def _commit() -> tuple[int, int] | None:
    """By GlobalMemoryStatusEx."""
    if sys.platform == "win32":
        import ctypes

        class Status(ctypes.Structure):
            _fields_ = [
                ("size", ctypes.c_uint32), ("load", ctypes.c_uint32),
                ("total", ctypes.c_uint64), ("free", ctypes.c_uint64),
                ("limit", ctypes.c_uint64), ("rest", ctypes.c_uint64),
                ("space", ctypes.c_uint64), ("free_space", ctypes.c_uint64),
                ("extended", ctypes.c_uint64),
            ]  # fmt: skip

        status = Status(size=ctypes.sizeof(Status))
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return int(status.limit), int(status.rest)
    return None
