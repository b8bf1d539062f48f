"""Pure-Python replacements for the compiled core, for where it cannot be imported.

`device`, `seed` and `schedule` are twins: same names, same results, same exceptions as `_core`,
and the oracles of its tests. This module has the rest of the core's surface that makes sense
without it. Only the CPU convolution has no twin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

OWN = Path(__file__).resolve().parents[1]


def built_elsewhere(folders: Sequence[str] | None = None, own: Path = OWN) -> Path | None:
    """The first other `hy3d_rocm` in these folders (default: sys.path) that has the C core:
    `python -m hy3d_rocm` in the pack's folder runs the source, whatever pip has installed."""
    for folder in sys.path if folders is None else folders:
        package = Path(folder or ".") / "hy3d_rocm"
        for ending in EXTENSION_SUFFIXES:
            if (package / f"_core{ending}").is_file() and package.resolve() != own:
                return package
    return None


def remedy() -> str:
    """What brings the C core, as the end of a sentence."""
    built = built_elsewhere()
    if built is not None:
        return (
            f"this is the source in {OWN}, and the installed package, which has it, is in {built}:"
            " start Python in another folder, or use the command hy3d-rocm"
        )
    return "run `pip install .` in the pack's folder (needs a C compiler), or install a wheel of it"


# The statuses in order, from number 1 on; include/hy3d/status.h has the list.
_STATUSES = (
    "INVALID_ARGUMENT SHAPE_MISMATCH UNSUPPORTED OVERFLOW OUT_OF_MEMORY WORKSPACE_TOO_SMALL "
    "BUDGET_TOO_SMALL CANCELLED BLAS_UNAVAILABLE THREAD"
).split()
STATUS_NAMES = {number: f"HY3D_ERR_{name}" for number, name in enumerate(_STATUSES, 1)}
INSTALL = remedy()


class Hy3dError(RuntimeError):
    """A failure that is neither a ValueError nor a MemoryError; `status` is its number."""

    def __init__(self, text: str = "", status: int = 3) -> None:
        super().__init__(text)
        self.status = status
        self.name = STATUS_NAMES.get(status, "unknown")


class CancelFlag:
    """A flag that any thread may raise and a long call looks at. Not a threading.Event: set() of a
    handler of Ctrl-C would wait for the lock of a set() that it interrupts."""

    requested = False

    def request(self) -> None:
        """Asks the calls that look at this flag to stop."""
        self.requested = True

    def reset(self) -> None:
        """Takes the request back."""
        self.requested = False


def _refusing(what: str) -> Callable[..., Any]:
    """What stands for functions that exist in C only."""

    def refuse(*args: object, **kwargs: object) -> Any:
        raise Hy3dError(f"{what} the C core, which is not there: {INSTALL}.")

    return refuse


conv3d = conv3d_format = conv3d_prepare = fingerprint = _refusing("The CPU convolution needs")
compile_schedule = graph_sizes = _refusing("Decode programs need")
# Without the C core torch takes the moments (decoding/backends).
channel_moments = _refusing("channel_moments needs")
rasterize = _refusing("The rasteriser needs")
interpolate = scatter = vertex_normals = inpaint_vertices = rasterize


def _absent(name: str, refuse: Callable[..., Any]) -> type:
    """What stands for a class that exists in C only: there is never one."""
    return type(name, (), {"__slots__": (), "__init__": refuse})


PreparedWeights, Admission = (_absent(name, conv3d) for name in ("PreparedWeights", "Admission"))
Schedule, Program = (_absent(name, compile_schedule) for name in ("Schedule", "Program"))
KnownCalls = _absent("KnownCalls", _refusing("Looking calls up needs"))


def cpu_info() -> dict[str, Any]:
    """As `_core.cpu_info`, with the level "python": no kernel of ours runs."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"level": "python", "detected": "python", "levels": (), "max_threads": threads or 1}


def blas_info() -> dict[str, Any]:
    """As `_core.blas_info`: there is none."""
    return {"available": False, "text": "", "error": f"the C core is not built: {INSTALL}"}


def trim() -> None:
    """As `_core.trim`: nothing is kept."""


def conv3d_out_size(
    in_size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    pad_before: Sequence[int], pad_after: Sequence[int],
) -> tuple[int, int, int]:  # fmt: skip
    """As `_core.conv3d_out_size`: (T, H, W) of the result."""
    axes = zip(in_size, kernel, stride, dilation, pad_before, pad_after, strict=True)
    out = tuple((i + b + a - d * (k - 1) - 1) // s + 1 for i, k, s, d, b, a in axes)
    crops = any(min(b, a) <= -i for i, b, a in zip(in_size, pad_before, pad_after, strict=True))
    if len(out) != 3 or min(out) < 1 or crops:
        raise ValueError(f"No such convolution: input {in_size} with kernel {kernel} gives {out}.")
    return out[0], out[1], out[2]
