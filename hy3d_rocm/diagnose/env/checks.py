"""What the rules of rules/*.toml find in a variable's value: functions that are named there.

A check takes a Case and says True or False, or the words that fill {found} in its rule's effect.
One with arguments is made from the texts that follow its name in the file, by a function that
returns a Check.

What PyTorch's allocator says to a value of PYTORCH_*_ALLOC_CONF is told without torch. Two parsers
are re-told: the one up to torch 2.8 (c10/cuda/CUDAAllocatorConfig.cpp, tokens are enforced) and the
one since 2.9 (c10/core/AllocatorConfig.{h,cpp}: its checkToken only checks that a token is there).
tests/unit/diagnose/env/test_allocator.py holds the second one against torch's own.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hy3d_rocm.diagnose.env.gpu import architecture
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.tables import words, words_of
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
    new = problem(text, strict=False, any_key=any_key)
    if torch >= _NEW_PARSER_SINCE:
        return new
    old = problem(text, strict=True, any_key=any_key)
    if torch:
        if not old and torch < (2, 1) and "expandable_segments" in keys(text):
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
    return without_refused(case.value, lambda text: _refused(case, text))


def has(key: str, value: str = "") -> Check:
    """The setting, as "key:value", where it is there and has this value (any, if "")."""

    def check(case: Case) -> str:
        words = tokens(case.value)
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


_SMALLEST_MB = {"max_split_size_mb": 20, "max_non_split_rounding_mb": 20}


class RefusedError(Exception):
    """What PyTorch would have thrown."""


def tokens(text: str) -> list[str]:
    """The value in PyTorch's own pieces: words and , : [ ]; white space is dropped."""
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s", "", text))


def problem(text: str, *, strict: bool, any_key: bool = False) -> str:
    """What PyTorch would throw for this value, "" if it takes it.

    strict: the parser up to torch 2.8. any_key: nothing is said of keys that are not known here.
    """
    try:
        words = _Words(text, strict)
        while words.left:
            _setting(words, any_key)
            if words.left:
                words.separator(",")
    except RefusedError as error:
        return str(error)
    return ""


def without_refused(text: str, refused: Callable[[str], str]) -> str | None:
    """The value with only the settings that PyTorch takes; None if nothing is left.

    refused: `problem` with the machine's parser chosen. Settings are tried one by one, then what
    is left as a whole.
    """
    kept = [part for part in _settings(text) if part.strip() and not refused(part)]
    whole = ",".join(kept)
    return whole if kept and not refused(whole) else None


def keys(text: str) -> frozenset[str]:
    """The names of the settings in a value."""
    return frozenset(part.partition(":")[0].strip() for part in _settings(text))


def _settings(text: str) -> list[str]:
    """The comma-separated settings, commas in [] not counted."""
    return re.split(r",(?![^\[]*\])", text)


class _Words:
    """The pieces of a value, from the first to the last."""

    def __init__(self, text: str, strict: bool) -> None:
        self.left, self.strict = tokens(text), strict

    def peek(self) -> str:
        if not self.left:
            raise RefusedError("the value ends where more was expected (Index out of bounds)")
        return self.left[0]

    def take(self) -> str:
        self.peek()
        return self.left.pop(0)

    def separator(self, wanted: str) -> None:
        """Any piece does for the newer parser."""
        if self.strict and self.left[:1] != [wanted]:
            raise RefusedError(f"Error parsing CachingAllocator settings, expected {wanted}")
        self.take()


def _setting(words: _Words, any_key: bool) -> None:
    key = words.take()
    if not any_key and key not in words_of("ALLOCATOR_KEYS"):
        form = (
            "Unrecognized CachingAllocator option: {}" if words.strict else "Unrecognized key '{}'"
        )
        raise RefusedError(form.format(key))
    words.separator(":")
    value = words.take()
    if key == "roundup_power2_divisions":
        _divisions(words, value)
        return
    _check_value(key, value, words.strict)
    if value == "[":
        if "]" not in words.left:
            raise RefusedError("Expected closing bracket ']'")
        del words.left[: words.left.index("]") + 1]


def _check_value(key: str, value: str, strict: bool) -> None:
    if key in words_of("ALLOCATOR_SWITCHES") and value not in ("True", "False"):
        raise RefusedError(f"{key} expects True or False but got '{value}'")
    if key in _SMALLEST_MB:
        number, least = _whole(value), _SMALLEST_MB[key]
        # A negative number wraps around to a huge one.
        if 0 <= number < least or (strict and number == least):
            raise RefusedError(f"{key} too small, must be {'>' if strict else '>='} {least}")
    if key == "garbage_collection_threshold" and not 0.0 < _real(value) < 1.0:
        raise RefusedError("garbage_collection_threshold is invalid, set it in (0.0, 1.0)")
    if key == "backend" and value not in (known := words_of("ALLOCATOR_BACKENDS")):
        raise RefusedError(f"Unknown allocator backend '{value}', options are {', '.join(known)}")


def _divisions(words: _Words, first: str) -> None:
    if first != "[":
        if not _is_power_of_2(_whole(first)):
            raise RefusedError("For roundups, the divisions has to be power of 2")
        return
    while words.left and words.peek() != "]":
        interval = words.take()
        words.separator(":")
        division = _whole(words.take())
        if division != 0 and not _is_power_of_2(division):
            raise RefusedError("For roundups, the divisions has to be power of 2 or 0")
        if interval != ">" and not _is_power_of_2(_whole(interval)):
            raise RefusedError("For roundups, the intervals have to be power of 2")
        if words.peek() != "]":
            words.separator(",")
    words.take()


def _whole(text: str) -> int:
    """As C++'s stoull and stoi: what follows the number is ignored."""
    found = re.match(r"[+-]?\d+", text)
    if not found:
        raise RefusedError(f"'{text}' is no whole number")
    number = int(found[0])
    if abs(number) >= 2**64:
        raise RefusedError(f"'{text}' is too large")
    return number


def _real(text: str) -> float:
    """As C++'s stod."""
    found = re.match(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", text, re.I)
    if not found:
        raise RefusedError(f"'{text}' is no number")
    return float(found[0])


def _is_power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
