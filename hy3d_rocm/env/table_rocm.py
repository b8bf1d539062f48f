"""The rules about variables of ROCm's runtime (HSA, HIP) and its libraries."""

from __future__ import annotations

import re

from hy3d_rocm.env.gpu import architecture
from hy3d_rocm.env.rule import Case, Check, Rule, Verdict, none_of, one_of

ROCM_SYSTEMS = "https://github.com/ROCm/rocm-systems/"
HSA_FLAGS = (
    ROCM_SYSTEMS + "blob/058954eb184c934cee358008f51aaded433eca0b/"
    "projects/rocr-runtime/runtime/hsa-runtime/core/util/flag.h"
)
HIP_FLAGS = (
    ROCM_SYSTEMS + "blob/01d42af34cfa6cdee8649db6096af3ff4b53e731/"
    "projects/clr/rocclr/utils/flags.hpp"
)
HSAKMT = "https://github.com/ROCm/ROCR-Runtime/blob/master/libhsakmt/src/topology.c"
OVERRIDE = ("HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_*")
NO_XNACK = ("gfx103", "gfx11", "gfx1200", "gfx1201")


def override_of(value: str) -> tuple[int, int, int] | None:
    """What libhsakmt reads: three numbers, nothing behind them; None: it refuses the value."""
    found = re.fullmatch(r"\s*\+?(\d+)\.\s*\+?(\d+)\.\s*\+?(\d+)", value)
    if not found:
        return None
    major, minor, step = (int(part) for part in found.groups())
    return (major, minor, step) if major <= 63 and minor <= 255 and step <= 255 else None


def override_architecture(value: str) -> str:
    """ "11.0.1" is gfx1101; "" for a value that is refused."""
    parts = override_of(value)
    return architecture(parts[0] * 10000 + parts[1] * 100 + parts[2]) if parts else ""


def generation(name: str) -> str:
    """gfx1151 is of generation 115, gfx90a of 90."""
    return name.removeprefix("gfx")[:-1]


def is_refused(case: Case) -> bool:
    return override_of(case.value) is None


def _concerned(case: Case) -> set[str]:
    """Architectures of the GPUs that this override is for."""
    if case.name != OVERRIDE[0] and len(set(case.machine.architectures)) > 1:
        return set()  # the driver's node numbers are not looked up
    return {name for name in case.machine.architectures if "X" not in name}


def is_own(case: Case) -> bool:
    return _concerned(case) == {override_architecture(case.value)}


def mixes(case: Case) -> str:
    concerned = _concerned(case)
    return ", ".join(sorted(concerned)) if len(concerned) > 1 else ""


def other_generation(case: Case) -> str:
    concerned, told = _concerned(case), override_architecture(case.value)
    if not told or len(concerned) != 1:
        return ""
    own = next(iter(concerned))
    return f"{own} as {told}" if generation(own) != generation(told) else ""


def not_a_switch(case: Case) -> bool:
    return case.value not in ("0", "1", "")


def more_than_rocr(case: Case) -> bool:
    rocr = case.environ.get("ROCR_VISIBLE_DEVICES")
    return rocr is not None and case.value.count(",") > rocr.count(",")


def equals(value: str) -> Check:
    return lambda case: case.value == value


RULES: tuple[Rule, ...] = (
    Rule(
        name="override-refused",
        variables=OVERRIDE,
        values="not three numbers such as 10.3.0 (guides: gfx1100, 11.0)",
        verdict=Verdict.THROWS,
        effect="the runtime reads major.minor.stepping and nothing else; with this value its start "
        "fails ('HSA_OVERRIDE_GFX_VERSION ... is invalid') and torch sees no GPU",
        remedy="leave it unset, or write 10.3.0 for gfx1030",
        source=HSAKMT,
        check=is_refused,
        leave_out=True,
    ),
    Rule(
        name="override-mixed",
        variables=OVERRIDE[:1],
        values="any, with GPUs of several architectures",
        verdict=Verdict.HARMFUL,
        effect="all GPUs ({found}) are told to be the same architecture",
        remedy="HSA_OVERRIDE_GFX_VERSION_<node> is for one GPU",
        source=HSAKMT,
        check=mixes,
    ),
    Rule(
        name="override-own",
        variables=OVERRIDE,
        values="the GPU's own architecture",
        verdict=Verdict.NOTHING,
        effect="the GPU is of this architecture anyway",
        remedy="leave it unset",
        source=HSAKMT,
        check=is_own,
    ),
    Rule(
        name="override-other-generation",
        variables=OVERRIDE,
        values="an architecture of another generation (11.0.0 on gfx1151, 12.0.1 on gfx1151, "
        "10.3.0 on gfx90a)",
        verdict=Verdict.HARMFUL,
        effect="kernels of another generation are run ({found}); memory access faults and crashes "
        "of the kernel driver are reported",
        remedy="leave it unset; use a torch built for this GPU",
        source=ROCM_SYSTEMS + "issues/3531",
        check=other_generation,
    ),
    Rule(
        name="override-sibling",
        variables=OVERRIDE,
        values="an architecture of the same generation (10.3.0 on gfx1031..1036, 11.0.0 on "
        "gfx1101..1103)",
        verdict=Verdict.FINE,
        effect="runs kernels of a sibling, which ComfyUI's readme recommends for such cards; not "
        "needed where torch was built for the card itself",
        source="https://github.com/Comfy-Org/ComfyUI/blob/v0.3.64/README.md",
        rest=True,
    ),
    Rule(
        name="xnack-on-rdna",
        variables=("HSA_XNACK",),
        values="1, on RDNA cards",
        verdict=Verdict.NOTHING,
        effect="only Instinct (MI) cards have XNACK",
        source="https://github.com/ROCm/legacy-rocm-build/issues/2686",
        check=one_of("1"),
        architectures=NO_XNACK,
    ),
    Rule(
        name="hsa-switch",
        variables=("HSA_XNACK", "HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA"),
        values="neither 0 nor 1",
        verdict=Verdict.NOTHING,
        effect="only 0 and 1 mean something here; the runtime goes on with its default",
        source=HSA_FLAGS,
        check=not_a_switch,
    ),
    Rule(
        name="xnack",
        variables=("HSA_XNACK",),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="page migration off or on, on Instinct cards",
        source=HSA_FLAGS,
        rest=True,
    ),
    Rule(
        name="no-sdma",
        variables=("HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA"),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="with 0, copies are done by the shaders instead of the DMA engines; guides set it "
        "against hangs and broken pictures, which was not confirmed for current versions",
        remedy="compare transfer times with and without it",
        source="https://rocm.docs.amd.com/projects/ROCR-Runtime/en/docs-6.2.1/api-reference/"
        "environment_variables.html",
        rest=True,
    ),
    Rule(
        name="no-interrupts",
        variables=("HSA_ENABLE_INTERRUPT",),
        values="0",
        verdict=Verdict.HARMFUL,
        effect="the runtime polls instead of waiting for interrupts: a CPU core is kept busy",
        remedy="a debugging aid; leave it unset",
        source="https://rocm.docs.amd.com/en/docs-6.4.1/how-to/system-debugging.html",
        check=one_of("0"),
    ),
    Rule(
        name="tools-library",
        variables=("HSA_TOOLS_LIB",),
        values="0, 1",
        verdict=Verdict.NOTHING,
        effect="this takes the file names of tool libraries to load; 0 and 1 are none",
        source=HSA_FLAGS,
        check=one_of("0", "1"),
    ),
    Rule(
        name="hsa-other",
        variables=("HSA_*",),
        values="other HSA variables and values",
        verdict=Verdict.FINE,
        effect="the runtime's; nothing is known against it",
        source=HSA_FLAGS,
        rest=True,
    ),
    Rule(
        name="heap-size",
        variables=("GPU_MAX_HEAP_SIZE", "GPU_SINGLE_ALLOC_PERCENT"),
        values="100",
        verdict=Verdict.NOTHING,
        effect="100 is the default",
        source=HIP_FLAGS,
        check=equals("100"),
    ),
    Rule(
        name="no-such-gpu-variable",
        variables=("GPU_MAX_ALLOC_PERCENT", "GPU_USE_SYNC_OBJECTS", "GPU_FORCE_64BIT_PTR"),
        values="any",
        verdict=Verdict.NOTHING,
        effect="the HIP runtime has no such variable (any more)",
        source=HIP_FLAGS,
    ),
    Rule(
        name="serialized",
        variables=("AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY", "HIP_LAUNCH_BLOCKING"),
        values="not 0",
        verdict=Verdict.HARMFUL,
        effect="the CPU waits for each kernel or copy: much slower",
        remedy="a debugging aid; leave it unset",
        source=HIP_FLAGS,
        check=none_of("0", ""),
    ),
    Rule(
        name="amd-log",
        variables=("AMD_LOG_LEVEL",),
        values="3 and more",
        verdict=Verdict.HARMFUL,
        effect="each HIP call writes a line: slow, and a log of gigabytes",
        remedy="a debugging aid; leave it unset",
        source=HIP_FLAGS,
        check=one_of("3", "4", "5", "6", "7"),
    ),
    Rule(
        name="device-kernel-arguments",
        variables=("HIP_FORCE_DEV_KERNARG",),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="kernel arguments in GPU memory; on by default in the ROCm of 2026",
        source=HIP_FLAGS,
    ),
    Rule(
        name="hip-more-than-rocr",
        variables=("HIP_VISIBLE_DEVICES",),
        values="more entries than ROCR_VISIBLE_DEVICES",
        verdict=Verdict.HARMFUL,
        effect="it chooses among those that ROCR_VISIBLE_DEVICES leaves, so torch raises 'contains "
        "more devices than ROCR_VISIBLE_DEVICES'",
        remedy="set one of the two",
        source="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/__init__.py",
        check=more_than_rocr,
    ),
    Rule(
        name="visible-devices",
        variables=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                   "GPU_DEVICE_ORDINAL"),
        values="any",
        verdict=Verdict.FINE,
        effect="which GPUs are seen; ROCR's is applied first, HIP's counts within what it leaves",
        source=HIP_FLAGS,
        rest=True,
    ),
    Rule(
        name="hip-runtime",
        variables=("GPU_MAX_HW_QUEUES", "GPU_MAX_HEAP_SIZE", "GPU_SINGLE_ALLOC_PERCENT",
                   "AMD_LOG_LEVEL", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY",
                   "HIP_LAUNCH_BLOCKING"),
        values="other values",
        verdict=Verdict.FINE,
        effect="the HIP runtime's; nothing is known against this value",
        source=HIP_FLAGS,
        rest=True,
    ),
    Rule(
        name="rocblas-hipblaslt",
        variables=("ROCBLAS_USE_HIPBLASLT",),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="whether rocBLAS uses hipBLASLt or Tensile; unset, it decides by GPU and size "
        "(gfx12: hipBLASLt)",
        source="https://rocm.docs.amd.com/projects/rocBLAS/en/docs-7.0.1/conceptual/"
        "rocblas-design-notes.html",
    ),
    Rule(
        name="blas-log",
        variables=("ROCBLAS_LAYER", "HIPBLASLT_LOG_LEVEL"),
        values="not 0",
        verdict=Verdict.HARMFUL,
        effect="each matrix product writes lines to the log: slow",
        remedy="a debugging aid; leave it unset",
        source="https://rocm.docs.amd.com/projects/MIOpen/en/docs-10.1.0/reference/"
        "env_variables.html",
        check=none_of("0", ""),
    ),
)  # fmt: skip
