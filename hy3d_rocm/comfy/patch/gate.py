"""Whether upstream is to be patched here: the user's word, else whether the GPU is AMD's.

HY3D_ROCM_PATCH, upper and lower case alike, blanks ignored:

    on | off | auto       patch, do not, or patch if the GPU is AMD's (the default)
    -NAME                 leave one patch out; several with commas, with or without a word before:
                          "auto,-delight,-mesh" or "-delight"
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args

VARIABLE = "HY3D_ROCM_PATCH"
Mode = Literal["on", "off", "auto"]
_MODES: tuple[str, ...] = get_args(Mode)
_AMD_NAME = re.compile(r"\b(amd|radeon|zluda)\b", re.IGNORECASE)


_OFF = (
    f"{VARIABLE}=off switches its corrections off; set it to auto or on and restart ComfyUI to "
    "have them"
)


class Choice(NamedTuple):
    """What the user wrote: the mode, the names to leave out, and what was wrong with it."""

    mode: Mode
    left_out: frozenset[str]
    problem: str | None


def read_choice(text: str, known: Collection[str] = ()) -> Choice:
    """The choice in `text`; one that cannot be read is "auto" with a sentence.

    known: names of the patches; a `-NAME` that is not one of them is a problem. Empty: not looked
    at. Names that can be read are left out whatever else is wrong.
    """
    words = [word.strip().lower() for word in text.split(",")]
    modes = [word for word in words if word and not word.startswith("-")]
    left_out = frozenset(word[1:].strip() for word in words if word.startswith("-"))
    wrong = [word for word in modes if word not in _MODES]
    wrong += ["-" + name for name in sorted(left_out) if not name or (known and name not in known)]
    if len(set(modes)) > 1 and not wrong:
        wrong = modes
    if wrong:
        names = f"; patches: {', '.join(known)}" if known else ""
        return Choice(
            "auto",
            left_out,
            f'{VARIABLE}={text!r} is read as "auto" (not understood: {", ".join(wrong)}); '
            f'give one of {", ".join(_MODES)}, then ",-NAME" for each patch to leave out{names}',
        )
    mode: Mode = "on" if "on" in modes else "off" if "off" in modes else "auto"
    return Choice(mode, left_out, None)


def why_left_out(name: str, text: str) -> str:
    """What is said of the patch `name` that `text`, the variable's value, leaves out."""
    return (
        f'switched off by "-{name}" in {VARIABLE}={text.strip()}; take that out of the variable '
        "and restart ComfyUI to have it corrected"
    )


def should_patch(environ: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Whether to patch, and the reason as the rest of a sentence ("there is no AMD GPU here ...").

    HY3D_ROCM=off comes first, then HY3D_ROCM_PATCH. torch is asked only for "auto".
    """
    environ = os.environ if environ is None else environ
    if environ.get("HY3D_ROCM", "").strip().lower() == "off":
        return False, "HY3D_ROCM=off"
    mode = read_choice(environ.get(VARIABLE, "")).mode
    if mode != "auto":
        return mode == "on", f"{VARIABLE}={mode}" if mode == "on" else _OFF
    found, reason = amd_gpu()
    return found, reason if found else f"{reason}; {VARIABLE}=on patches it all the same"


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
