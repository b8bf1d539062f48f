"""What PyTorch's allocator says to a value of PYTORCH_*_ALLOC_CONF, told without torch.

Two parsers are re-told: the one up to torch 2.8 (c10/cuda/CUDAAllocatorConfig.cpp, tokens are
enforced) and the one since 2.9 (c10/core/AllocatorConfig.{h,cpp}: its checkToken only checks that
a token is there). tests/unit/diagnose/env/test_allocator.py holds the second one against torch's
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hy3d_rocm.diagnose.tables import words_of

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
