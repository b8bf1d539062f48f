"""Made-up machines for the doctor: trees of the kernel's files, what torch would say, facts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hy3d_rocm.diagnose.doctor.examination import collect
from hy3d_rocm.diagnose.env.machine import Machine

GB = 1 << 30
Facts = dict[str, Any]
Change = Callable[[Facts], None]

PCI = "0000:03:00.0"
NAVI31 = {"target": 110000, "name": "navi31", "architecture": "gfx1100", "vram": 24 * GB}
STRIX_HALO = {"target": 110501, "name": "strix halo", "architecture": "gfx1151", "vram": 96 * GB}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def amd_tree(root: Path, card: dict[str, Any] = NAVI31, *, release: str = "6.17.9-arch1") -> Path:
    """What the kernel shows of a healthy machine with one card, below `root`."""
    node = root / "sys/class/kfd/kfd/topology/nodes/1"
    write(node / "name", card["name"])
    write(node / "properties", f"simd_count 96\ngfx_target_version {card['target']}")
    write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {card['vram']}")
    device = root / "sys/bus/pci/devices" / PCI
    for name, content in {
        "vendor": "0x1002", "device": "0x744c", "class": "0x030000",
        "mem_info_vram_total": card["vram"], "mem_info_vram_used": 400 << 20,
        "mem_info_gtt_total": 16 * GB, "mem_info_gtt_used": 20 << 20,
        "fw_version/mes_fw_version": "0x00000080", "gpu_busy_percent": 3,
    }.items():  # fmt: skip
        write(device / name, content)
    drivers = root / "sys/bus/pci/drivers/amdgpu"
    drivers.mkdir(parents=True)
    (device / "driver").symlink_to(drivers)
    other = root / "sys/bus/pci/devices/0000:00:1f.0"
    write(other / "vendor", "0x8086")
    write(other / "class", "0x060100")
    (root / "sys/module/amdgpu").mkdir(parents=True)
    write(root / "proc/sys/kernel/osrelease", release)
    write(root / "proc/cmdline", "quiet amdgpu.gttsize=1000 ttm.pages_limit=7 splash")
    write(root / "proc/meminfo", f"MemTotal: {32 << 20} kB\nMemAvailable: {24 << 20} kB")
    write(root / "dev/kfd", "")
    write(root / "dev/dri/renderD128", "")
    return root


def process(
    root: Path, pid: int, line: str, vram_kib: int = 0, gtt_kib: int = 0, client: int = 1,
    descriptor: int = 5, compute_bytes: int = 0,
) -> None:  # fmt: skip
    """A process that has the render node open, as the kernel shows it."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    write(folder / "cmdline", "")
    (folder / "cmdline").write_bytes(line.replace(" ", "\0").encode())
    (folder / "fd" / str(descriptor)).symlink_to("/dev/dri/renderD128")
    write(
        folder / "fdinfo" / str(descriptor),
        f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{PCI}\n"
        f"drm-memory-vram:\t{vram_kib} KiB\ndrm-memory-gtt: \t{gtt_kib} KiB",
    )
    if compute_bytes:
        write(root / f"sys/class/kfd/kfd/proc/{pid}/vram_1234", compute_bytes)


def torch_says(**changes: Any) -> Facts:
    """A ROCm build that works, with one card."""
    facts: Facts = {
        "version": "2.9.0+rocm6.4", "hip": "6.4.43482", "cuda": None,
        "miopen_or_cudnn_enabled": True, "threads": 8, "library": "3.4.0",
        "architectures": ["gfx1030", "gfx1100", "gfx1201"],
        "triton": {"version": "3.5.0", "error": ""},
        "gpus": [{
            "name": "AMD Radeon RX 7900 XTX", "architecture": "gfx1100", "memory_bytes": 24 * GB,
            "total_bytes": 24 * GB, "free_bytes": 23 * GB, "allocated_bytes": 0,
            "reserved_bytes": 0,
        }],
    }  # fmt: skip
    return facts | changes


def miopen_home(home: Path, entries: int = 10, version: str = "3_4_0") -> Path:
    path = home / f".config/miopen/gfx1100_48.HIP.{version}_abc.ufdb.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{n}=x\n" for n in range(entries)))
    return home


def healthy(folder: Path) -> Facts:
    """The facts of a machine of which nothing is to be said."""
    root = amd_tree(folder / "root")
    environ = {"HOME": str(miopen_home(folder / "home")), "MIOPEN_FIND_MODE": "FAST"}
    machine = Machine(
        architectures=("gfx1100",), torch=(2, 9, 0), torch_is_rocm=True, rocm=(6, 4)
    )  # fmt: skip
    facts = collect(environ, root=root, machine=machine, torch=torch_says())
    facts.pop("windows", None)  # this machine has Linux, whatever has the tests
    facts["disks"] = [
        {"path": "/x", "uses": ["Triton's kernels"], "free_bytes": 99 * GB, "total_bytes": 99 * GB}
    ]
    facts["core"] = {
        "available": True, "missing": "",
        "cpu": {"level": "avx2", "detected": "avx2", "levels": ["ref", "avx2"], "max_threads": 8},
        "blas": {"available": True, "text": "OpenBLAS", "error": ""},
    }  # fmt: skip
    facts["self_test"] = {
        "ran": True, "why": "",
        "results": [result("cpu", "cpu"), result("vendor"), result("triton"), result("gemm")],
    }  # fmt: skip
    return facts


def result(tier: str, device: str = "cuda:0", verdict: str = "ok", detail: str = "") -> Facts:
    return {
        "device": device, "tier": tier, "shape": "conv3d 1x64x5x34x34 -> 64, bf16",
        "verdict": verdict, "first_seconds": 3.5, "seconds": 0.01, "detail": detail, "limit_s": 5.0,
    }  # fmt: skip


def put(path: str, value: Any) -> Change:
    """A change that sets facts[a][b]... of "a.b"; a number in the path is a place in a list."""

    def change(facts: Facts) -> None:
        *way, last = path.split(".")
        place: Any = facts
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    return change


def changed(facts: Facts, *changes: Change) -> Facts:
    copied = copy.deepcopy(facts)
    for change in changes:
        change(copied)
    return copied


def is_architecture(name: str) -> Change:
    def change(facts: Facts) -> None:
        facts["machine"]["architectures"] = [name]
        facts["driver"]["gpus"][0]["architecture"] = name
        facts["torch"]["gpus"][0]["architecture"] = name
        facts["torch"]["architectures"].append(name)

    return change


def set_variable(name: str, value: str) -> Change:
    def change(facts: Facts) -> None:
        facts["variables"][name] = {"value": value, "verdict": "", "note": ""}

    return change
