"""Environment variables that matter, and what is known about their values.

Source: MIOpen's own (2024-10), PyTorch's allocator, ComfyUI 0.33's model_management.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PREFIXES = ("MIOPEN_", "HSA_", "HY3D_")
NAMES = (
    "COMFYUI_ENABLE_MIOPEN",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
)
FIND_MODES = {"NORMAL": 1, "FAST": 2, "HYBRID": 3, "DYNAMIC_HYBRID": 5}
FIND_ENFORCE = {"NONE": 1, "DB_UPDATE": 2, "SEARCH": 3, "SEARCH_DB_UPDATE": 4, "DB_CLEAN": 5}
CPU_LEVELS = ("ref", "avx2", "avx512")


def relevant(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Name -> {"value", "note"} of every variable that is set and matters; note may be ""."""
    names = sorted(n for n in environ if n in NAMES or n.startswith(PREFIXES))
    return {name: {"value": environ[name], "note": note(name, environ[name])} for name in names}


def note(name: str, value: str) -> str:
    """What is known to be wrong with, or to follow from, this value; "" if nothing is."""
    check = _NOTES.get(name)
    return check(value) if check else ""


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in names.items())


def _is_one_of(value: str, names: Mapping[str, int]) -> bool:
    return value.upper() in names or value in {str(number) for number in names.values()}


def _find_mode(value: str) -> str:
    if _is_one_of(value, FIND_MODES):
        return ""
    return f"no such mode: MIOpen throws; use one of {_listed(FIND_MODES)}"


def _find_enforce(value: str) -> str:
    if not _is_one_of(value, FIND_ENFORCE):
        return f"no such value: MIOpen throws; use one of {_listed(FIND_ENFORCE)}"
    if value.upper() in ("NONE", "1"):
        return ""
    return "forces the find mode NORMAL, which times every solver at each new shape"


def _no_such_variable(value: str) -> str:
    return "MIOpen has no such variable: it does nothing"


def _allocator(value: str) -> str:
    if "garbage_collection_threshold" in value:
        return "garbage_collection_threshold acts only where a memory fraction is set"
    return ""


def _comfyui_miopen(value: str) -> str:
    if value == "1":
        return "ComfyUI leaves MIOpen switched on for RDNA3 and newer"
    return "only 1 has an effect: ComfyUI switches MIOpen off on RDNA3 and newer"


def _cpu_level(value: str) -> str:
    if value in CPU_LEVELS:
        return "limits our CPU kernels and the BLAS; it can only lower the level"
    return f"no such level; use one of {', '.join(CPU_LEVELS)}"


def _faults(value: str) -> str:
    return "convolutions are made to fail on purpose; unset it outside of tests" if value else ""


def _environment(value: str) -> str:
    if value == "off":
        return "this pack sets no variable at ComfyUI's start"
    return "only off has an effect"


_NOTES: dict[str, Callable[[str], str]] = {
    "MIOPEN_FIND_MODE": _find_mode,
    "MIOPEN_FIND_ENFORCE": _find_enforce,
    "MIOPEN_FIND_TIME_LIMIT": _no_such_variable,
    "MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES": _no_such_variable,
    "PYTORCH_ALLOC_CONF": _allocator,
    "PYTORCH_CUDA_ALLOC_CONF": _allocator,
    "PYTORCH_HIP_ALLOC_CONF": _allocator,
    "COMFYUI_ENABLE_MIOPEN": _comfyui_miopen,
    "HY3D_CPU": _cpu_level,
    "HY3D_FAULTS": _faults,
    "HY3D_ROCM_ENV": _environment,
}
