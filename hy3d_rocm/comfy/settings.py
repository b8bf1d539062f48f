"""What the user has set: the environment first, then ComfyUI's settings, then the defaults.

The front end keeps the settings of web/settings.js in `<user directory>/default/
comfy.settings.json`. Under `--multi-user` a prompt does not say whose it is, so no file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3d_rocm.decoding.device_names import ALL, ONE, parse_devices
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.diagnose.env.choices import (
    PATCHES,
    VAE_MODES,
    VAE_VARIABLE,
    VaeMode,
    read_choice,
    say_once,
    say_wrong,
)
from hy3d_rocm.offload.memory import POLICIES, Policy, check_policy
from hy3d_rocm.seed import SEED_MODES, SeedMode, check_mode

SETTING = "setting"  # a node's choice that means: as the settings say
OFFLOADS = POLICIES
PREFIX = "hy3d_rocm."
VARIABLES = {
    "seed_mode": "HY3D_ROCM_SEED_MODE",
    "offload": "HY3D_ROCM_OFFLOAD",
    "vae": VAE_VARIABLE,
    "vae_budget": "HY3D_ROCM_VAE_BUDGET",
    "vae_devices": "HY3D_ROCM_VAE_DEVICES",
    "protect_prompts": "HY3D_ROCM_PROTECT_PROMPTS",
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "seed_mode": SEED_MODES, "offload": OFFLOADS, "vae": VAE_MODES,
}  # fmt: skip
_DEFAULTS = {
    "seed_mode": "stream", "offload": "auto", "vae": "protect", "vae_budget": "auto",
    "vae_devices": ONE,
}  # fmt: skip
# Settings that are a text: what reads it, ValueError for what makes none, and examples.
_TEXTS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "vae_budget": (parse_budget, ("auto", '"6GB"', '"80%"')),
    "vae_devices": (parse_devices, (ONE, ALL, '"0,1"')),
}
_YES_NO = dict.fromkeys(("on", "true", "yes", "1"), "on") | dict.fromkeys(
    ("off", "false", "no", "0"), "off"
)

_read: tuple[tuple[str, int, int], dict[str, Any]] | None = None  # what of which file: values


@dataclass(frozen=True)
class Settings:
    """seed_mode: one of SEED_MODES; offload: one of OFFLOADS; patches_off: names of PATCHES.

    vae: how other people's VAE nodes run: "off" as they are, "protect" with failing convolutions
    caught, "full" in parts within vae_budget too ("auto", "6GB", "80%": see parse_budget), "cpu"
    on the CPU. vae_devices: which GPUs decode together (see parse_devices).
    protect_prompts: failing convolutions are caught in every node of a prompt.
    """

    seed_mode: SeedMode
    offload: Policy
    patches_off: frozenset[str]
    vae: VaeMode = "protect"
    vae_budget: str = "auto"
    vae_devices: str = ONE
    protect_prompts: bool = False


def current(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings as they are now. Never raises: a wrong value costs one line, once."""
    values = _file_values()
    found: dict[str, Any] = {name: _found(name, environ, values)[0] for name in VARIABLES}
    found["protect_prompts"] = found["protect_prompts"] == "on"
    return Settings(**found, patches_off=_switched_off(values))


def explained(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each setting: its value and where that comes from."""
    values = _file_values()
    lines = []
    for name in VARIABLES:
        value, source = _found(name, environ, values)
        lines.append(f"{name}: {value} ({source})")
    switched_off = _switched_off(values)
    off = [name for name in PATCHES if name in switched_off]
    return [*lines, f"switched off in ComfyUI's settings: {', '.join(off) or 'no patch'}"]


def fingerprint(*names: str) -> str:
    """What the settings named say, as a short text that changes exactly if one of them does.

    names: of VARIABLES or of PATCHES; none: all. KeyError for any other name.
    """
    now = current()
    every = {name: getattr(now, name) for name in VARIABLES} | {
        name: "off" if name in now.patches_off else "on" for name in PATCHES
    }
    return ",".join(f"{name}={every[name]}" for name in names or every)


def seed_mode_for(asked: str) -> SeedMode:
    """A node's choice as a seed mode; "setting" is looked up."""
    return current().seed_mode if asked == SETTING else check_mode(asked)


def offload_for(asked: str) -> Policy:
    """A node's choice as an offload policy; "setting" is looked up. ValueError for neither."""
    if asked not in (SETTING, *OFFLOADS):
        raise ValueError(f"offload is {asked!r}; give one of {SETTING}, {', '.join(OFFLOADS)}")
    return current().offload if asked == SETTING else check_policy(asked)


def _found(name: str, environ: Mapping[str, str], values: Mapping[str, Any]) -> tuple[str, str]:
    """The value of a setting, and where it comes from. A switch is "on" or "off"."""
    variable = VARIABLES[name]
    if name in _TEXTS:
        asked = _text(name, variable, environ.get(variable, ""))
    elif name in _CHOICES:
        asked = read_choice(environ, variable, _CHOICES[name])
    else:
        asked = _YES_NO.get(read_choice(environ, variable, tuple(_YES_NO)) or "")
    if asked is not None:
        return asked, f"{variable} in the environment"
    stored = _stored(name, values)
    if stored is not None:
        return stored, "ComfyUI's settings"
    return _DEFAULTS.get(name, "off"), "default"


def _stored(name: str, values: Mapping[str, Any]) -> str | None:
    """What ComfyUI's settings say; what is none of _CHOICES is a switch."""
    what, value = f"ComfyUI's setting {PREFIX}{name}", values.get(PREFIX + name)
    if value is None:
        return None
    if name in _TEXTS:
        return _text(name, what, value)
    choices = _CHOICES.get(name)
    if choices is None and isinstance(value, bool):
        return "on" if value else "off"
    if choices is not None and isinstance(value, str) and value in choices:
        return value
    say_wrong(what, value, choices or ("true", "false"))
    return None


def _text(name: str, what: str, value: Any) -> str | None:
    """A text that the setting's reader takes."""
    read, examples = _TEXTS[name]
    if not isinstance(value, str):
        say_wrong(what, value, examples)
        return None
    try:
        read(value.strip() or _DEFAULTS[name])
    except ValueError as error:
        say_once(f"{what} is passed over: {error}")
        return None
    return value.strip() or None


def _switched_off(values: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in PATCHES if _stored(f"patch.{name}", values) == "off")


def _settings_file() -> Path | None:
    """The file of ComfyUI's only user; None outside of ComfyUI and where there are several."""
    try:
        import folder_paths
        from comfy.cli_args import args
    except ImportError:
        return None
    if getattr(args, "multi_user", False):
        say_once(
            "ComfyUI runs with --multi-user, where a prompt does not say whose it is: its settings "
            f"are not looked at; use {', '.join(VARIABLES.values())}, or the nodes' inputs"
        )
        return None
    return Path(folder_paths.get_user_directory()) / "default" / "comfy.settings.json"


def _file_values() -> dict[str, Any]:
    """The settings file's values, read again when its time or size has changed."""
    global _read
    path = _settings_file()
    try:
        stat = path.stat() if path is not None else None
    except OSError:  # not there: nobody has changed a setting yet
        stat = None
    if path is None or stat is None:
        return {}
    key = (str(path), stat.st_mtime_ns, stat.st_size)
    known = _read
    if known is not None and (known[0] == key or (known[0][0] == key[0] and not stat.st_size)):
        return known[1]  # an empty file is one that the server is just about to write
    values = _parsed(path)
    _read = (key, values)
    return values


def _parsed(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError) as error:
        say_once(f"{path} cannot be read ({error}): the defaults are used")
        return {}
    if not isinstance(values, dict):
        say_once(f"{path} holds no settings but a {type(values).__name__}: the defaults are used")
        return {}
    return values
