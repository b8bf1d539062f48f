"""What PyTorch's allocator says to a value of PYTORCH_*_ALLOC_CONF, told without torch.

Two parsers are re-told: the one up to torch 2.8 (c10/cuda/CUDAAllocatorConfig.cpp, tokens are
enforced) and the one since 2.9 (c10/core/AllocatorConfig.{h,cpp}: its checkToken only checks that
a token is there). tests/unit/env/test_allocator.py holds the second one against torch's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Keys of torch 2.13's two parsers. A key that is not here makes torch up to 2.13 throw; what later
# versions know has not been read, so nothing is said of unknown keys there.
KEYS = frozenset(
    "max_split_size_mb max_non_split_rounding_mb garbage_collection_threshold "
    "roundup_power2_divisions expandable_segments pinned_use_background_threads "
    "large_segment_size_mb pinned_max_round_threshold_mb pinned_max_cached_size_mb "
    "backend release_lock_on_cudamalloc release_lock_on_hipmalloc pinned_use_cuda_host_register "
    "pinned_use_hip_host_register graph_capture_record_stream_reuse "
    "pinned_reserve_segment_size_mb pinned_num_register_threads per_process_memory_fraction "
    "pinned_free_catch_all throw_on_cudamalloc_oom".split()
)
BACKENDS = ("native", "cudaMallocAsync", "hipMallocAsync")
_SWITCHES = frozenset(
    "expandable_segments pinned_use_background_threads release_lock_on_cudamalloc "
    "release_lock_on_hipmalloc pinned_use_cuda_host_register pinned_use_hip_host_register".split()
)
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
        _parse(tokens(text), strict, any_key)
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


def _parse(words: list[str], strict: bool, any_key: bool) -> None:
    index = 0
    while index < len(words):
        index = _setting(words, index, strict, any_key) + 1
        if index < len(words):
            _separator(words, index, ",", strict)
            index += 1


def _setting(words: list[str], index: int, strict: bool, any_key: bool) -> int:
    """Index of the last token of the setting that starts at `index`."""
    key = words[index]
    if key not in KEYS and not any_key:
        form = "Unrecognized CachingAllocator option: {}" if strict else "Unrecognized key '{}'"
        raise RefusedError(form.format(key))
    _separator(words, index + 1, ":", strict)
    value = _at(words, index + 2)
    if key == "roundup_power2_divisions":
        return _divisions(words, index + 2, strict)
    _check_value(key, value, strict)
    if value != "[":
        return index + 2
    if "]" not in words[index + 3 :]:
        raise RefusedError("Expected closing bracket ']'")
    return words.index("]", index + 3)


def _check_value(key: str, value: str, strict: bool) -> None:
    if key in _SWITCHES and value not in ("True", "False"):
        raise RefusedError(f"{key} expects True or False but got '{value}'")
    if key in _SMALLEST_MB:
        number, least = _whole(value), _SMALLEST_MB[key]
        # A negative number wraps around to a huge one.
        if 0 <= number < least or (strict and number == least):
            raise RefusedError(f"{key} too small, must be {'>' if strict else '>='} {least}")
    if key == "garbage_collection_threshold" and not 0.0 < _real(value) < 1.0:
        raise RefusedError("garbage_collection_threshold is invalid, set it in (0.0, 1.0)")
    if key == "backend" and value not in BACKENDS:
        raise RefusedError(
            f"Unknown allocator backend '{value}', options are {', '.join(BACKENDS)}"
        )


def _divisions(words: list[str], index: int, strict: bool) -> int:
    if words[index] != "[":
        if not _is_power_of_2(_whole(words[index])):
            raise RefusedError("For roundups, the divisions has to be power of 2")
        return index
    index += 1
    while index < len(words) and words[index] != "]":
        interval = words[index]
        _separator(words, index + 1, ":", strict)
        division = _whole(_at(words, index + 2))
        if division != 0 and not _is_power_of_2(division):
            raise RefusedError("For roundups, the divisions has to be power of 2 or 0")
        if interval != ">" and not _is_power_of_2(_whole(interval)):
            raise RefusedError("For roundups, the intervals have to be power of 2")
        index += 3
        if _at(words, index) != "]":
            _separator(words, index, ",", strict)
            index += 1
    _at(words, index)
    return index


def _at(words: list[str], index: int) -> str:
    if index >= len(words):
        raise RefusedError("the value ends where more was expected (Index out of bounds)")
    return words[index]


def _separator(words: list[str], index: int, wanted: str, strict: bool) -> None:
    found = words[index] if index < len(words) else ""
    if strict and found != wanted:
        raise RefusedError(f"Error parsing CachingAllocator settings, expected {wanted}")
    _at(words, index)


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
