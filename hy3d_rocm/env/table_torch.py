"""The rules about variables that PyTorch and attention packages read."""

from __future__ import annotations

from hy3d_rocm.env import allocator
from hy3d_rocm.env.rule import Case, Check, Rule, Span, Verdict, none_of, one_of

PYTORCH = "https://github.com/pytorch/pytorch/"
OLD_PARSER = (
    "https://github.com/ROCm/pytorch/blob/10b22ea5c6a60ffa85520eb2d293affc48cea8ee/"
    "c10/cuda/CUDAAllocatorConfig.cpp"
)
PARSER = PYTORCH + "blob/v2.13.0/c10/core/AllocatorConfig.cpp"
PARSER_H = PYTORCH + "blob/v2.13.0/c10/cuda/CUDAAllocatorConfig.h"
FLASH_ATTENTION = (
    "https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py"
)
ALLOC = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
CUDA, HIP, PLAIN = ALLOC
NEW_PARSER_SINCE = (2, 9)
KEYS_READ_BEFORE = (2, 14)  # keys of later versions were not read
RDNA = ("gfx10", "gfx11", "gfx120")


def refused(case: Case, text: str) -> str:
    """What this machine's torch would throw; where its version isn't known, what all would."""
    torch = case.machine.torch
    any_key = not torch or torch >= KEYS_READ_BEFORE
    new = allocator.problem(text, strict=False, any_key=any_key)
    if torch >= NEW_PARSER_SINCE:
        return new
    old = allocator.problem(text, strict=True, any_key=any_key)
    if torch:
        if not old and torch < (2, 1) and "expandable_segments" in allocator.keys(text):
            return "Unrecognized CachingAllocator option: expandable_segments"
        return old
    return new and old


def refused_if_read(case: Case) -> str:
    """`refused`, but "" for a name that this machine's torch does not come to read."""
    torch, environ = case.machine.torch, case.environ
    if case.name == HIP and CUDA in environ:
        return ""
    if case.name == PLAIN and torch:
        replaced = torch >= (2, 13) and (CUDA in environ or HIP in environ)
        if replaced or torch < NEW_PARSER_SINCE:
            return ""
    return refused(case, case.value)


def repaired(case: Case) -> str | None:
    return allocator.without_refused(case.value, lambda text: refused(case, text))


def has(key: str, value: str = "") -> Check:
    """The setting, as "key:value", where it is there and has this value (any, if "")."""

    def check(case: Case) -> str:
        words = allocator.tokens(case.value)
        settings = zip(words, words[2:], strict=False)
        found = (given for name, given in settings if name == key and value in ("", given))
        return next((f"{key}:{given}" for given in found), "")

    return check


def read_first(*names: str) -> Check:
    """The first of these that is set: then this variable isn't read."""

    def check(case: Case) -> str:
        return next((name for name in names if name in case.environ), "")

    return check


def collects_nothing(case: Case) -> bool | str:
    capped = any(case.environ.get(f"HY3D_ROCM_MAX_VRAM_{unit}", "") for unit in ("GB", "SHARE"))
    by_torch = has("per_process_memory_fraction")(case)
    return not capped and not by_torch and has("garbage_collection_threshold")(case)


def tuning_without_tunableop(case: Case) -> bool:
    return case.environ.get("PYTORCH_TUNABLEOP_ENABLED") != "1"


ALLOCATOR: tuple[Rule, ...] = (
    Rule(
        name="allocator-refused",
        variables=ALLOC,
        values="a setting that PyTorch refuses: an unknown key, a missing value, true for True, "
        "max_split_size_mb below 20, a threshold outside 0..1",
        verdict=Verdict.THROWS,
        effect="PyTorch throws at import or at its first GPU call: {found}",
        remedy="correct it; only the settings that PyTorch takes are kept",
        source="https://github.com/pytorch/pytorch/issues/186453",
        check=refused_if_read,
        leave_out=True,
        repair=repaired,
    ),
    Rule(
        name="allocator-read-second",
        variables=(HIP,),
        values=f"any, where {CUDA} is set",
        verdict=Verdict.NOTHING,
        effect="PyTorch reads {found} and, since that is set, not this one",
        remedy="keep one of the two",
        source=PARSER_H,
        check=read_first(CUDA),
    ),
    Rule(
        name="allocator-read-last",
        variables=(PLAIN,),
        values=f"any, where {CUDA} or {HIP} is set",
        verdict=Verdict.NOTHING,
        effect="PyTorch 2.13 reads {found} and, since that is set, not this one",
        remedy="keep one of them",
        source=PARSER_H,
        check=read_first(CUDA, HIP),
        torch=Span(since=(2, 13), before=KEYS_READ_BEFORE),
    ),
    Rule(
        name="allocator-name-too-new",
        variables=(PLAIN,),
        values="any",
        verdict=Verdict.NOTHING,
        effect="PyTorch reads this name from 2.9 on",
        remedy=f"use {HIP}",
        source=OLD_PARSER,
        torch=Span(since=(1,), before=NEW_PARSER_SINCE),
    ),
    Rule(
        name="allocator-name-half-read",
        variables=(PLAIN,),
        values="expandable_segments:...",
        verdict=Verdict.NOTHING,
        effect="PyTorch 2.9 does not pass expandable_segments on from this name to the GPU",
        remedy=f"use {HIP} there",
        source=PYTORCH + "issues/183387",
        check=has("expandable_segments"),
        torch=Span(since=(2, 9), before=(2, 10)),
    ),
    Rule(
        name="allocator-old-name",
        variables=(CUDA, HIP),
        values="any",
        verdict=Verdict.FINE,
        effect="PyTorch 2.9 to 2.11 print that this name is deprecated; it is read all the same, "
        "and 2.12 took the message back",
        source="https://github.com/PriorLabs/TabPFN/issues/608",
        torch=Span(since=(2, 9), before=(2, 12)),
    ),
    Rule(
        name="expandable-segments-unsupported",
        variables=ALLOC,
        values="expandable_segments:True, torch before 2.11",
        verdict=Verdict.NOTHING,
        effect="ROCm builds before 2.11 say 'expandable_segments not supported on this platform' "
        "and go on without it",
        source="https://github.com/ROCm/pytorch/pull/3106",
        check=has("expandable_segments", "True"),
        part=True,
        torch=Span(since=(2, 1), before=(2, 11)),
    ),
    Rule(
        name="expandable-segments-old-rocm",
        variables=ALLOC,
        values="expandable_segments:True, ROCm before 7",
        verdict=Verdict.NOTHING,
        effect="builds for ROCm before 7.0 say 'expandable_segments not supported on this "
        "platform' and go on without it",
        source=PARSER_H,
        check=has("expandable_segments", "True"),
        part=True,
        torch=Span(since=(2, 11)),
        rocm=Span(since=(1,), before=(7,)),
    ),
    Rule(
        name="expandable-segments-hang",
        variables=ALLOC,
        values="expandable_segments:True, torch from 2.11, ROCm from 7",
        verdict=Verdict.HARMFUL,
        effect="one report of a hang that only killing ends, at the first tensor moved to the GPU "
        "(torch 2.14 nightly, ROCm 7.2)",
        remedy="take it out if ComfyUI stands still while loading",
        source=PYTORCH + "issues/192259",
        check=has("expandable_segments", "True"),
        part=True,
        torch=Span(since=(2, 11)),
        rocm=Span(since=(7,)),
        confirmed=False,
    ),
    Rule(
        name="garbage-collection-threshold",
        variables=ALLOC,
        values="garbage_collection_threshold:..., without a memory cap",
        verdict=Verdict.NOTHING,
        effect="it acts only where a program also limits its share of the card's memory",
        remedy="HY3D_ROCM_MAX_VRAM_GB sets such a limit in ComfyUI; without one take it out",
        part=True,
        source=PYTORCH + "blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp",
        check=collects_nothing,
    ),
    Rule(
        name="allocator-fine",
        variables=ALLOC,
        values="any other settings",
        verdict=Verdict.FINE,
        effect="PyTorch takes these settings",
        source=PARSER,
        rest=True,
    ),
    Rule(
        name="no-memory-caching",
        values="any, 0 included",
        variables=("PYTORCH_NO_CUDA_MEMORY_CACHING",),
        verdict=Verdict.HARMFUL,
        effect="each tensor is allocated by the driver and freed at once, which is slow; it counts "
        "as soon as it is set",
        remedy="a debugging aid; leave it unset",
        source="https://docs.pytorch.org/docs/2.15/cuda_environment_variables.html",
    ),
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="tunableop",
        variables=("PYTORCH_TUNABLEOP_ENABLED",),
        values="1",
        verdict=Verdict.FINE,
        effect="matrix products (no convolutions) are timed at each new size, so first runs are "
        "very slow; results stay in tunableop_results*.csv",
        remedy="PYTORCH_TUNABLEOP_TUNING=0 uses them without timing new sizes",
        source=PYTORCH + "blob/v2.13.0/torch/cuda/tunable.py",
        check=one_of("1"),
    ),
    Rule(
        name="tunableop-part",
        variables=("PYTORCH_TUNABLEOP_*",),
        values="any, without PYTORCH_TUNABLEOP_ENABLED=1",
        verdict=Verdict.NOTHING,
        effect="TunableOp is off unless PYTORCH_TUNABLEOP_ENABLED=1, so this has no effect",
        source=PYTORCH + "blob/v2.13.0/torch/cuda/tunable.py",
        check=lambda case: (
            case.name != "PYTORCH_TUNABLEOP_ENABLED" and tuning_without_tunableop(case)
        ),
    ),
    Rule(
        name="aotriton",
        variables=("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",),
        values="any",
        verdict=Verdict.FINE,
        effect="lets PyTorch use AOTriton's attention on cards where it is experimental; ComfyUI "
        "(0.3.64 and 0.33) sets it to 1 itself, whatever you set",
        source="https://github.com/Comfy-Org/ComfyUI/blob/v0.3.64/main.py",
    ),
    Rule(
        name="hipblaslt",
        variables=("TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_BLAS_PREFER_CUBLASLT"),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="chooses hipBLASLt (1) or hipBLAS (0) for matrix products; CUBLASLT is asked first",
        source="https://github.com/ROCm/pytorch/pull/2053/files",
    ),
    Rule(
        name="no-hipblas-switch",
        variables=("TORCH_BLAS_PREFER_HIPBLAS",),
        values="any",
        verdict=Verdict.NOTHING,
        effect="torch 2.13 has no such variable",
        remedy="TORCH_BLAS_PREFER_HIPBLASLT=0 does what it seems to say",
        source="https://github.com/ROCm/pytorch/pull/2053/files",
    ),
    Rule(
        name="addmm-lt",
        variables=("DISABLE_ADDMM_CUDA_LT", "DISABLE_ADDMM_HIP_LT"),
        values="0, 1",
        verdict=Verdict.FINE,
        effect="whether matrix product and bias are fused through hipBLASLt; no convolution is "
        "affected",
        source=PYTORCH + "blob/v2.13.0/aten/src/ATen/native/cuda/Blas.cpp",
    ),
    Rule(
        name="attention-ck",
        variables=("TORCH_ROCM_FA_PREFER_CK",),
        values="1",
        verdict=Verdict.FINE,
        effect="prefers Composable Kernel's attention, in builds of PyTorch that contain it",
        source=PYTORCH + "blob/v2.13.0/torch/backends/cuda/__init__.py",
    ),
    Rule(
        name="channels-last",
        variables=("PYTORCH_MIOPEN_SUGGEST_NHWC",),
        values="1",
        verdict=Verdict.HARMFUL,
        effect="channels-last convolutions through MIOpen, reported as much slower on RDNA cards",
        remedy="use 0 there",
        source=PYTORCH + "pull/170947",
        check=none_of("0", ""),
        architectures=RDNA,
        confirmed=False,
    ),
    Rule(
        name="channels-last-default",
        variables=("PYTORCH_MIOPEN_SUGGEST_NHWC",),
        values="not set (then 0 is set), 0; torch 2.7 to 2.10 built for ROCm 7",
        verdict=Verdict.HELPFUL,
        effect="these builds hand MIOpen channels-last convolutions unless this is 0; it was taken "
        "back later, since RDNA cards became much slower",
        source=PYTORCH + "pull/170780",
        check=one_of("0"),
        torch=Span(since=(2, 7), before=(2, 11)),
        rocm=Span(since=(7,)),
        architectures=RDNA,
        proposes="0",
    ),
    Rule(
        name="channels-last-off",
        variables=("PYTORCH_MIOPEN_SUGGEST_NHWC",),
        values="0, elsewhere",
        verdict=Verdict.FINE,
        effect="convolutions keep their layout, the default of builds for ROCm before 7 and of "
        "torch from 2.11",
        source=PYTORCH + "pull/170780",
        check=one_of("0"),
        rest=True,
    ),
    Rule(
        name="flash-attention-not-true",
        variables=("FLASH_ATTENTION_TRITON_AMD_ENABLE",),
        values="anything but TRUE",
        verdict=Verdict.NOTHING,
        effect="flash_attn compares with TRUE in capital letters: any other value, 1 and true "
        "included, leaves its Triton path off",
        remedy="use TRUE",
        source=FLASH_ATTENTION,
        check=lambda case: case.value not in ("TRUE", "FALSE"),
    ),
    Rule(
        name="flash-attention",
        variables=("FLASH_ATTENTION_TRITON_AMD_ENABLE", "FLASH_ATTENTION_TRITON_AMD_AUTOTUNE"),
        values="TRUE, FALSE",
        verdict=Verdict.FINE,
        effect="read by the flash_attn package, for ComfyUI's --use-flash-attention",
        source=FLASH_ATTENTION,
        rest=True,
    ),
    Rule(
        name="no-attention-switch",
        variables=("SAGE_ATTENTION_TRITON_AMD_ENABLE",
                   "FLASH_ATTENTION_FWD_TRITON_AMD_CONFIG_JSON"),
        values="any",
        verdict=Verdict.NOTHING,
        effect="the attention packages in use do not read it any more",
        source="https://github.com/patientx-cfz/comfyui-rocm/pull/10",
        confirmed=False,
    ),
    Rule(
        name="build-time-only",
        variables=("TORCH_USE_HIP_DSA", "TORCH_USE_CUDA_DSA"),
        values="any",
        verdict=Verdict.NOTHING,
        effect="counts when PyTorch itself is built, not when it runs",
        source="https://discuss.pytorch.org/t/debugging-variables/185597",
    ),
    Rule(
        name="extension-architectures",
        variables=("PYTORCH_ROCM_ARCH",),
        values="any",
        verdict=Verdict.FINE,
        effect="counts only where a C++ extension is compiled on this machine",
        source=PYTORCH + "blob/v2.13.0/torch/utils/cpp_extension.py",
    ),
)  # fmt: skip
