"""`hy3d-rocm doctor`: the facts about this machine that decide how things run.

Imports neither torch nor numpy itself; torch is asked only if it can be imported.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__, units
from hy3d_rocm.env import gpu, variables
from hy3d_rocm.env.machine import Machine, detect

PACKAGES = (
    "torch", "numpy", "diffusers", "transformers", "accelerate", "triton",
    "pytorch-triton-rocm",
)  # fmt: skip


def collect(
    environ: Mapping[str, str] | None = None,
    *,
    machine: Machine | None = None,
    torch: Mapping[str, Any] | None = None,
    topology: Path = gpu.TOPOLOGY,
) -> dict[str, Any]:
    """All facts, JSON-able. Never raises for a broken package: its error is the fact.

    machine: None for this one. torch: what torch_facts() said already, in this process or in
    another one; None asks it here, which starts the GPU.

    system, versions (None: not installed), torch (what it says of itself and its GPUs), core (the
    C core's CPU level, BLAS), driver (AMD GPUs and ROCm without torch's help), rules (the machine
    that the rules for variables see), variables.
    """
    environ = os.environ if environ is None else environ
    machine = detect(environ) if machine is None else machine
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": {
            "os": platform.platform(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "cpus": usable,
        },
        "versions": {"hy3d-rocm": __version__, **{name: _version(name) for name in PACKAGES}},
        "torch": torch_facts() if torch is None else dict(torch),
        "core": _core(),
        "driver": {"gpus": gpu.amd_gpus(topology), "rocm": gpu.rocm_version() or None},
        "rules": machine.describe(),
        "variables": variables.relevant(environ, machine),
    }


def format_text(facts: Mapping[str, Any]) -> str:
    """`collect()`'s facts for people."""
    return columns(sections(facts))


def columns(found: Mapping[str, list[str]]) -> str:
    """Headings in one column, their lines in another."""
    width = max(map(len, found)) + 2
    lines = []
    for title, body in found.items():
        heads = [title, *[""] * (len(body) - 1)]
        lines += [f"{head:{width}}{line}".rstrip() for head, line in zip(heads, body, strict=True)]
    return "\n".join(lines)


def sections(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """`collect()`'s facts for people: heading -> lines."""
    system, driver = facts["system"], facts["driver"]
    installed = [f"{name} {v}" for name, v in facts["versions"].items() if v is not None]
    listed = [f"driver: {_gpu_line(g)}" for g in driver["gpus"]]
    listed += [f"ROCm {driver['rocm']} on the system"] if driver["rocm"] else []
    values = [
        f"{name}={entry['value']}" + (f"  ({entry['note']})" if entry["note"] else "")
        for name, entry in facts["variables"].items()
    ]
    return {
        "system": [f"{system['os']}, Python {system['python']}, {system['cpus']} CPUs"],
        "packages": [", ".join(installed) or "none of those that matter"],
        "C core": _core_lines(facts["core"]),
        "GPU": [*_torch_lines(facts["torch"]), *(listed or ["driver: no AMD GPU"])],
        "variables": [
            f"rules applied for: {facts['rules']}",
            *(values or ["none of those that matter is set"]),
        ],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _core() -> dict[str, Any]:
    try:
        from hy3d_rocm import _native

        cpu, blas = _native.cpu_info(), _native.blas_info()
    except Exception as error:  # noqa: BLE001  (a wrong HY3D_CPU, say: that is the fact)
        return {"available": False, "missing": f"{type(error).__name__}: {error}"}
    return {
        "available": _native.available,
        "missing": _native.missing,
        "cpu": {**cpu, "levels": list(cpu["levels"])},
        "blas": dict(blas),
    }


def torch_facts() -> dict[str, Any]:
    """{"version", "hip", "cuda", "miopen_or_cudnn_enabled", "threads", "gpus", "error"}.

    Imports torch and starts its GPU. "error" is there where something failed; alone, where torch
    can't be imported.
    """
    try:
        import torch
    except Exception as error:  # noqa: BLE001  (a broken build raises anything: that is the fact)
        return {"error": f"{type(error).__name__}: {error}"}
    facts: dict[str, Any] = {
        "version": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "miopen_or_cudnn_enabled": torch.backends.cudnn.enabled,
        "threads": torch.get_num_threads(),
        "gpus": [],
    }
    try:
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            facts["gpus"].append({
                "name": properties.name,
                "architecture": getattr(properties, "gcnArchName", ""),
                "memory_bytes": properties.total_memory,
            })  # fmt: skip
    except Exception as error:  # noqa: BLE001  (a driver that does not start is the fact)
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def _core_lines(core: Mapping[str, Any]) -> list[str]:
    if not core["available"]:
        remedy = [core["blas"]["error"]] if "blas" in core else []
        return [f"not there: {core['missing']}", *remedy]
    cpu, blas = core["cpu"], core["blas"]
    lowered = "" if cpu["level"] == cpu["detected"] else f", lowered from {cpu['detected']}"
    return [
        f"kernels {cpu['level']}{lowered}, at most {cpu['max_threads']} threads",
        f"BLAS: {blas['text'] if blas['available'] else blas['error']}",
    ]


def _torch_lines(torch: Mapping[str, Any]) -> list[str]:
    lines = []
    if "version" in torch:
        build = f"ROCm {torch['hip']}" if torch["hip"] else f"CUDA {torch['cuda']}"
        kind = build if torch["hip"] or torch["cuda"] else "CPU only"
        lines.append(f"torch {torch['version']}: {kind}")
        switch = "on" if torch["miopen_or_cudnn_enabled"] else "off"
        if torch["hip"]:
            lines.append(f"MIOpen is switched {switch} in torch")
        lines += [_gpu_line(g) for g in torch["gpus"]]
    if "error" in torch:
        lines.append(f"torch: {torch['error']}")
    return lines


def _gpu_line(facts: Mapping[str, Any]) -> str:
    memory = units.size_text(facts["memory_bytes"])
    return ", ".join(part for part in (facts["name"], facts["architecture"], memory) if part)
