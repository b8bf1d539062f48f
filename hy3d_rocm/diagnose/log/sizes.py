"""What the figures of an out-of-memory sentence say."""

from __future__ import annotations

import re
from collections.abc import Callable

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,4})?) (bytes|[KMG]iB)"
_FIGURES = {
    name: re.compile(pattern.format(size=_SIZE), re.IGNORECASE)
    for name, pattern in {
        "asked": "Tried to allocate {size}",
        "total": r"total capac\w+ of {size}",
        "free": "of which {size} is free",
        "held": "{size} is allocated by PyTorch",
        "reserved": "and {size} is reserved by PyTorch but unallocated",
    }.items()
}
_MEMORY_RULES = ("hip-out-of-memory", "cuda-out-of-memory", "gpu-out-of-memory")
_GIB = 2.0**30


def _bytes(text: str, *names: str) -> list[float]:
    """What a text has of these; zeros where it lacks one."""
    found = [_FIGURES[name].search(text) for name in names]
    sizes = [float(one[1]) * _UNITS[one[2].lower()] for one in found if one]
    return sizes if len(sizes) == len(names) else [0.0] * len(names)


def _free_but_refused(text: str) -> bool:
    """A quarter of the card was free, and more than was asked for (some drivers say nonsense)."""
    asked, total, free = _bytes(text, "asked", "total", "free")
    return total / 4 < free <= total and asked < 0.8 * free


def _own_and_rest(text: str) -> tuple[float, float, float, float]:
    """What was asked for, the whole card, what was free, and what this process holds of it."""
    asked, total, free, held = _bytes(text, "asked", "total", "free", "held")
    return asked, total, free, held + (_bytes(text, "reserved")[0] if total else 0.0)


def _held_elsewhere(text: str) -> bool:
    """Less than a third of what is taken is PyTorch's in this process."""
    asked, total, free, own = _own_and_rest(text)
    return 0 <= free < asked < total - own and total - free > 3 * own


def _most_of_the_card(text: str) -> bool:
    """One request for more than six tenths of the card."""
    asked, total = _bytes(text, "asked", "total")
    return asked > max(0.6 * total, 4 * _GIB)


def _first_request(text: str) -> bool:
    """Less than a hundredth of the card is PyTorch's, nine tenths are free, and it was too much."""
    asked, total, free, own = _own_and_rest(text)
    return own < 0.01 * total and 0.9 * total <= free <= total and asked > free


FIGURES: dict[str, Callable[[str], bool]] = {
    "free but refused": _free_but_refused,
    "held elsewhere": _held_elsewhere,
    "most of the card": _most_of_the_card,
    "first request": _first_request,
}


def memory_note(rule: str, text: str) -> str:
    """A sentence, or "" where the line has no figures or they say nothing special."""
    asked, free, reserved = _bytes(text, "asked", "free", "reserved")
    if rule not in _MEMORY_RULES or not free < asked < reserved + free:
        return ""
    return (
        "PyTorch holds as much as was asked for, in pieces: emptying its allocator once between"
        " the sampler and the decode helps."
    )
