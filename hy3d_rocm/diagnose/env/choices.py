"""What the user may choose by variables: the one reader of those whose values are words.

`read_choice` reads one word, and says once what it does not know. HY3D_ROCM_PATCH has more of
them, upper and lower case alike, blanks ignored:

    on | off | auto       patch, do not, or patch if the GPU is AMD's (the default)
    -NAME                 leave one patch out; several with commas, with or without a word before:
                          "auto,-delight,-mesh" or "-delight"

What cannot be read is "off": nothing is patched of which somebody may have wished that it is not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

_LOGGER = logging.getLogger("hy3d_rocm")

PATCH_VARIABLE = "HY3D_ROCM_PATCH"
HUNYUAN3D_PATCHES = (
    "delight", "multiview", "mesh", "vae-decode", "loaders", "render", "inpaint",
)  # fmt: skip
VAE_PATCHES = ("core-vae", "wan-vae", "hunyuan-vae")
FRAMEPACK_PATCHES = (
    "framepack-import", "framepack-unload", "framepack-memory", "framepack-preview",
)  # fmt: skip
SERVED_MODULES = ("raster",)
# With a switch each in ComfyUI's settings; "prompts" has a setting of its own.
PATCHES = (*HUNYUAN3D_PATCHES, *SERVED_MODULES, *VAE_PATCHES, *FRAMEPACK_PATCHES)
NAMES = (*PATCHES, "prompts")
Mode = Literal["on", "off", "auto"]
_MODES: tuple[str, ...] = get_args(Mode)

VAE_VARIABLE = "HY3D_ROCM_VAE"
VaeMode = Literal["off", "protect", "full", "cpu"]
VAE_MODES: tuple[VaeMode, ...] = get_args(VaeMode)

ON_OFF = ("on", "off")
_said: set[str] = set()
_lock = threading.Lock()


def say_once(text: str, level: int = logging.WARNING) -> None:
    """A line in the log; nothing if this process has said the same before."""
    with _lock:
        if text in _said:
            return
        _said.add(text)
    _LOGGER.log(level, "hy3d_rocm: %s", text)


def say_wrong(what: str, value: object, choices: Sequence[str]) -> None:
    """Warns once that `value` is none of `choices`."""
    say_once(f"{what} is {value!r} and is passed over; give one of {', '.join(choices)}")


def read_choice(environ: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """The one of `choices` (lower case) that the variable `name` holds, in upper or lower case;
    None if it is not set or, with one line, holds none of them."""
    asked = environ.get(name, "").strip().lower()
    if asked in choices:
        return asked
    if asked:
        say_wrong(name, environ[name], choices)
    return None


def is_off(environ: Mapping[str, str], name: str) -> bool:
    """Whether the switch `name` (HY3D_ROCM, HY3D_ROCM_ENV, HY3D_RASTER) is off; on is the default,
    and what a value that is neither counts as."""
    return read_choice(environ, name, ON_OFF) == "off"


class Choice(NamedTuple):
    """What the user wrote: the mode, the names to leave out, and what was wrong with it."""

    mode: Mode
    left_out: frozenset[str]
    problem: str | None


def read_patch_choice(environ: Mapping[str, str]) -> Choice:
    """What HY3D_ROCM_PATCH asks for; "off" with a sentence where it cannot be read."""
    text = environ.get(PATCH_VARIABLE, "")
    words = [word.strip().lower() for word in text.split(",")]
    modes = [word for word in words if word and not word.startswith("-")]
    left_out = [word[1:].strip() for word in words if word.startswith("-")]
    wrong = [_wrong(word, _MODES) for word in modes if word not in _MODES]
    wrong += [_wrong(name, NAMES, "-") for name in left_out if name not in NAMES]
    if len(set(modes)) > 1 and not wrong:
        wrong = [f"{' and '.join(modes)} at once"]
    if wrong:
        return Choice(
            "off",
            frozenset(NAMES),
            f"{PATCH_VARIABLE}={text} is not understood ({'; '.join(wrong)}): nothing is "
            f"corrected in place. Give one of {', '.join(_MODES)}, then ,-NAME for each patch to "
            f"leave out (patches: {', '.join(NAMES)}), and start again",
        )
    mode: Mode = "on" if "on" in modes else "off" if "off" in modes else "auto"
    return Choice(mode, frozenset(left_out), None)


def _wrong(word: str, known: tuple[str, ...], sign: str = "") -> str:
    """The word, and the known one that it is nearest to: of the other kind too, as `-off` and
    `delight` are."""
    import difflib

    others = (*_MODES, *(f"-{name}" for name in NAMES))
    for choices in ([sign + name for name in known], others):
        if near := difflib.get_close_matches(sign + word, choices, 1):
            return f"{sign}{word}: did you mean {near[0]}?"
    return f"{sign}{word}"
