"""The card, its driver and its run time."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_LOST = ("gpu-page-fault", "gpu-launch-failure", "gpu-reset", "hsa-queue-error")
_LONG_KERNELS = (
    "Under protect() no convolution of MIOpen is started that was not proven for its shape, and the"
    " decode of this package goes in parts: both avoid kernels that run for seconds."
)


# The text of every HIP error that a rule of its own tells.
_TOLD = (
    r"invalid device function|no kernel image|out of memory|an illegal memory|unspecified launch"
    r"|the launch timed out|device-side assert|invalid configuration|no ROCm-capable"
)


def _others(own: str) -> tuple[str, ...]:
    return tuple(name for name in _LOST if name != own)


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-page-fault",
        symptom="A kernel on the GPU accessed memory that is not its own.",
        cause="A fault of a kernel, of the driver or of its firmware, or a card that claims to be"
        " another one (HSA_OVERRIDE_GFX_VERSION). The process can't use the GPU any more.",
        here="protect() says so in one sentence instead of going on with a lost device; where the"
        " process does not survive, the shape is remembered as one that hangs.",
        otherwise="Restart the program. If it comes again at the same place, run once with"
        " AMD_SERIALIZE_KERNEL=3; then try another kernel or firmware version of the driver.",
        source=_ROCM + "5051",
        words=(
            "access fault",
            "illegal memory",
            "illegaladdress",
            "page fault",
            "protection_fault",
        ),
        patterns=(
            r"Memory access fault by GPU node",
            r"HIP error: an illegal memory access was encountered",
            r"\bhipErrorIllegalAddress\b",
            r"VM_L2_PROTECTION_FAULT_STATUS: ?0x(?!0{8})",
            r"amdgpu.{0,40}\[(?:gfxhub|mmhub)\w*\] (?:retry |no-retry )?page fault",
        ),
        follows=("gpu-reset", "hsa-queue-error"),
    ),
    Rule(
        id="gpu-launch-failure",
        symptom="A kernel on the GPU crashed or was ended.",
        cause="The run time only says that a kernel did not end well. On Windows the driver ends"
        " kernels that run longer than about two seconds (TDR); on Linux it is mostly the driver"
        " or its firmware.",
        here=_LONG_KERNELS,
        otherwise="Restart the program. On Linux look for 'amdgpu' in `dmesg`;"
        " amdgpu.cwsr_enable=0 helped on some cards.",
        source=_THEROCK + "2846",
        words=("launch failure", "launchfailure", "launchtimeout", "launch timed out"),
        patterns=(
            r"HIP (?:error|warning): unspecified launch failure",
            r"\bhipErrorLaunch(?:Failure|TimeOut)\b",
            r"HIP error: the launch timed out",
        ),
        follows=_others("gpu-launch-failure"),
        confidence="likely",
    ),
    Rule(
        id="gpu-assert",
        symptom="An assertion failed in a kernel on the GPU.",
        cause="A kernel was given an index or value out of range: mostly a text encoder with"
        " tokens that its table has not got, or data that do not fit the model.",
        here="This package does not cause or mend it.",
        otherwise="Run once with AMD_SERIALIZE_KERNEL=3, which makes the traceback name the place.",
        source=""
        "https://github.com/pytorch/pytorch/blob/v2.9.0/c10/cuda/CUDADeviceAssertionHost.cpp",
        words=("device-side assert",),
        patterns=(
            r"HIP error: device-side assert triggered",
            r"\.hip:\d+: .{0,100}Device-side assertion .{0,200}failed",
        ),
    ),
    Rule(
        id="gpu-launch-refused",
        symptom="The run time refused the size of a kernel's grid.",
        cause="A tensor is too large for one launch, as seen beyond 2^31 elements. The device is"
        " as it was.",
        here="The decode in parts stays far below that size; protect() takes another tier.",
        otherwise="Fewer frames or smaller pictures at a time.",
        source="https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        words=("invalid configuration argument", "hiperrorinvalidconfiguration"),
        patterns=(
            r"HIP error: invalid configuration argument",
            r"\bhipErrorInvalidConfiguration\b",
        ),
        confidence="likely",
    ),
    Rule(
        id="gpu-reset",
        symptom="The driver lost the GPU and reset it.",
        cause="The card did not answer in time. A kernel that runs too long does that (MIOpen's"
        " find step with its naive kernel at a new resolution is the usual one), and so do faults"
        " of driver and firmware. The program that the driver names is often only a victim.",
        here=_LONG_KERNELS,
        otherwise="MIOPEN_FIND_MODE=FAST before torch is imported; a newer kernel and"
        " linux-firmware.",
        source=_ROCM + "2773",
        words=("amdgpu", "gpu reset"),
        patterns=(
            r"amdgpu.{0,60}ring \S+ timeout",
            r"amdgpu.{0,30}GPU reset begin",
            r"amdgpu.{0,40}(?:MODE[012]|BACO) reset\b",
            r"VRAM is lost due to GPU reset",
            r"amdgpu.{0,60}MES (?:failed to respond|might be in unrecoverable state)",
            r"amdgpu.{0,30}device lost from bus",
            r"\bamdgpu_job_timedout\b",
        ),
        follows=("gpu-page-fault", "hsa-queue-error"),
        confidence="likely",
    ),
    Rule(
        id="hsa-queue-error",
        symptom="The HSA runtime stopped a queue of the GPU.",
        cause="The hardware raised an exception in a kernel: one that was built for another card"
        " (also through HSA_OVERRIDE_GFX_VERSION), or a fault of kernel or driver.",
        here="`hy3d-rocm doctor` compares the card with what PyTorch was built for.",
        otherwise="Remove HSA_OVERRIDE_GFX_VERSION if your card is supported without it; update"
        " ROCm.",
        source="https://github.com/cubiq/ComfyUI_InstantID/issues/71",
        words=("hsa_status_error_",),
        patterns=(
            r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION"
            r"|OUT_OF_REGISTERS|INVALID_ISA|MEMORY_FAULT)",
        ),
        follows=("gpu-page-fault", "gpu-reset"),
        confidence="likely",
    ),
    Rule(
        id="windows-gpu-crash",
        symptom="The process crashed inside AMD's run time (Windows).",
        cause="An access violation inside amdhip64: the program ended at once, so no error reaches"
        " Python.",
        here="Where that happens in the first call of a convolution's shape, this package remembers"
        " it and does not try it in that way again.",
        otherwise="Another version of the ROCm wheels or of the driver; a smaller tile may take"
        " another kernel.",
        source=_THEROCK + "7691",
        words=("amdhip64", "amdocl64"),
        patterns=(
            r"0xC0000005.{0,200}amdhip64",
            r"#\d+ 0x[0-9a-f]+ \(\S*amdhip64\w*\.dll",
            r"Faulting module name: (?:amdhip64|amdocl64)",
        ),
    ),
    Rule(
        id="hip-error",
        symptom="A call of the HIP run time failed.",
        cause="HIP reports some errors in a later call than the one that failed, so the text and"
        " the place may mislead. A PyTorch that was built for another ROCm than the installed one"
        " or than the card needs is one cause.",
        here="`hy3d-rocm doctor` compares the card with what PyTorch was built for.",
        otherwise="Run once with AMD_SERIALIZE_KERNEL=3, which makes the traceback name the place;"
        " install the PyTorch wheels that fit your ROCm and card.",
        source="https://github.com/invoke-ai/InvokeAI/issues/5738",
        words=("hip error",),
        patterns=(rf"\bHIP error: (?!{_TOLD})\w",),
        follows=(*_LOST, "wrong-architecture", "hip-out-of-memory", "no-gpu-found"),
        confidence="possible",
    ),
)
