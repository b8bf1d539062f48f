"""How far a failure reaches: this call, this shape for good, or a tier as a whole.

A passing fault of the machine (a full disk, a BLAS library that could not start, a compiler that is
not there) says nothing about a shape: it must not keep a tier away in every later process.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Hashable

from hy3d_rocm.conv.errors import Classified, Kind, classify_text, first_line, rules
from hy3d_rocm.conv.verdicts import VERDICTS

# The tiers that a fault without a shape switches off as a whole. What a library of convolutions
# says (vendor, conv2d, current) hangs on the shape too often.
BREAKABLE = frozenset({"triton", "gemm", "native"})

_COMPILE_ERRORS = frozenset({"CompilationError", "OutOfResources", "PTXASError"})
_COMPILE_TEXT = re.compile(
    r"PassManager::run failed|failed to translate module|out of resource: |LLVM ERROR"
)
_NO_COMPILER = re.compile(r"Failed to find C compiler|ld\.lld.*not found", re.IGNORECASE)
_FATAL = frozenset(rule.reason for rule in rules() if rule.kind is Kind.DEVICE_LOST)
_OF_A_SHAPE = re.compile(r"MIOpen|CUDNN|size of the kernel's grid", re.IGNORECASE)


def is_compile_error(error: BaseException) -> bool:
    """Whether a compiler has refused the kernel itself: that is so in the next process too."""
    of_triton = [c for c in type(error).__mro__ if c.__module__.partition(".")[0] == "triton"]
    if any(c.__name__ in _COMPILE_ERRORS for c in of_triton):
        return True
    return isinstance(error, RuntimeError) and bool(_COMPILE_TEXT.search(str(error)))


def is_lasting(found: Classified, error: BaseException) -> bool:
    """Whether the next process would meet the same: the verdict store may keep it for the shape."""
    if found.kind in (Kind.WRONG_RESULT, Kind.NO_ALGORITHM, Kind.DEVICE_LOST):
        return True
    return found.kind is Kind.BACKEND and is_compile_error(error)


def is_fatal(detail: str) -> bool:
    """Whether a record's text says that the device did not survive the call."""
    found = classify_text(detail)
    return detail in _FATAL or (found is not None and found.kind is Kind.DEVICE_LOST)


def _breaks_at_once(error: BaseException) -> bool:
    """Whether no shape can do better: a module is missing, or the compiler can't be run."""
    if isinstance(error, ImportError | subprocess.SubprocessError):
        return True
    if isinstance(error, FileNotFoundError | PermissionError):
        return True  # of a program: gcc, ld.lld
    return bool(_NO_COMPILER.search(str(error)))


def _symptom(found: Classified, error: BaseException) -> str | None:
    """What two shapes have in common if the tier as a whole is broken, or None where the failure
    may be the shape's. Numbers (sizes, addresses) do not count."""
    if found.kind is not Kind.BACKEND or is_compile_error(error):
        return None
    text = f"{type(error).__name__}: {first_line(error)}"
    if _OF_A_SHAPE.search(text) or _OF_A_SHAPE.search(found.reason):
        return None
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def breaks_tier(tier: str, config: Hashable, found: Classified, error: BaseException) -> bool:
    """Whether this failure makes the process give the tier up as a whole; notes it."""
    shared = _symptom(found, error) if tier in BREAKABLE else None
    if shared is None:
        return False
    elsewhere = VERDICTS.is_seen_elsewhere(tier, shared, config)
    if not elsewhere and not _breaks_at_once(error):
        return False
    return VERDICTS.break_tier(tier, found.reason)
