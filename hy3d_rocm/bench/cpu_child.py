"""Children of the CPU benches: torch and the C core read their environment once, when they load.

--cpu-level avx2 holds our AVX2 code against oneDNN's (HY3D_CPU and ONEDNN_MAX_CPU_ISA), bfloat16
against oneDNN without AMX, which AMD's processors don't have. So the bench starts itself anew with
these variables where they are not set yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from hy3d_rocm.bench.models import BenchError
from hy3d_rocm.conv.probe.process import interpreter

LEVELS = ("ref", "avx2", "avx512")
_CORE_TYPES = {"ref": "Prescott", "avx2": "Haswell"}  # OpenBLAS's words
# The host's search path first: PYTHONPATH is not read by an embedded Python.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from hy3d_rocm.bench.cpu_jobs import main; sys.exit(main(sys.argv[2]))"
)


def needed_variables(
    dtype: str, level: str | None, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What has to be in the environment; a ONEDNN_MAX_CPU_ISA that the user has set stays.

    level: None takes HY3D_CPU. BLAS is held to the level too (docs/tuning.md).
    """
    there = os.environ if environment is None else environment
    level = level or there.get("HY3D_CPU") or None
    wanted = {} if level is None else {"HY3D_CPU": level}
    core = _CORE_TYPES.get(level or "")
    if core:
        wanted["OPENBLAS_CORETYPE"] = there.get("OPENBLAS_CORETYPE") or core
    cap = ""
    if level == "avx2":
        cap = "AVX2"
        wanted["ATEN_CPU_CAPABILITY"] = there.get("ATEN_CPU_CAPABILITY") or "avx2"
    elif dtype not in ("float32", "float64"):
        cap = "AVX512_CORE_BF16"
    if cap:
        wanted["ONEDNN_MAX_CPU_ISA"] = there.get("ONEDNN_MAX_CPU_ISA") or cap
    return wanted


def is_set(variables: Mapping[str, str]) -> bool:
    """Whether this process has them all."""
    return all(os.environ.get(name) == value for name, value in variables.items())


def start(job: dict[str, Any], variables: Mapping[str, str], is_quiet: bool) -> tuple[int, str]:
    """Runs a job in a child with `variables`: (exit code, its output where is_quiet). Ctrl-C
    reaches the child too, which then ends with the figures so far; the parent waits for it."""
    python, why = interpreter()
    if python is None:
        raise BenchError(f"this bench needs a process of its own: {why}")
    command = [python, "-c", _START, json.dumps(sys.path), json.dumps(job)]
    pipe = subprocess.PIPE if is_quiet else None
    sys.stdout.flush()
    with subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=pipe, text=True
    ) as child:
        while True:
            try:
                output, _ = child.communicate()
                break
            except KeyboardInterrupt:
                if is_quiet:
                    child.kill()
                    raise
    return child.returncode, output or ""


def run_quietly(job: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The JSON that a job prints last; BenchError where it failed (its words are on stderr)."""
    code, output = start(job, variables, is_quiet=True)
    lines = output.strip().splitlines()
    if code != 0 or not lines:
        raise BenchError(f"the process that measures memory ended with code {code}; see above")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
