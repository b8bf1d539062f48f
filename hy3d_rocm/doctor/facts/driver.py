"""The kernel's side (Linux): AMD cards, their driver, their firmware, who may open the devices.

Sources: the kernel's Documentation/gpu/amdgpu (mem_info_*, fw_version), Documentation/gpu/
drm-usage-stats.rst. `root` is / except in tests.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.verdict_store.machine import amd_driver
from hy3d_rocm.env.files import entries, link_name, number, text

AMD = 0x1002
_DISPLAY_CLASS = 0x03
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_BOOT_OPTIONS = ("amdgpu.", "ttm.", "amdttm.", "amd_iommu", "iommu")
ROOT = Path("/")


def collect(root: Path = ROOT) -> dict[str, Any]:
    """The kernel, its driver and boot options, the cards, the devices and this process' groups."""
    if sys.platform != "linux":
        return {
            "release": platform.release(), "driver": _other_driver(), "loaded": None,
            "container": False, "boot_options": [], "cards": [], "devices": [], "groups": [],
        }  # fmt: skip
    module = root / "sys/module/amdgpu"
    words = text(root / "proc/cmdline").split()
    return {
        "release": text(root / "proc/sys/kernel/osrelease"),
        "driver": amd_driver(module, root / "dev/dxg") if module.is_dir() else "",
        "loaded": module.is_dir(),
        "container": any((root / mark).exists() for mark in _CONTAINER_MARKS),
        "boot_options": [word for word in words if word.startswith(_BOOT_OPTIONS)],
        "cards": cards(root),
        "devices": devices(root),
        "groups": own_groups(),
    }


def cards(root: Path = ROOT) -> list[dict[str, Any]]:
    """Display adapters of AMD's on the PCI bus, with amdgpu's own figures where it drives them."""
    return [
        _card(folder)
        for folder in entries(root / "sys/bus/pci/devices")
        if number(folder / "vendor") == AMD
        and (number(folder / "class") or 0) >> 16 == _DISPLAY_CLASS
    ]


def _card(folder: Path) -> dict[str, Any]:
    figures = ("vram_total", "vram_used", "gtt_total", "gtt_used")
    return {
        "pci": folder.name,
        "device": text(folder / "device"),
        "name": text(folder / "product_name"),
        "driver": link_name(folder / "driver"),
        **{f"{name}_bytes": number(folder / f"mem_info_{name}") for name in figures},
        "mes_firmware": number(folder / "fw_version" / "mes_fw_version"),
        "busy_percent": number(folder / "gpu_busy_percent"),
    }


def devices(root: Path = ROOT) -> list[dict[str, Any]]:
    """/dev/kfd and the render nodes: whose they are, and whether this process may use them."""
    nodes = [path for path in entries(root / "dev/dri") if path.name.startswith("renderD")]
    return [_device(path, root) for path in (root / "dev/kfd", *nodes)]


def _device(path: Path, root: Path) -> dict[str, Any]:
    try:
        found = path.stat()
    except OSError:
        found = None
    return {
        "path": f"/{path.relative_to(root).as_posix()}",
        "exists": found is not None,
        "usable": found is not None and os.access(path, os.R_OK | os.W_OK),
        "group": group_name(found.st_gid) if found else "",
        "mode": stat.filemode(found.st_mode) if found else "",
    }


def group_name(number: int) -> str:
    """The group's name, its number where it has none (as in a container)."""
    if sys.platform == "win32":
        return str(number)
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OSError):
        return str(number)


def own_groups() -> list[str]:
    """The names of the groups that this process has, which may be fewer than its user has."""
    if sys.platform == "win32":
        return []
    return sorted({group_name(number) for number in (*os.getgroups(), os.getegid())})


def _other_driver() -> str:
    try:
        return amd_driver()
    except Exception as error:  # noqa: BLE001  (the registry's own ways: that is the fact)
        return f"can't be told: {error}"
