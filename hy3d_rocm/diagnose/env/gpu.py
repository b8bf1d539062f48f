"""AMD GPUs as the kernel driver lists them (Linux), for machines where torch can't tell; and how
the kernel's small text files and its processes are read, below any root folder: nothing raises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def text(path: Path) -> str:
    """The file's text without white space around it, "" where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def number(path: Path) -> int | None:
    """A file of one whole number, decimal or 0x..., None for anything else."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


def field(path: Path, name: str) -> int | None:
    """The whole number behind `name` where a line begins with that, as "VmRSS:   1234 kB" does;
    None where there is none."""
    value = f"\n{text(path)}".partition(f"\n{name}")[2].split(maxsplit=1)[:1]
    return int(value[0]) if value and value[0].isdigit() else None


def fields(path: Path, separator: str = ":") -> dict[str, str]:
    """What a file of lines of a name and a value holds."""
    pairs = (line.partition(separator) for line in text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; [] where it can't be listed."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):
        return []


def link_name(path: Path) -> str:
    """The last part of where a link leads, "" where there is none."""
    try:
        return path.readlink().name
    except (OSError, ValueError):
        return ""


def pids(proc: Path = PROC) -> list[int]:
    """Of all processes, the lowest first."""
    return sorted(int(path.name) for path in entries(proc) if path.name.isdigit())


def open_files(process: Path) -> Iterator[tuple[str, str]]:
    """The descriptors of a process, and what each leads to."""
    for descriptor in entries(process / "fd"):
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        yield descriptor.name, target


def name_of(process: Path) -> str:
    """The program and, for an interpreter, its script: "python main.py"."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    scripts = [word for word in words[1:] if word.endswith((".py", "hy3d-rocm"))]
    shown = (os.path.basename(word) for word in words[:1] + scripts[:1])
    name = "".join(c if c.isprintable() else "?" for c in " ".join(filter(None, shown)))
    return name[:80] or text(process / "comm") or "?"


TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
ROCM = Path("/opt/rocm")
_LOCAL_HEAPS = (1, 2)  # memory on the card: public and private


def amd_gpus(topology: Path = TOPOLOGY) -> list[dict[str, Any]]:
    """[{"name", "architecture", "memory_bytes"}], in the driver's order; [] without the driver.

    `memory_bytes` is what the driver calls local: on an APU the carve-out, not the unified memory.
    """
    numbers = sorted(int(node.name) for node in entries(topology) if node.name.isdigit())
    gpus = []
    for node in (topology / str(number) for number in numbers):
        properties = _properties(node / "properties")
        target = properties.get("gfx_target_version", 0)
        if target:
            name = text(node / "name")
            banks = (_properties(bank / "properties") for bank in entries(node / "mem_banks"))
            local = (bank for bank in banks if bank.get("heap_type") in _LOCAL_HEAPS)
            memory = sum(bank.get("size_in_bytes", 0) for bank in local)
            gpus.append(
                {"name": name, "architecture": architecture(target), "memory_bytes": memory}
            )
    return gpus


def architecture(target: int) -> str:
    """The driver's number as LLVM's name: 110501 is gfx1151, 90010 is gfx90a."""
    major, minor, step = target // 10000, target // 100 % 100, target % 100
    return f"gfx{major}{minor:x}{step:x}"


def rocm_version(folder: Path = ROCM) -> str:
    """Version of a ROCm installed on the system, "" without one."""
    return text(folder / ".info" / "version")


def _properties(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in fields(path, " ").items() if value.isdigit()}
