"""Whether upstream is to be patched here: the user's word, else whether the GPU is AMD's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hy3d_rocm.env.choices import PATCH_VARIABLE, is_off, read_patch_choice

_AMD_NAME = re.compile(r"\b(amd|radeon|zluda)\b", re.IGNORECASE)


_OFF = (
    f"{PATCH_VARIABLE}=off switches its corrections off; set it to auto or on and restart ComfyUI "
    "to have them"
)


def why_left_out(name: str, text: str) -> str:
    """What is said of the patch `name` that `text`, the variable's value, leaves out."""
    return (
        f'switched off by "-{name}" in {PATCH_VARIABLE}={text.strip()}; take that out of the '
        "variable and restart ComfyUI to have it corrected"
    )


def should_patch(environ: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Whether to patch, and the reason as the rest of a sentence ("there is no AMD GPU here ...").

    HY3D_ROCM=off comes first, then HY3D_ROCM_PATCH. torch is asked only for "auto".
    """
    environ = os.environ if environ is None else environ
    if is_off(environ, "HY3D_ROCM"):
        return False, "HY3D_ROCM=off"
    choice = read_patch_choice(environ)
    if choice.problem is not None:
        return False, f"{PATCH_VARIABLE}={environ.get(PATCH_VARIABLE, '')} is not understood"
    if choice.mode != "auto":
        return choice.mode == "on", f"{PATCH_VARIABLE}=on" if choice.mode == "on" else _OFF
    found, reason = amd_gpu()
    return found, reason if found else f"{reason}; {PATCH_VARIABLE}=on patches it all the same"


def amd_gpu() -> tuple[bool, str]:
    """Whether torch computes on an AMD GPU, through ROCm or ZLUDA, and what was found.

    Never raises: what cannot be asked counts as no.
    """
    try:
        import torch
    except Exception as error:  # noqa: BLE001  (a broken torch fails in many ways)
        return False, f"torch cannot be imported ({type(error).__name__}: {error})"
    names = _gpu_names(torch)
    hip = getattr(getattr(torch, "version", None), "hip", None)
    if hip and names:
        return True, f"AMD GPU: {names[0]} (ROCm {hip})"
    for name in names:
        if _AMD_NAME.search(name):
            return True, f"AMD GPU: {name}"
    if hip:
        return False, f"there is no GPU here that torch (ROCm {hip}) can use"
    return False, f"there is no AMD GPU here ({', '.join(names) or 'torch sees no GPU'})"


def _gpu_names(torch: Any) -> list[str]:
    """Names of the GPUs that torch sees; one that has no name to tell is "GPU <number>"."""
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception:  # noqa: BLE001  (a driver that cannot be asked is a GPU that cannot be used)
        return []
    names = []
    for index in range(count):
        try:
            names.append(str(torch.cuda.get_device_name(index)))
        except Exception:  # noqa: BLE001
            names.append(f"GPU {index}")
    return names
