"""How a child is started: which interpreter, with which options, environment and search path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.probe.cases import Case

CHILD = Path(__file__).resolve().with_name("child.py")
# Set in the child: what runs there must not start children of its own.
INSIDE = "HY3D_ROCM_PROBE_CHILD"

# The process-wide switches that decide what PyTorch asks of the vendor library: torch._C._get_* and
# _set_*, since torch.backends warns or refuses where the newer fp32_precision was used.
FLAGS = (
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_allow_tf32",
    "cublas_allow_tf32",
    "miopen_immediate",
)

# python, python3.12, python3.13t, python.exe, pythonw.exe, python_d.exe, pypy3
_PYTHON_NAME = re.compile(r"(?:python|pypy)[\d.]*t?(?:w|_d)?(?:\.exe)?", re.IGNORECASE)


def interpreter(python: str | os.PathLike[str] | None = None) -> tuple[str | None, str]:
    """(path of the Python to start, "") or (None, the sentence why there is none).

    `python` is the caller's own choice. Else it is this process's interpreter. A program that
    embeds Python, or is frozen, has itself as sys.executable: starting that would start the
    program a second time, so anything whose file is not named like a Python is refused.
    """
    if python is not None:
        path = os.fspath(python)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path, ""
        return None, f"python={path!r} is not a program that can be started"
    if getattr(sys, "frozen", False):
        return None, "this program is frozen and has no Python interpreter to start a probe with"
    path = sys.executable
    if sys.platform == "win32":
        # A venv's python.exe only starts the real one, which would be outside the Job for a
        # moment. The search path is handed over anyway.
        path = getattr(sys, "_base_executable", None) or path
    if not path:
        return None, "sys.executable is empty: this Python is embedded; pass python=PATH"
    if not _PYTHON_NAME.fullmatch(os.path.basename(path)):
        return (
            None,
            f"sys.executable is {path!r}, which is not named like a Python; pass python=PATH",
        )
    if not os.path.isfile(path):
        return None, f"sys.executable is {path!r}, which does not exist; pass python=PATH"
    return path, ""


def command(python: str) -> list[str]:
    """-I: no PYTHON* variables, no user site, nothing but the standard library on the path until
    the host's own sys.path arrives. -B: nothing is written where folders may be read-only."""
    return [python, "-I", "-B", str(CHILD)]


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The host's own (MIOPEN_*, HIP_VISIBLE_DEVICES, HSA_*, cache folders), marked as a child's."""
    result = dict(os.environ if base is None else base)
    result[INSIDE] = "1"
    return result


def search_path(path: Sequence[object] | None = None) -> list[str]:
    """The host's sys.path for the child: absolute, strings only."""
    entries = sys.path if path is None else path
    return [os.path.abspath(entry) for entry in entries if isinstance(entry, str)]


def header(cases: Sequence[Case], nonce: str, keeper: bool) -> dict[str, Any]:
    """The first line that the child reads."""
    return {
        "nonce": nonce,
        "keeper": keeper,
        "version": list(sys.version_info[:2]),
        "path": search_path(),
        "devices": sorted({str(case.spec.device) for case in cases}),
        "flags": _flags(),
    }


def _flags() -> dict[str, bool]:
    """PyTorch's switches as the host has set them; {} where the host has not loaded torch."""
    torch = sys.modules.get("torch")
    found: dict[str, bool] = {}
    for name in FLAGS if torch is not None else ():
        try:
            found[name] = bool(getattr(torch._C, f"_get_{name}")())  # type: ignore[union-attr]
        except (AttributeError, RuntimeError):
            continue  # not in this version, or set through an interface that this one can't read
    return found
