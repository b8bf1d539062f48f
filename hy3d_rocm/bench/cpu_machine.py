"""Which processor, level, threads and libraries a CPU bench ran with."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

VARIABLES = ("HY3D_CPU", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY",
             "HY3D_WEIGHT_CACHE_MB")  # fmt: skip


def machine(threads: int) -> dict[str, Any]:
    """JSON-able; no host name, no path."""
    from hy3d_rocm import __version__, _native

    info = _native.cpu_info()
    version = re.search(r"(?:oneDNN|MKL-DNN) v([\d.]+)", torch.__config__.show())
    return {
        "cpu": cpu_model(), "level": info["level"], "detected": info["detected"],
        "cpus": info["max_threads"], "threads": threads, "torch": torch.__version__,
        "onednn": version[1] if version else "none", "hy3d_rocm": __version__,
        "variables": {k: os.environ[k] for k in VARIABLES if os.environ.get(k)},
    }  # fmt: skip


def machine_lines(threads: int) -> list[str]:
    """The same for people."""
    facts = machine(threads)
    lines = [
        f"{facts['cpu']}, level {facts['level']} (the best here: {facts['detected']}), "
        f"{threads} of {facts['cpus']} threads",
        f"hy3d_rocm {facts['hy3d_rocm']}, torch {facts['torch']} with oneDNN {facts['onednn']}",
    ]
    if facts["variables"]:
        lines.append("with " + ", ".join(f"{k}={v}" for k, v in facts["variables"].items()))
    if facts["level"] != facts["detected"] and "ONEDNN_MAX_CPU_ISA" not in facts["variables"]:
        lines.append("torch is not held to that level: it may use all that the processor has")
    return lines


def cpu_model() -> str:
    """As /proc/cpuinfo has it ("AMD Ryzen 9 7950X 16-Core Processor"), else the platform."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
