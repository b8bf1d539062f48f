"""Sizes of memory, numbers and tables of them, as people read and type them. Pure: no torch.

1 kB is 2**10 bytes, 1 MB 2**20, 1 GB 2**30, in all that is shown and in all that may be typed; the
spellings KiB, MiB and GiB mean the same. So does the rest of what a user sees: torch's
out-of-memory errors ("15.92 GiB"), ComfyUI's "Total VRAM 24564 MB" and `--reserve-vram`, the size
on a card's box. A budget copied from any of these lines is the budget that was meant.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Sequence

_MOST_DIGITS = 20  # of bytes, before the point
_SHOWN_CHARACTERS = 60  # of what was typed

KB, MB, GB, TB = 2**10, 2**20, 2**30, 2**40

_SHOWN = (("TB", TB), ("GB", GB), ("MB", MB), ("kB", KB))
_TYPED = {
    **dict.fromkeys(("", "b"), 1),
    **{
        f"{prefix}{tail}": size
        for prefix, size in zip("kmgt", (KB, MB, GB, TB), strict=True)
        for tail in ("", "b", "ib")
    },
}
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def size_text(count: int | None, digits: int = 1) -> str:
    """Bytes in the unit that fits: "18.2 GB", "340.0 MB", "12 B"; "unknown" for None."""
    if count is None:
        return "unknown"
    for unit, size in _SHOWN:
        # What would be rounded up to 1024 of a unit is 1 of the next.
        if count >= size * (1 - 0.5 * 10.0**-digits / 1024):
            return f"{count / size:.{digits}f} {unit}"
    return f"{count} B"


def short_text(count: int) -> str:
    """Bytes as "20GB" or "19.5GB": one digit after the point where it is not 0."""
    return f"{round(count / GB, 1):g}GB"


def brief(value: object) -> str:
    """repr(value) for a sentence: one line, cut where it is long, and of numbers too long to be
    written."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no numbers of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def whole_number(text: str) -> int:
    """1 to 999999999 as it is typed for a count or a size in pixels; 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def parse_size(text: str) -> int:
    """Bytes of "6GB", "512 MiB", "1.5g" or "6000000000"; ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    unit = _TYPED.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f'{brief(text)} is no size; write it like "6GB", "512MB" or a number of bytes'
        )
    if len(match[1].partition(".")[0].lstrip("0")) > _MOST_DIGITS:
        raise ValueError(f"{brief(text)} is more than any machine has")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def aligned(rows: Sequence[Sequence[str]], words: Container[int] = (0,)) -> list[str]:
    """Each row as one line; columns of words flush left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def budget_bytes(budget: str | int | None) -> int | None:
    """Bytes of "6GB", "512 MiB", "1.5g", 6000000000 or None (no limit).

    Units are powers of 1024 however they are spelt, as in all that is shown.
    ValueError for anything else, zero included.
    """
    if budget is None:
        return None
    shown, others = brief(budget), "a text such as '6GB', or None"
    if isinstance(budget, bool):
        raise ValueError(f"budget is {budget}; give bytes, {others}")
    try:
        count = parse_size(budget) if isinstance(budget, str) else operator.index(budget)
    except TypeError:
        raise ValueError(f"budget is {shown}; give whole bytes, {others}") from None
    except ValueError:
        raise ValueError(
            f'budget is {shown}; write it like "6GB", "512MB" or a number of bytes'
        ) from None
    if not 0 < count < 2**63:
        raise ValueError(f"budget is {shown}; give more than nothing")
    return count
