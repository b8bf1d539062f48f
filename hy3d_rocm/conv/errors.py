"""What an exception of a convolution means, read from its real text.

One table of rules, first match wins. The module works without torch, so that log files can be
diagnosed with the same table. An exception that no rule knows is nobody's business here: it
passes through the router unchanged (a shape error looks exactly as without hy3d_rocm).
"""

from __future__ import annotations

import contextlib
import enum
import re
import sys
from dataclasses import dataclass


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
    """One known text. `source` is where it was seen, `reason` completes "conv3d ...: "."""

    pattern: str
    kind: Kind
    reason: str
    source: str
    note: str = ""
    flags: int = 0

    def search(self, text: str) -> bool:
        return re.search(self.pattern, text, self.flags) is not None


@dataclass(frozen=True)
class Classified:
    """The kind of an error, why in a few words, and the rule that decided if its text did."""

    kind: Kind
    reason: str
    rule: Rule | None = None


_PYTORCH = "https://github.com/pytorch/pytorch/blob/v2.9.0/"
_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_COMFY = "https://github.com/Comfy-Org/ComfyUI/issues/"
_MIOPEN_H = "https://github.com/ROCm/MIOpen/blob/develop/include/miopen/miopen.h"

# Out of memory comes first: AcceleratorError carries it too, and a lost device would match below.
_OUT_OF_MEMORY = (
    Rule(
        r"\b(?:HIP|CUDA|XPU|MPS(?: backend)?) out of memory\b",
        Kind.OUT_OF_MEMORY,
        "the GPU is out of memory",
        _THEROCK + "2844",
        "torch.OutOfMemoryError of the caching allocator: 'HIP out of memory. Tried to allocate"
        " 8.54 GiB. GPU 0 has a total capacity of 15.92 GiB of which 0 bytes is free.'",
    ),
    Rule(
        r"\b(?:HIP|CUDA) error: out of memory\b|\b(?:hip|cuda)ErrorOutOfMemory\b"
        r"|\bcudaErrorMemoryAllocation\b",
        Kind.OUT_OF_MEMORY,
        "the GPU runtime is out of memory",
        _PYTORCH + "c10/cuda/CUDAException.cpp",
        "torch.AcceleratorError with error_code 2, or a RuntimeError before torch 2.8",
    ),
    Rule(
        r"Triton Error \[\w+\]:.*out of memory",
        Kind.OUT_OF_MEMORY,
        "the GPU is out of memory",
        "https://github.com/triton-lang/triton/blob/main/third_party/amd/backend/driver.c",
        "'Triton Error [HIP]:  Code: 2, Messsage: out of memory'",
    ),
    Rule(
        r"BlockAllocator::alloc failed",
        Kind.OUT_OF_MEMORY,
        "the HSA runtime has no GPU memory left",
        "specification 003: 'HSA exception: MemoryRegion::BlockAllocator::alloc failed'",
        "memory is really gone or held by another process; not fragmentation. Where the HSA"
        " runtime ends the process instead of throwing, nothing in the process can see it",
    ),
    Rule(
        r"miopenStatusAllocFailed|MIOpen Error: .*Memory not available to allocate buffer",
        Kind.OUT_OF_MEMORY,
        "MIOpen could not allocate its workspace",
        "https://github.com/ROCm/MIOpen/issues/47",
    ),
    Rule(
        r"\b(?:CUBLAS|HIPBLAS|ROCBLAS|CUDNN)_STATUS_ALLOC_FAILED\b",
        Kind.OUT_OF_MEMORY,
        "the BLAS library could not allocate its workspace",
        _PYTORCH + "aten/src/ATen/cuda/Exceptions.h",
    ),
    Rule(
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        Kind.OUT_OF_MEMORY,
        "the host is out of memory",
        _PYTORCH + "c10/core/impl/alloc_cpu.cpp",
        "a plain RuntimeError; 'not enough memory' is the Windows text",
    ),
)

# A launch that the runtime refused before it started: the device is as it was.
_LAUNCH_REFUSED = (
    Rule(
        r"\b(?:HIP|CUDA) error: invalid configuration argument"
        r"|\b(?:hip|cuda)ErrorInvalidConfiguration\b",
        Kind.BACKEND,
        "the GPU runtime refused the size of the kernel's grid",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "seen with tensors beyond 2^31 elements",
    ),
)

_DEVICE_LOST = (
    Rule(
        r"illegal memory access|\b(?:hip|cuda)ErrorIllegalAddress\b",
        Kind.DEVICE_LOST,
        "a GPU kernel accessed memory that is not its own",
        "https://github.com/ROCm/legacy-rocm-build/issues/5742",
        "'HIP error: an illegal memory access was encountered'; often raised by a later call",
    ),
    Rule(
        r"device-side assert triggered|\b(?:hip|cuda)ErrorAssert\b",
        Kind.DEVICE_LOST,
        "an assertion failed inside a GPU kernel",
        _PYTORCH + "c10/cuda/CUDADeviceAssertionHost.cpp",
    ),
    Rule(
        r"unspecified launch failure|\b(?:hip|cuda)ErrorLaunchFailure\b"
        r"|\b(?:hip|cuda)ErrorLaunchTimeOut\b|the launch timed out and was terminated",
        Kind.DEVICE_LOST,
        "a GPU kernel crashed or was ended by the driver's watchdog",
        "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
    ),
    Rule(
        r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION)"
        r"|Memory access fault by GPU node",
        Kind.DEVICE_LOST,
        "the HSA queue stopped with an error",
        "https://github.com/ROCm/legacy-rocm-build/issues/5405",
        "'Memory access fault by GPU node-1 ... Reason: Page not present or supervisor privilege.';"
        " it mostly ends the process, so it is for log files",
    ),
    Rule(
        r"\b(?:HIP|CUDA) error: ",
        Kind.DEVICE_LOST,
        "the GPU runtime reported an error that is not about memory",
        _PYTORCH + "c10/cuda/CUDAException.cpp",
        "'invalid device function', 'no kernel image' and the like: no tier on this device can"
        " do better, and the runtime may keep returning the error",
    ),
)

_DEVICE_MISMATCH = (
    Rule(
        r"Expected all tensors to be on the same device",
        Kind.DEVICE_MISMATCH,
        "its tensors are on different devices",
        "https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/14097",
        "'... but found at least two devices, cpu and cuda:0! (when checking argument for argument"
        " weight in method wrapper_CUDA___slow_conv2d_forward)'; newer: 'but got weight is on"
        " cuda:0, different from other tensors on cpu'",
    ),
    Rule(
        # One of the two type names has a "cuda" in it and the other has none; both with or both
        # without is a dtype mismatch, which is not for us.
        r"Input type \((?:"
        r"[^)]*cuda[^)]*\) and (?:weight|bias) type \((?![^)]*cuda)[^)]*"
        r"|(?![^)]*cuda)[^)]*\) and (?:weight|bias) type \([^)]*cuda[^)]*"
        r")\) should be the same",
        Kind.DEVICE_MISMATCH,
        "its tensors are on different devices",
        "specification 001: 'Input type (torch.FloatTensor) and weight type "
        "(torch.cuda.FloatTensor) should be the same'",
        flags=re.IGNORECASE,
    ),
)

_NO_ALGORITHM = (
    Rule(
        r"No suitable algorithm was found to execute the required convolution",
        Kind.NO_ALGORITHM,
        "MIOpen found no suitable algorithm",
        _THEROCK + "724",
        "MIOpen prints it ('convolutionocl.cpp:275'); the exception says miopenStatusUnknownError",
    ),
    Rule(
        r"miopenStatusUnknownError",
        Kind.NO_ALGORITHM,
        "MIOpen found no suitable algorithm (miopenStatusUnknownError)",
        _THEROCK + "749",
        "what reaches Python after 'No suitable algorithm was found'",
    ),
    Rule(
        r"(?:GET|FIND) was unable to find an engine to execute this computation",
        Kind.NO_ALGORITHM,
        "the back-end found no engine",
        _COMFY + "10075",
        "cuDNN's frontend, also under ZLUDA",
    ),
    Rule(
        r"Unable to find a (?:valid cuDNN|suitable) algorithm",
        Kind.NO_ALGORITHM,
        "the back-end found no suitable algorithm",
        "https://github.com/ROCm/MIOpen/issues/87",
    ),
)

_BACKEND = (
    Rule(
        r"miopenStatus(?:NotInitialized|InvalidValue|BadParm|InternalError|NotImplemented"
        r"|UnsupportedOp|GpuOperationsSkipped|VersionMismatch)",
        Kind.BACKEND,
        "MIOpen failed",
        _MIOPEN_H,
        "the rest of miopenStatus_t; miopenStatusInternalError was seen in"
        " https://github.com/vladmandic/sdnext/issues/4803",
    ),
    Rule(
        r"MIOpen Error\b|\bmiopenStatus\w+",
        Kind.BACKEND,
        "MIOpen failed",
        "https://github.com/ROCm/MIOpen/issues/3726",
        "any other text of MIOpen, such as 'Forward Convolution cannot be executed due to"
        " incorrect params'",
    ),
    Rule(
        r"cuDNN error: CUDNN_STATUS_|\bCUDNN_STATUS_\w+",
        Kind.BACKEND,
        "cuDNN failed",
        _PYTORCH + "aten/src/ATen/cuda/Exceptions.h",
    ),
    Rule(
        r"CUDA error: (?:CUBLAS|HIPBLAS)_STATUS_|\b(?:CUBLAS|HIPBLAS|ROCBLAS)_STATUS_\w+",
        Kind.BACKEND,
        "the BLAS library failed",
        _PYTORCH + "aten/src/ATen/cuda/Exceptions.h",
    ),
    Rule(
        r"could not create a primitive|could not execute a primitive",
        Kind.BACKEND,
        "oneDNN failed",
        "https://github.com/uxlfoundation/oneDNN/blob/main/include/oneapi/dnnl/dnnl.hpp",
    ),
    Rule(
        r"not implemented for '\w+'|Could not run 'aten::"
        r"|is not (?:supported|implemented) (?:on|for)",
        Kind.UNSUPPORTED,
        "the operator does not exist for this device and dtype",
        _PYTORCH + "aten/src/ATen/Dispatch.h",
    ),
)

# In the order in which they are asked.
RULES: tuple[Rule, ...] = (
    *_OUT_OF_MEMORY,
    # BLAS texts start with "CUDA error: CUBLAS_", so they are asked before the lost device.
    _BACKEND[3],
    *_LAUNCH_REFUSED,
    *_DEVICE_LOST,
    *_DEVICE_MISMATCH,
    *_NO_ALGORITHM,
    *_BACKEND,
)

_TORCH_MEMORY = Classified(Kind.OUT_OF_MEMORY, "the device is out of memory")
_TORCH_LOST = Classified(
    Kind.DEVICE_LOST, "the accelerator reported an error that is not about memory"
)


def classify_text(text: str) -> Classified | None:
    """The first rule that knows this text (an exception's, or a line of a log), or None."""
    for rule in RULES:
        if rule.search(text):
            return Classified(rule.kind, rule.reason, rule)
    return None


def _is_torch(error: BaseException, name: str) -> bool:
    known = getattr(sys.modules.get("torch"), name, None)
    return isinstance(known, type) and isinstance(error, known)


def classify(error: BaseException) -> Classified | None:
    """What `error` means, or None where it has to pass through unchanged.

    Only RuntimeError (torch's own errors are that) and MemoryError are looked at: a cancel, a
    KeyboardInterrupt, a TypeError or a ValueError never is a back-end's failure.
    """
    if isinstance(error, MemoryError):
        return Classified(Kind.OUT_OF_MEMORY, "the host is out of memory")
    if not isinstance(error, RuntimeError):
        return None
    if isinstance(error, DeviceMismatchError | DeviceLostError):
        return None  # already said, by an inner scope
    if isinstance(error, BadResultError):
        return Classified(Kind.WRONG_RESULT, str(error))
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


def classify_own(error: Exception) -> Classified | None:
    """What an exception of a tier of ours means: it is that tier's failure, so another one has to
    do the call. None for a cancel."""
    if is_cancel(error):
        return None
    found = classify(error)
    if found is not None or isinstance(error, DeviceMismatchError | DeviceLostError):
        return found
    return Classified(Kind.BACKEND, described(error))


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


def is_lasting(found: Classified, error: BaseException) -> bool:
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
