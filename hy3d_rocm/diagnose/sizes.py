"""What the figures of an out-of-memory sentence say."""

from __future__ import annotations

import re

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,4})?) (bytes|[KMG]iB)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}", re.IGNORECASE)
_TOTAL = re.compile(rf"total capac\w+ of {_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free", re.IGNORECASE)
_RESERVED = re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated", re.IGNORECASE)
_MEMORY_RULES = ("hip-out-of-memory", "cuda-out-of-memory", "gpu-out-of-memory")


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def memory_note(rule: str, text: str) -> str:
    """A sentence, or "" where the line has no figures or they say nothing special."""
    if rule not in _MEMORY_RULES:
        return ""
    asked, total, free = _bytes(_ASKED, text), _bytes(_TOTAL, text), _bytes(_FREE, text)
    if asked is None or total is None:
        return ""
    if asked > total:
        return (
            "One request was larger than the whole card: it is one operation (a convolution's"
            " im2col, attention without tiles) and not the sum of the models."
        )
    reserved = _bytes(_RESERVED, text) or 0.0
    if free is not None and free < total and asked < 0.8 * free:
        return (
            "More was free than was asked for, so the card's size is not the limit: another process"
            " took it in that moment, or the driver or the host's memory had none left."
        )
    if free is not None and reserved + free > asked:
        return (
            "PyTorch holds as much as was asked for, in pieces: emptying its allocator once between"
            " the sampler and the decode helps."
        )
    return ""
