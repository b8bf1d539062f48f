"""What an exception of a convolution means, read from its real text.

The rules are in errors.toml, first match wins. The module works without torch, so that what a child
process has written can be read with the same rules. An exception that no rule knows is nobody's
business here: it passes through the router unchanged (a shape error looks exactly as without
hy3d_rocm).
"""

from __future__ import annotations

import contextlib
import enum
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hy3d_rocm.diagnose import tables


class Kind(enum.Enum):
    """What the router does about an error; the value is the word used in statistics."""

    NO_ALGORITHM = "no algorithm"  # remembered for the process, next tier
    BACKEND = "back-end failure"  # remembered for the process, next tier
    OUT_OF_MEMORY = "out of memory"  # allocator emptied, next tier, remembered for the scope
    WRONG_RESULT = "wrong result"  # remembered for good, next tier
    UNSUPPORTED = "unsupported"  # counts only below the first tier: next tier
    DEVICE_MISMATCH = "device mismatch"  # the caller's mistake: raised with a sentence
    DEVICE_LOST = "device lost"  # nothing on the device works any more: raised with a sentence


RETRIED = frozenset(set(Kind) - {Kind.DEVICE_MISMATCH, Kind.DEVICE_LOST})


class DeviceMismatchError(RuntimeError):
    """Input, weight or bias lie on different devices. Says which, and what to do."""


class DeviceLostError(RuntimeError):
    """The accelerator reported an error that only a new process recovers from.

    ``error_code`` is that of torch.AcceleratorError, or None.
    """

    error_code: int | None = None


class BadResultError(RuntimeError):
    """A tier returned a tensor of the wrong shape, dtype or device, wrong values, or NaN for finite
    input."""


@dataclass(frozen=True)
class Rule:
    """What an error means and why, in a few words: a known text, as errors.toml has it, or, without
    patterns, what the error's type says."""

    kind: Kind
    reason: str
    patterns: tuple[str, ...] = ()
    source: str = ""
    note: str = ""

    @functools.cached_property
    def text(self) -> re.Pattern[str]:
        """Finds any of the patterns."""
        return tables.any_of(self.patterns, flags=0)


# In the order in which they are asked.
_, RULES = tables.read(Path(__file__).with_suffix(".toml"), Rule, makers={"kind": Kind})

_TORCH_MEMORY = Rule(Kind.OUT_OF_MEMORY, "the device is out of memory")
_TORCH_LOST = Rule(Kind.DEVICE_LOST, "the accelerator reported an error that is not about memory")


def classify_text(text: str) -> Rule | None:
    """The first rule that knows this text (an exception's, or a line of a log), or None."""
    return next((rule for rule in RULES if rule.text.search(text)), None)


def _is_torch(error: BaseException, name: str) -> bool:
    known = getattr(sys.modules.get("torch"), name, None)
    return isinstance(known, type) and isinstance(error, known)


def classify(error: BaseException) -> Rule | None:
    """What `error` means, or None where it has to pass through unchanged.

    Only RuntimeError (torch's own errors are that) and MemoryError are looked at: a cancel, a
    KeyboardInterrupt, a TypeError or a ValueError never is a back-end's failure.
    """
    if isinstance(error, MemoryError):
        return Rule(Kind.OUT_OF_MEMORY, "the host is out of memory")
    if not isinstance(error, RuntimeError):
        return None
    if isinstance(error, DeviceMismatchError | DeviceLostError):
        return None  # already said, by an inner scope
    if isinstance(error, BadResultError):
        return Rule(Kind.WRONG_RESULT, str(error))
    found = classify_text(str(error))
    if found is not None and found.kind is Kind.OUT_OF_MEMORY:
        return found
    if _is_torch(error, "OutOfMemoryError"):
        return _TORCH_MEMORY
    if found is None and _is_torch(error, "AcceleratorError"):
        # error_code 2 is hipErrorOutOfMemory and cudaErrorMemoryAllocation.
        return _TORCH_MEMORY if getattr(error, "error_code", None) == 2 else _TORCH_LOST
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """By type (torch's, Python's) or by the texts that drivers and allocators write."""
    found = classify(error)
    return found is not None and found.kind is Kind.OUT_OF_MEMORY


def classify_own(error: Exception) -> Rule | None:
    """What an exception of a tier of ours means: it is that tier's failure, so another one has to
    do the call. None for a cancel."""
    if is_cancel(error):
        return None
    found = classify(error)
    if found is not None or isinstance(error, DeviceMismatchError | DeviceLostError):
        return found
    return Rule(Kind.BACKEND, described(error))


def mismatch_error(what: str, places: str, original: BaseException) -> DeviceMismatchError:
    """`what` is the call ("conv3d 1x4x..."), `places` says which tensor is where."""
    return DeviceMismatchError(
        f"{what}: its tensors are on different devices ({places}). Move the input to the device"
        " of the module that runs; under enable_model_cpu_offload() that is the pipeline's"
        " execution device (hy3d_rocm.resolve_device tells it, hy3d_rocm.PipelineProxy moves"
        f" inputs there). PyTorch said: {first_line(original)}"
    )


def lost_error(what: str, reason: str, original: BaseException) -> DeviceLostError:
    """The sentence for an error after which the device gives only errors."""
    error = DeviceLostError(
        f"{what}: {reason}. The process can't use this GPU any more, so nothing was retried:"
        " restart ComfyUI (or the Python process). If it comes back at the same place, run once"
        " with AMD_SERIALIZE_KERNEL=3 (ROCm) or CUDA_LAUNCH_BLOCKING=1 to see the kernel that"
        f" failed. PyTorch said: {first_line(original)}"
    )
    error.error_code = getattr(original, "error_code", None)
    return error


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of an exception's text, at most so many characters, or its type's name."""
    lines = str(error).strip().splitlines()
    return lines[0][:most] if lines else type(error).__name__


def described(error: BaseException, most: int = 200) -> str:
    """'ValueError: its text', in one line; the type alone where there is none."""
    kind, line = type(error).__name__, first_line(error, most)
    return line if line == kind else f"{kind}: {line}"


def is_lost(error: BaseException) -> bool:
    """Whether the device is gone."""
    found = classify(error)
    lost = found is not None and found.kind is Kind.DEVICE_LOST
    return lost or isinstance(error, DeviceLostError)


# How far a failure reaches. A passing fault of the machine (a full disk, a BLAS library that could
# not start, a compiler that is not there) says nothing about a shape.

_COMPILE_ERRORS = frozenset({"CompilationError", "OutOfResources", "PTXASError"})
_COMPILE_TEXT = re.compile(
    r"PassManager::run failed|failed to translate module|out of resource: |LLVM ERROR"
)
_FATAL = frozenset(rule.reason for rule in RULES if rule.kind is Kind.DEVICE_LOST)


def is_compile_error(error: BaseException) -> bool:
    """Whether a compiler has refused the kernel itself: that is so in the next process too."""
    of_triton = [c for c in type(error).__mro__ if c.__module__.partition(".")[0] == "triton"]
    if any(c.__name__ in _COMPILE_ERRORS for c in of_triton):
        return True
    return isinstance(error, RuntimeError) and bool(_COMPILE_TEXT.search(str(error)))


def is_lasting(found: Rule, error: BaseException) -> bool:
    """Whether the next process would meet the same: the verdict store may keep it for the shape."""
    if found.kind in (Kind.WRONG_RESULT, Kind.NO_ALGORITHM, Kind.DEVICE_LOST):
        return True
    return found.kind is Kind.BACKEND and is_compile_error(error)


def is_fatal(detail: str) -> bool:
    """Whether a record's text says that the device did not survive the call."""
    found = classify_text(detail)
    return detail in _FATAL or (found is not None and found.kind is Kind.DEVICE_LOST)


# What belongs to the caller: cancels, and what a caller's own function has raised.

_MARK = "_hy3d_rocm_callers"
# ComfyUI's InterruptProcessingException is an Exception up to 0.3 and a BaseException later.
# The words are those of concurrent.futures, asyncio and most hosts.
_CANCEL_WORDS = ("interrupt", "cancel")


def mark_as_callers(error: BaseException) -> None:
    """Notes that a function of the caller (a listener) has raised it."""
    with contextlib.suppress(AttributeError, TypeError):  # a class with __slots__
        setattr(error, _MARK, True)


def is_cancel(error: BaseException) -> bool:
    """Whether no tier is to blame, and the caller has to see it unchanged."""
    if not isinstance(error, Exception) or getattr(error, _MARK, False):
        return True
    if type(error).__name__ == "Hy3dError":  # of our C core: cancelled by protect(cancel=)
        return "cancel" in str(error).lower()
    names = (c.__name__.lower() for c in type(error).__mro__ if c.__module__ != "builtins")
    return any(word in name for name in names for word in _CANCEL_WORDS)
