"""The rule table: each real text has its kind, and nothing else is touched."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from hy3d_rocm.conv import errors, faults
from hy3d_rocm.conv.errors import Kind, classify, classify_text

# What users saw, and what it is. Every rule of the table is the first to know one of these.
SEEN = [
    (faults.HIP_OOM, Kind.OUT_OF_MEMORY),
    (faults.CUDA_OOM, Kind.OUT_OF_MEMORY),
    ("CUDA error: out of memory", Kind.OUT_OF_MEMORY),
    ("HIP error: out of memory\nSearch for `hipErrorOutOfMemory'", Kind.OUT_OF_MEMORY),
    ("Triton Error [HIP]:  Code: 2, Messsage: out of memory", Kind.OUT_OF_MEMORY),
    (faults.BLOCK_ALLOCATOR, Kind.OUT_OF_MEMORY),
    ("miopenStatusAllocFailed", Kind.OUT_OF_MEMORY),
    (
        "MIOpen Error: handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
        Kind.OUT_OF_MEMORY,
    ),
    (
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        Kind.OUT_OF_MEMORY,
    ),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", Kind.OUT_OF_MEMORY),
    (faults.CPU_OOM, Kind.OUT_OF_MEMORY),
    ("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes.", Kind.OUT_OF_MEMORY),
    (faults.ILLEGAL_ACCESS, Kind.DEVICE_LOST),
    (faults.DEVICE_ASSERT, Kind.DEVICE_LOST),
    ("CUDA error: unspecified launch failure", Kind.DEVICE_LOST),
    ("HIP error: the launch timed out and was terminated", Kind.DEVICE_LOST),
    ("HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted", Kind.DEVICE_LOST),
    ("HIP error: invalid device function", Kind.DEVICE_LOST),
    ("CUDA error: invalid configuration argument", Kind.BACKEND),
    ("HIP error: invalid argument", Kind.BACKEND),
    ("CUDA error: invalid argument\nSearch for `hipErrorInvalidValue' in https://x", Kind.BACKEND),
    ("CUDA error: no kernel image is available for execution on the device", Kind.DEVICE_LOST),
    (faults.DEVICE_MISMATCH, Kind.DEVICE_MISMATCH),
    (
        "Expected all tensors to be on the same device, but found at least two devices, cpu and"
        " cuda:0!",
        Kind.DEVICE_MISMATCH,
    ),
    (faults.TYPE_MISMATCH, Kind.DEVICE_MISMATCH),
    (
        "Input type (torch.cuda.HalfTensor) and weight type (torch.HalfTensor) should be the same",
        Kind.DEVICE_MISMATCH,
    ),
    (
        "Input type (CUDABFloat16Type) and bias type (CPUBFloat16Type) should be the same",
        Kind.DEVICE_MISMATCH,
    ),
    (faults.MIOPEN_NO_ALGORITHM, Kind.NO_ALGORITHM),
    (
        "MIOpen Error: D:/jam/TheRock/ml-libs/MIOpen/src/ocl/convolutionocl.cpp:275: No suitable"
        " algorithm was found to execute the required convolution",
        Kind.NO_ALGORITHM,
    ),
    (faults.MIOPEN_UNKNOWN, Kind.NO_ALGORITHM),
    (faults.NO_ENGINE, Kind.NO_ALGORITHM),
    (faults.NO_ENGINE.replace("GET", "FIND"), Kind.NO_ALGORITHM),
    ("Unable to find a suitable algorithm for doing forward convolution", Kind.NO_ALGORITHM),
    (faults.MIOPEN_INTERNAL, Kind.BACKEND),
    ("MIOpen Error: convolutionocl.cpp:790: Forward Convolution cannot be executed", Kind.BACKEND),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Kind.BACKEND),
    ("CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasSgemm`", Kind.BACKEND),
    ("could not create a primitive descriptor for a convolution", Kind.BACKEND),
    ("Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output)", Kind.BACKEND),
    (
        "upsample_nearest3d only supports output tensors with less than INT_MAX elements, but got",
        Kind.BACKEND,
    ),
    ("\"slow_conv_dilated<>\" not implemented for 'Half'", Kind.UNSUPPORTED),
    (
        "Could not run 'aten::slow_conv3d_forward' with arguments from the 'CUDA' backend.",
        Kind.UNSUPPORTED,
    ),
]
MIOPEN_STATUS = [
    "NotInitialized", "InvalidValue", "BadParm", "AllocFailed", "InternalError", "NotImplemented",
    "UnknownError", "UnsupportedOp", "GpuOperationsSkipped", "VersionMismatch",
]  # fmt: skip
# Mistakes of the caller: PyTorch's own words have to stay.
NOT_OURS = [
    "Given groups=1, weight of size [4, 4, 3, 3, 3], expected input[1, 3, 5, 8, 8] to have 4"
    " channels, but got 3 channels instead",
    "Calculated padded input size per channel: (1 x 8 x 8). Kernel size: (3 x 3 x 3). Kernel size"
    " can't be greater than actual input size",
    "Input type (float) and bias type (c10::Half) should be the same",
    "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the"
    " same",
    "Input type (torch.FloatTensor) and weight type (torch.HalfTensor) should be the same",
    "expected scalar type Half but found Float",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "",
]


class InterruptProcessingException(Exception):  # noqa: N818  # ComfyUI's name
    """As in ComfyUI 0.3.64; a BaseException since."""


def _names(texts: list[str]) -> list[str]:
    """A name for each case: its number, and its text without odd characters."""
    return [f"{n} {re.sub(r'[^A-Za-z0-9]+', ' ', text)[:40]}" for n, text in enumerate(texts)]


@pytest.mark.parametrize(("text", "kind"), SEEN, ids=_names([text for text, _ in SEEN]))
def test_each_real_text_has_its_kind(text: str, kind: Kind) -> None:
    found = classify(RuntimeError(text))
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize("name", MIOPEN_STATUS)
def test_every_status_of_miopen_is_known(name: str) -> None:
    found = classify(RuntimeError(f"miopenStatus{name}"))
    assert found is not None
    assert found.kind in errors.RETRIED


def test_every_rule_is_the_first_to_know_some_real_text() -> None:
    used = {classify_text(text) for text, _ in SEEN} - {None}
    assert [rule.patterns for rule in errors.RULES if rule not in used] == []


def test_every_rule_says_where_its_text_was_seen() -> None:
    for rule in errors.RULES:
        assert rule.source.startswith(("https://", "specification ")), rule
        assert rule.reason


def test_every_text_of_the_injector_is_known() -> None:
    for text in faults.TEXTS.values():
        assert classify_text(text) is not None, text


@pytest.mark.parametrize("text", NOT_OURS)
def test_mistakes_of_the_caller_are_not_classified(text: str) -> None:
    assert classify(RuntimeError(text)) is None


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(1),
        InterruptProcessingException(faults.HIP_OOM),
        ValueError(faults.HIP_OOM),
        TypeError(faults.MIOPEN_NO_ALGORITHM),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_cancel_or_a_type_error_is_never_a_failure_of_a_back_end(error: BaseException) -> None:
    assert classify(error) is None


def test_pytorch_errors_are_known_by_type_without_a_text() -> None:
    memory = classify(torch.OutOfMemoryError("whatever it says"))
    assert memory is not None
    assert memory.kind is Kind.OUT_OF_MEMORY
    lost = classify(torch.AcceleratorError("whatever it says"))
    assert lost is not None
    assert lost.kind is Kind.DEVICE_LOST
    full = torch.AcceleratorError("whatever it says")
    full.error_code = 2
    found = classify(full)
    assert found is not None
    assert found.kind is Kind.OUT_OF_MEMORY
    found = classify(MemoryError())
    assert found is not None
    assert found.kind is Kind.OUT_OF_MEMORY


def test_the_host_really_says_what_the_table_has_for_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    found = classify(caught.value)
    assert found is not None
    assert found.kind is Kind.OUT_OF_MEMORY


def test_the_table_works_without_torch() -> None:
    program = (
        "import sys; from hy3d_rocm.conv import errors;"
        "assert errors.classify_text('miopenStatusUnknownError').kind.value == 'no algorithm';"
        "assert errors.classify(RuntimeError('x')) is None;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_sentences_say_what_to_do() -> None:
    original = RuntimeError(faults.DEVICE_MISMATCH)
    text = str(errors.mismatch_error("conv3d 1x2", "input on cpu, weight on cuda:0", original))
    for part in ("conv3d 1x2", "input on cpu, weight on cuda:0", "resolve_device", "Expected all"):
        assert part in text
    lost = torch.AcceleratorError(faults.ILLEGAL_ACCESS)
    lost.error_code = 700
    sentence = errors.lost_error("conv3d 1x2", "a kernel failed", lost)
    assert "restart ComfyUI" in str(sentence)
    assert sentence.error_code == 700
    assert classify(sentence) is None, "an outer scope would translate it again"
