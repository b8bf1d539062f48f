"""Rows as text for people: at most 100 columns."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence

from hy3d_rocm import units
from hy3d_rocm.conv.knowledge.keys import Key
from hy3d_rocm.conv.knowledge.records import Record, Row

WIDTH = 100
_HEAD = ("tier", "verdict", "time", "first", "peak", "by", "when")
_RIGHT = (False, False, True, True, True, False, False)


def groups(rows: Iterable[Row]) -> dict[Key, list[Record]]:
    """Records by key, in the order in which the keys come."""
    found: dict[Key, list[Record]] = {}
    for key, record in rows:
        found.setdefault(key, []).append(record)
    return found


def list_text(rows: Iterable[Row]) -> str:
    """One block a key: its name and what it is, then a line for each tier, the fastest first.
    Columns are aligned over all blocks."""
    blocks = groups(rows)
    tables = {key: list(map(_cells, sorted(blocks[key], key=_by_time))) for key in blocks}
    cells = [_HEAD, *(line for table in tables.values() for line in table)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = [_line(_HEAD, widths)]
    for key, table in tables.items():
        lines += ["", *_title(key)]
        lines += [_line(line, widths) for line in table]
    return "\n".join(lines)


def show_text(key: Key, records: Sequence[Record]) -> str:
    """One key with its machine, all tiers, and what was said about each."""
    fields = {"key": key.name, **key._asdict()}
    width = max(map(len, fields))
    lines = []
    for name, value in fields.items():
        lines += _wrapped(value or "-", f"{name:{width}}  ")
    ordered = sorted(records, key=_by_time)
    cells = [_HEAD, *map(_cells, ordered)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines += ["", _line(_HEAD, widths)]
    for record, line in zip(ordered, cells[1:], strict=True):
        lines.append(_line(line, widths))
        if record.detail:
            lines += _wrapped(" ".join(_printable(record.detail).split()), "      ")
    return "\n".join(lines)


def brief(key: Key) -> str:
    """'3f9a01c2  conv3d 1x8x5x16x16 w8x8x3x3x3 p1x1x1 bias, bf16, gfx1100'."""
    return textwrap.shorten(f"{key.name}  {_what(key)}", WIDTH - 4, placeholder=" ...")


def seconds_text(seconds: float | None) -> str:
    """Milliseconds below a second; "-" where nothing was measured."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 1e4 else f"{seconds:.3g} s"


def bytes_text(count: int | None) -> str:
    """As units.size_text; "-" where nothing was measured."""
    return "-" if count is None else units.size_text(count)


def clock_text(when: float) -> str:
    """Local time; "-" for one that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "-"


def _what(key: Key) -> str:
    return f"{key.op} {key.shape}, {key.dtype}, {key.layout}, {key.architecture}"


def _title(key: Key) -> list[str]:
    return _wrapped(_what(key), f"{key.name}  ")


def _wrapped(text: str, head: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
    )  # fmt: skip


def _cells(record: Record) -> tuple[str, ...]:
    return (
        _printable(record.tier)[:12],
        record.verdict,
        seconds_text(record.seconds),
        seconds_text(record.first_seconds),
        bytes_text(record.peak_bytes),
        record.measured_by,
        clock_text(record.when),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, _RIGHT, strict=True)
    ]
    return ("    " + "  ".join(aligned)).rstrip()


def _by_time(record: Record) -> tuple[bool, float, str]:
    """Healthy ones first, by time."""
    seconds = float("inf") if record.seconds is None else record.seconds
    return record.verdict != "ok", seconds, record.tier


def _printable(text: str) -> str:
    """Without what a terminal would obey: error texts come from drivers."""
    return "".join(c if c.isprintable() else " " for c in text)
