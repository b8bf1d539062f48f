"""The kernel's side (Linux): AMD cards, their driver, their firmware, who may open the devices;
memory, and who holds a card's. And what lies on disks: room for caches, and our own database.

Sources: the kernel's Documentation/gpu/amdgpu (mem_info_*, fw_version), Documentation/gpu/
drm-usage-stats.rst. `root` is / except in tests.

A process' share of a card's memory is what its files in /dev/dri say (fdinfo) or what the compute
driver counts for it (/sys/class/kfd/kfd/proc), whichever is more: compute memory is in both. Other
users' processes are seen only by the second.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.verdict_store.database import IN_MEMORY, default_path, own_path
from hy3d_rocm.conv.verdict_store.records import amd_driver
from hy3d_rocm.diagnose.env import gpu
from hy3d_rocm.diagnose.miopen.places import existing, home_of, places, quiet_address, sides_of
from hy3d_rocm.memory import ROOT, host_free_bytes, host_total_bytes
from hy3d_rocm.units import parse_size

AMD = 0x1002
_DISPLAY_CLASS = 0x03
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_BOOT_OPTIONS = ("amdgpu.", "ttm.", "amdttm.", "amd_iommu", "iommu")
_SHOWN_HOLDERS = 12


def collect(root: Path = ROOT) -> dict[str, Any]:
    """The kernel, its driver and boot options, the cards, the devices and this process' groups."""
    if sys.platform != "linux":
        return {
            "release": platform.release(), "driver": amd_driver(), "loaded": None,
            "container": False, "boot_options": [], "cards": [], "devices": [], "groups": [],
        }  # fmt: skip
    module = root / "sys/module/amdgpu"
    words = gpu.text(root / "proc/cmdline").split()
    return {
        "release": gpu.text(root / "proc/sys/kernel/osrelease"),
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
        for folder in gpu.entries(root / "sys/bus/pci/devices")
        if gpu.number(folder / "vendor") == AMD
        and (gpu.number(folder / "class") or 0) >> 16 == _DISPLAY_CLASS
    ]


def _card(folder: Path) -> dict[str, Any]:
    figures = ("vram_total", "vram_used", "gtt_total", "gtt_used")
    return {
        "pci": folder.name,
        "device": gpu.text(folder / "device"),
        "name": gpu.text(folder / "product_name"),
        "driver": gpu.link_name(folder / "driver"),
        **{f"{name}_bytes": gpu.number(folder / f"mem_info_{name}") for name in figures},
        "mes_firmware": gpu.number(folder / "fw_version" / "mes_fw_version"),
        "busy_percent": gpu.number(folder / "gpu_busy_percent"),
    }


def devices(root: Path = ROOT) -> list[dict[str, Any]]:
    """/dev/kfd and the render nodes: whose they are, and whether this process may use them."""
    nodes = [path for path in gpu.entries(root / "dev/dri") if path.name.startswith("renderD")]
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
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OSError):
        return str(number)


def own_groups() -> list[str]:
    """The names of the groups that this process has, which may be fewer than its user has."""
    return sorted({group_name(number) for number in (*os.getgroups(), os.getegid())})


def memory(root: Path = ROOT) -> dict[str, Any]:
    """{"host": {...}, "holders": [...]}, the largest holder first. The host's available_bytes are
    within the control groups' limits; None is what the system does not say."""
    swap = gpu.field(root / "proc/meminfo", "SwapFree:")
    host = {
        "total_bytes": host_total_bytes(root), "available_bytes": host_free_bytes(root),
        "swap_free_bytes": _other_swap(root) if swap is None else swap * 1024,
    }  # fmt: skip
    return {"host": host, "holders": holders(root)[:_SHOWN_HOLDERS]}


def _other_swap(root: Path) -> int | None:
    """Where there is no /proc/meminfo."""
    if root == ROOT:
        with suppress(ImportError, OSError, RuntimeError):
            import psutil

            return int(psutil.swap_memory().free)
    return None


def holders(root: Path = ROOT, own: int | None = None) -> list[dict[str, Any]]:
    """[{"pid", "name", "own", "vram_bytes", "gtt_bytes"}] of all that hold some."""
    if sys.platform != "linux":
        return []
    own = os.getpid() if own is None else own
    shares = {pid: share for pid in gpu.pids(root / "proc") if any(share := _by_files(root, pid))}
    for pid, held in _by_compute_driver(root).items():
        vram, gtt = shares.get(pid, (0, 0))
        shares[pid] = max(vram, held), gtt
    found = [
        {
            "pid": pid, "name": gpu.name_of(root / "proc" / str(pid)), "own": pid == own,
            "vram_bytes": vram, "gtt_bytes": gtt,
        }
        for pid, (vram, gtt) in shares.items()
    ]  # fmt: skip
    return sorted(found, key=lambda holder: (-holder["vram_bytes"], -holder["gtt_bytes"]))


def _by_files(root: Path, pid: int) -> tuple[int, int]:
    """VRAM and GTT of a process; a client that it has open twice counts once."""
    process = root / "proc" / str(pid)
    clients: dict[tuple[str, str], tuple[int, int]] = {}
    for descriptor, target in gpu.open_files(process):
        if "/dev/dri/" not in target and "/dev/kfd" not in target:
            continue
        told = gpu.fields(process / "fdinfo" / descriptor)
        if told.get("drm-driver") == "amdgpu":
            client = told.get("drm-pdev", ""), told.get("drm-client-id", descriptor)
            clients[client] = _resident(told, "vram"), _resident(told, "gtt")
    return sum(vram for vram, _ in clients.values()), sum(gtt for _, gtt in clients.values())


def _resident(told: dict[str, str], region: str) -> int:
    """drm-resident-* of newer kernels, drm-memory-* of older ones."""
    for name in (f"drm-resident-{region}", f"drm-memory-{region}"):
        if name in told:
            with suppress(ValueError):
                return parse_size(told[name])
            break
    return 0


def _by_compute_driver(root: Path) -> dict[int, int]:
    held = {
        int(process.name): sum(
            gpu.number(part) or 0 for part in gpu.entries(process) if part.name.startswith("vram_")
        )
        for process in gpu.entries(root / "sys/class/kfd/kfd/proc")
        if process.name.isdigit()
    }
    return {pid: size for pid, size in held.items() if size}


def storage(environ: Mapping[str, str]) -> dict[str, Any]:
    """{"disks": [{"path", "uses", "free_bytes", "total_bytes"}], "knowledge": {...}}."""
    windows = os.name == "nt"
    home = home_of(environ, windows)
    database = own_path(default_path(environ, str(home), windows=windows))
    folders = {f"MIOpen's {place.kind}": place.path for place in places(environ)}
    folders["Triton's kernels"] = Path(
        environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or home, ".triton/cache")
    )
    folders["temporary files"] = Path(tempfile.gettempdir())
    if database != IN_MEMORY:
        folders["the database of measured convolutions"] = Path(database).parent
    return {"disks": disks(folders), "knowledge": knowledge(database)}


def disks(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One entry a disk: its first folder here, and all that is kept there."""
    found: dict[int, dict[str, Any]] = {}
    for use, path in folders.items():
        folder = existing(path)
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        entry = found.setdefault(
            device,
            {"path": str(path), "uses": [], "free_bytes": usage.free, "total_bytes": usage.total},
        )
        entry["uses"].append(use)
    return list(found.values())


def knowledge(database: str) -> dict[str, Any]:
    """{"path", "exists", "verdicts": {verdict: rows} or None, "error", "note"}; makes no files.

    verdicts: None, and note says why, where the database was not closed. A running ComfyUI keeps it
    open, with -wal and -shm: a reader beside it makes neither.
    """
    exists = database != IN_MEMORY and os.path.isfile(database)
    facts: dict[str, Any] = {
        "path": database, "exists": exists, "verdicts": {}, "error": "", "note": ""
    }  # fmt: skip
    if not exists:
        return facts
    path = Path(database)
    sides = set(sides_of(path))
    if sides not in (set(), {"-wal", "-shm"}):
        facts["verdicts"] = None
        facts["note"] = "not counted: a program has it open, or it was not closed"
        return facts
    address = f"{path.resolve().as_uri()}?mode=ro" if sides else quiet_address(path)
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=0.5)) as connection:
            rows = connection.execute("SELECT verdict, count(*) FROM records GROUP BY verdict")
            facts["verdicts"] = dict(rows)
    except (OSError, sqlite3.Error) as error:
        facts["error"] = str(error)
    return facts
