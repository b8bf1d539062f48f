"""What the figures of an out-of-memory sentence say."""

from __future__ import annotations

import re
from collections.abc import Callable

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,4})?) (bytes|[KMG]iB)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}", re.IGNORECASE)
_TOTAL = re.compile(rf"total capac\w+ of {_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free", re.IGNORECASE)
_HELD = re.compile(rf"{_SIZE} is allocated by PyTorch", re.IGNORECASE)
_RESERVED = re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated", re.IGNORECASE)
_MEMORY_RULES = ("hip-out-of-memory", "cuda-out-of-memory", "gpu-out-of-memory")
_GIB = 2.0**30


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def _free_but_refused(text: str) -> bool:
    """A quarter of the card was free, and more than was asked for (some drivers say nonsense)."""
    asked, total, free = _bytes(_ASKED, text), _bytes(_TOTAL, text), _bytes(_FREE, text)
    if asked is None or total is None or free is None:
        return False
    return total / 4 < free <= total and asked < 0.8 * free


def _own_and_rest(text: str) -> tuple[float, float, float, float] | None:
    """What was asked for, the whole card, what was free, and what this process holds of it."""
    asked, total, free = _bytes(_ASKED, text), _bytes(_TOTAL, text), _bytes(_FREE, text)
    held = _bytes(_HELD, text)
    if asked is None or total is None or free is None or held is None:
        return None
    return asked, total, free, held + (_bytes(_RESERVED, text) or 0.0)


def _held_elsewhere(text: str) -> bool:
    """Less than a third of what is taken is PyTorch's in this process."""
    asked, total, free, own = _own_and_rest(text) or (0.0, 0.0, 0.0, 0.0)
    return 0 <= free < asked < total - own and total - free > 3 * own


def _most_of_the_card(text: str) -> bool:
    """One request for more than six tenths of the card."""
    asked, total = _bytes(_ASKED, text), _bytes(_TOTAL, text)
    return asked is not None and total is not None and asked > max(0.6 * total, 4 * _GIB)


def _first_request(text: str) -> bool:
    """Less than a hundredth of the card is PyTorch's, nine tenths are free, and it was too much."""
    asked, total, free, own = _own_and_rest(text) or (0.0, 0.0, 0.0, 0.0)
    return own < 0.01 * total and 0.9 * total <= free <= total and asked > free


FIGURES: dict[str, Callable[[str], bool]] = {
    "free but refused": _free_but_refused,
    "held elsewhere": _held_elsewhere,
    "most of the card": _most_of_the_card,
    "first request": _first_request,
}


def memory_note(rule: str, text: str) -> str:
    """A sentence, or "" where the line has no figures or they say nothing special."""
    if rule not in _MEMORY_RULES:
        return ""
    asked, free = _bytes(_ASKED, text), _bytes(_FREE, text)
    reserved = _bytes(_RESERVED, text)
    if asked is None or free is None or reserved is None or not free < asked < reserved + free:
        return ""
    return (
        "PyTorch holds as much as was asked for, in pieces: emptying its allocator once between"
        " the sampler and the decode helps."
    )
