"""Memory of host and cards, and which processes hold a card's (Linux, amdgpu).

A process' share is what its files in /dev/dri say (fdinfo, the kernel's drm-usage-stats.rst) or
what the compute driver counts for it (/sys/class/kfd/kfd/proc), whichever is more: compute memory
is in both. Other users' processes are seen only by the second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.doctor.facts.driver import ROOT
from hy3d_rocm.doctor.miopen.users import name_of, open_files, pids
from hy3d_rocm.env.files import entries, number, text
from hy3d_rocm.memory import host_free_bytes, host_total_bytes

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SHOWN_HOLDERS = 12


def collect(root: Path = ROOT) -> dict[str, Any]:
    """{"host": {...}, "holders": [...]}, the largest holder first."""
    return {"host": host(root), "holders": holders(root)[:_SHOWN_HOLDERS]}


def host(root: Path = ROOT) -> dict[str, int | None]:
    """total_bytes, available_bytes (within the control groups' limits), swap_free_bytes; None
    where the system does not say."""
    return {
        "total_bytes": host_total_bytes(root), "available_bytes": host_free_bytes(root),
        "swap_free_bytes": _free_swap(root),
    }  # fmt: skip


def _free_swap(root: Path) -> int | None:
    fields = _fields(text(root / "proc/meminfo"))
    if fields or root != ROOT:
        return _size(fields.get("SwapFree", ""))
    try:
        import psutil

        return int(psutil.swap_memory().free)
    except (ImportError, OSError, RuntimeError):
        return None


def holders(root: Path = ROOT, own: int | None = None) -> list[dict[str, Any]]:
    """[{"pid", "name", "own", "vram_bytes", "gtt_bytes"}] of all that hold some."""
    if sys.platform != "linux":
        return []
    own = os.getpid() if own is None else own
    shares = {pid: share for pid in pids(root / "proc") if any(share := _by_files(root, pid))}
    for pid, held in _by_compute_driver(root).items():
        vram, gtt = shares.get(pid, (0, 0))
        shares[pid] = max(vram, held), gtt
    found = [
        {
            "pid": pid, "name": name_of(root / "proc" / str(pid)), "own": pid == own,
            "vram_bytes": vram, "gtt_bytes": gtt,
        }
        for pid, (vram, gtt) in shares.items()
    ]  # fmt: skip
    return sorted(found, key=lambda holder: (-holder["vram_bytes"], -holder["gtt_bytes"]))


def _by_files(root: Path, pid: int) -> tuple[int, int]:
    """VRAM and GTT of a process; a client that it has open twice counts once."""
    process = root / "proc" / str(pid)
    clients: dict[tuple[str, str], tuple[int, int]] = {}
    for descriptor, target in open_files(process):
        if "/dev/dri/" not in target and "/dev/kfd" not in target:
            continue
        fields = _fields(text(process / "fdinfo" / descriptor))
        if fields.get("drm-driver") == "amdgpu":
            client = fields.get("drm-pdev", ""), fields.get("drm-client-id", descriptor)
            clients[client] = _resident(fields, "vram"), _resident(fields, "gtt")
    return sum(vram for vram, _ in clients.values()), sum(gtt for _, gtt in clients.values())


def _fields(content: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in content.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _resident(fields: dict[str, str], region: str) -> int:
    """drm-resident-* of newer kernels, drm-memory-* of older ones."""
    for name in (f"drm-resident-{region}", f"drm-memory-{region}"):
        if name in fields:
            return _size(fields[name]) or 0
    return 0


def _by_compute_driver(root: Path) -> dict[int, int]:
    folders = [f for f in entries(root / "sys/class/kfd/kfd/proc") if f.name.isdigit()]
    held = {
        int(folder.name): sum(
            number(part) or 0 for part in entries(folder) if part.name.startswith("vram_")
        )
        for folder in folders
    }
    return {pid: size for pid, size in held.items() if size}


def _size(value: str) -> int | None:
    """ "22528 KiB", "10 kB" of meminfo, or a plain number of bytes."""
    words = value.split()
    if not words or not words[0].isdigit():
        return None
    unit = words[1].replace("kB", "KiB") if len(words) > 1 else ""
    return int(words[0]) * _UNITS[unit] if unit in _UNITS else None
