"""The facts about this machine that decide how things run: system, versions, torch, C core, GPUs,
variables.

Imports neither torch nor numpy itself; torch is asked only if it can be imported. Starting the GPU
may hang in a broken driver, and a broken build may take the process with it: for a diagnosis torch
is asked in a child (`ask_torch`) where this process has not started the GPU already.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.env import gpu, rules
from hy3d_rocm.diagnose.env.machine import Machine, detect
from hy3d_rocm.diagnose.env.shown import anonymous
from hy3d_rocm.files import plain
from hy3d_rocm.memory import gpu_bytes, host_total_bytes

_CALL = f"{__name__}:here"
PACKAGES = (
    "torch", "numpy", "diffusers", "transformers", "accelerate", "triton",
    "pytorch-triton-rocm",
)  # fmt: skip


def collect(
    environ: Mapping[str, str] = os.environ,
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
        "variables": rules.relevant(environ, machine),
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


def ask_torch(seconds: float) -> dict[str, Any]:
    """`here()`, at most about `seconds` later; {"error", "is_hang"} where nothing is known."""
    if is_started():
        return here() | {"in_this_process": True}
    from hy3d_rocm.conv.probe.parent import NoAnswerError, ask

    try:
        facts = ask(_CALL, limit_s=seconds)
    except NoAnswerError as error:
        return {"error": str(error), "is_hang": error.is_hang}
    return facts if isinstance(facts, dict) else {"error": "the child's answer is no table"}


def is_started() -> bool:
    """Whether torch is in this process and has started its GPU."""
    with suppress(Exception):  # half-imported, or a double: the child will tell
        return bool(sys.modules["torch"].cuda.is_initialized())
    return False


def here() -> dict[str, Any]:
    """As torch_facts(), with "architectures", "library" (the version of MIOpen or cuDNN), "triton"
    and GPUs' memory."""
    facts = torch_facts()
    if "version" not in facts:
        return facts
    import torch

    from hy3d_rocm.conv.verdict_store.records import library_version

    facts.update(architectures=[], library="", triton=triton())
    # One answer less where it fails; what matters is in "error" already.
    with suppress(Exception):
        # What this build has kernels for; torch.cuda would want a GPU.
        flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
        facts["architectures"] = flags.split() if flags else []
    with suppress(Exception):
        if torch.version.hip or torch.version.cuda:
            number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
            facts["library"] = library_version(number, is_amd=bool(torch.version.hip))
    for index, found in enumerate(facts["gpus"]):
        with suppress(Exception):
            free, total = gpu_bytes(index)
            found.update(
                free_bytes=free,
                total_bytes=total,
                allocated_bytes=int(torch.cuda.memory_allocated(index)),
                reserved_bytes=int(torch.cuda.memory_reserved(index)),
            )
    return facts


def triton() -> dict[str, str]:
    """{"version", "error"} of the module that Triton's kernels need."""
    try:
        import triton
    except Exception as error:  # noqa: BLE001  (its libraries may miss anything: that is the fact)
        return {"version": "", "error": f"{type(error).__name__}: {error}"}
    return {"version": str(getattr(triton, "__version__", "unknown")), "error": ""}


def machine_facts() -> dict[str, Any]:
    """Versions, CPU, GPUs and memory. JSON-able; no host name, no user, no path."""
    facts = collect()
    kept = {key: facts[key] for key in ("versions", "torch", "driver", "rules")}
    kept["system"] = {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": facts["system"]["cpus"],
        "memory_bytes": host_total_bytes(),
    }
    kept["core"] = {key: facts["core"].get(key) for key in ("available", "cpu", "blas")}
    kept["variables"] = facts["variables"]
    found: dict[str, Any] = anonymous(plain(kept))
    return found
