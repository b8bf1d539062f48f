"""Processes of the CPU benches' own: torch and the C core read their environment once, on loading.

--cpu-level avx2 holds our AVX2 code against oneDNN's (HY3D_CPU and ONEDNN_MAX_CPU_ISA), bfloat16
against oneDNN without AMX, which AMD's processors don't have. So the bench starts itself anew with
these variables where they are not set yet. A child is given a job: {"run": "module:function", ...}
is that function's argument.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.conv.probe.process import interpreter

_CORE_TYPES = {"ref": "Prescott", "avx2": "Haswell"}  # OpenBLAS's words
# The host's search path first: PYTHONPATH is not read by an embedded Python.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tools.dev.bench.children import main; sys.exit(main(sys.argv[2]))"
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


def named(function: Callable[..., Any]) -> str:
    """How a job names what is to be run: "module:function"."""
    return f"{function.__module__}:{function.__name__}"


def started_anew(
    command: Callable[[argparse.Namespace], int],
    arguments: argparse.Namespace,
    say: Callable[[str], None],
) -> int | None:
    """The exit code of `command`, a module's function, in a child that has the variables which its
    --dtype and --cpu-level need; None where this process has them."""
    options = vars(arguments)
    variables = needed_variables(options.get("dtype", "float32"), arguments.cpu_level)
    if is_set(variables):
        return None
    say("started anew with " + " ".join(f"{name}={value}" for name, value in variables.items()))
    paths = [name for name, value in options.items() if isinstance(value, Path)]
    job = {"run": named(run_again), "command": named(command), "paths": paths,
           "options": {**options, **{name: str(options[name]) for name in paths}}}  # fmt: skip
    return start(job, variables, is_quiet=False)[0]


def run_again(job: dict[str, Any]) -> int:
    """In the child of started_anew."""
    options = {**job["options"], **{name: Path(job["options"][name]) for name in job["paths"]}}
    code: int = _function(job["command"])(argparse.Namespace(**options))
    return code


def _function(name: str) -> Any:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def main(text: str) -> int:
    """The child's side: one job. Its result is its exit code, or a dictionary that is printed."""
    job = json.loads(text)
    found = _function(job["run"])(job)
    if isinstance(found, int):
        return found
    sys.stdout.write(json.dumps(found) + "\n")
    return 0
