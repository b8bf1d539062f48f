"""What the rules of rules/*.toml find in a variable's value: functions that are named there.

A check takes a Case and says True or False, or the words that fill {found} in its rule's effect.
One with arguments is made from the texts that follow its name in the file, by a function that
returns a Check.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hy3d_rocm.diagnose.env import allocator
from hy3d_rocm.diagnose.env.gpu import architecture
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.tables import words
from hy3d_rocm.memory import wanted_cap

FILLED = 50  # find results: two resolutions; a video VAE has about 25 different convolutions
_CUDA, _HIP, _PLAIN = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_NEW_PARSER_SINCE = (2, 9)
_KEYS_READ_BEFORE = (2, 14)  # keys of later versions were not read
_ORDERS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Case:
    """One variable of one process on one machine."""

    name: str
    value: str
    environ: Mapping[str, str]
    machine: Machine


Check = Callable[[Case], "bool | str"]


def one_of(*values: str) -> Check:
    """The value is one of these, in upper or lower case."""
    wanted = {value.upper() for value in values}
    return lambda case: case.value.strip().upper() in wanted


def equals(*values: str) -> Check:
    """The value is one of these, to the letter."""
    return lambda case: case.value in values


def is_word(*words: str) -> Check:
    """The value is one of these, in upper or lower case, with no blanks around it."""
    return lambda case: case.value.upper() in words


def is_number(*limits: str) -> Check:
    """The value is a number within limits such as ">0" and "<=1"."""
    bounds = [(limit.rstrip("0123456789"), float(limit.lstrip("<>="))) for limit in limits]

    def check(case: Case) -> bool:
        try:
            number = float(case.value)
        except ValueError:
            return False
        return all(_ORDERS[order](number, bound) for order, bound in bounds)

    return check


def makes_no_cap(case: Case) -> bool:
    """ComfyUI's start passes this memory cap over, however large the card is."""
    return bool(wanted_cap({case.name: case.value}, 1 << 60)[1])


# MIOpen's variables


@cache
def miopen_names() -> dict[str, list[str]]:
    """SWITCHES, NUMBERS, TEXTS and LATER of miopen_names.toml, and ALL of them, sorted."""
    kinds = words(Path(__file__).with_name("miopen_names.toml"))
    names = {kind: [f"MIOPEN_{rest}" for rest in rests] for kind, rests in kinds.items()}
    return {**names, "ALL": sorted(name for kind in names.values() for name in kind)}


def _number_of(text: str) -> int | None:
    """As C++'s stoul: None where it throws. What follows the digits is ignored."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found[1]) if found and abs(int(found[1])) < 2**64 else None


def is_no_choice_of(*known: str) -> Check:
    """The value is none of these words and no number."""
    return lambda case: (
        case.value != "" and case.value.upper() not in known and _number_of(case.value) is None
    )


def is_number_outside(low: str, high: str) -> Check:
    def check(case: Case) -> bool:
        number = _number_of(case.value)
        return number is not None and not int(low) <= number <= int(high)

    return check


def has_filled_database(case: Case) -> str:
    filled = case.machine.find_results >= FILLED and one_of("FAST", "2")(case)
    return str(case.machine.find_results) if filled else ""


def is_known_to_miopen(case: Case) -> bool:
    return case.name in miopen_names()["ALL"]


# PyTorch's


def _refused(case: Case, text: str) -> str:
    """What this machine's torch would throw; where its version isn't known, what all would."""
    torch = case.machine.torch
    any_key = not torch or torch >= _KEYS_READ_BEFORE
    new = allocator.problem(text, strict=False, any_key=any_key)
    if torch >= _NEW_PARSER_SINCE:
        return new
    old = allocator.problem(text, strict=True, any_key=any_key)
    if torch:
        if not old and torch < (2, 1) and "expandable_segments" in allocator.keys(text):
            return "Unrecognized CachingAllocator option: expandable_segments"
        return old
    return new and old


def refused_if_read(case: Case) -> str:
    """`_refused`, but "" for a name that this machine's torch does not come to read."""
    torch, environ = case.machine.torch, case.environ
    if case.name == _HIP and _CUDA in environ:
        return ""
    if case.name == _PLAIN and torch:
        replaced = torch >= (2, 13) and (_CUDA in environ or _HIP in environ)
        if replaced or torch < _NEW_PARSER_SINCE:
            return ""
    return _refused(case, case.value)


def repaired(case: Case) -> str | None:
    return allocator.without_refused(case.value, lambda text: _refused(case, text))


def has(key: str, value: str = "") -> Check:
    """The setting, as "key:value", where it is there and has this value (any, if "")."""

    def check(case: Case) -> str:
        words = allocator.tokens(case.value)
        found = (given for name, given in zip(words, words[2:], strict=False) if name == key)
        return next((f"{key}:{given}" for given in found if value in ("", given)), "")

    return check


def has_both(key: str, value: str, other: str) -> Check:
    """`has` of the first, where the second setting is there, too."""
    return lambda case: has(other)(case) and has(key, value)(case)


def read_first(*names: str) -> Check:
    """The first of these that is set: then this variable isn't read."""

    def check(case: Case) -> str:
        return next((name for name in names if name in case.environ), "")

    return check


def collects_nothing(case: Case) -> bool | str:
    capped = any(case.environ.get(f"HY3D_ROCM_MAX_VRAM_{unit}", "") for unit in ("GB", "SHARE"))
    by_torch = has("per_process_memory_fraction")(case)
    return not capped and not by_torch and has("garbage_collection_threshold")(case)


def is_off_with_tunableop(case: Case) -> bool:
    switch = "PYTORCH_TUNABLEOP_ENABLED"
    return case.name != switch and case.environ.get(switch) != "1"


# ROCm's


def _override_of(value: str) -> tuple[int, int, int] | None:
    """What libhsakmt reads: three numbers, nothing behind them; None: it refuses the value."""
    found = re.fullmatch(r"\s*\+?(\d+)\.\s*\+?(\d+)\.\s*\+?(\d+)", value)
    if not found:
        return None
    major, minor, step = (int(part) for part in found.groups())
    return (major, minor, step) if major <= 63 and minor <= 255 and step <= 255 else None


def override_architecture(value: str) -> str:
    """ "11.0.1" is gfx1101; "" for a value that is refused."""
    parts = _override_of(value)
    return architecture(parts[0] * 10000 + parts[1] * 100 + parts[2]) if parts else ""


def is_override(case: Case) -> bool:
    return _override_of(case.value) is not None


def _concerned(case: Case) -> set[str]:
    """Architectures of the GPUs that this override is for."""
    if case.name != "HSA_OVERRIDE_GFX_VERSION" and len(set(case.machine.architectures)) > 1:
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
    (own,) = concerned
    # gfx1151 is of generation 115, gfx90a of 90.
    return f"{own} as {told}" if own[:-1] != told[:-1] else ""


def more_than_rocr(case: Case) -> bool:
    rocr = case.environ.get("ROCR_VISIBLE_DEVICES")
    return rocr is not None and case.value.count(",") > rocr.count(",")
