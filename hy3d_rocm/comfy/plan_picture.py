"""A plan as a picture: a bar for each way, its estimated time, and the budget as a line. Pillow
only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from hy3d_rocm.comfy import picture
from hy3d_rocm.comfy.picture import (
    ACCENT,
    BACKGROUND,
    BRIGHT,
    CARD,
    DIM,
    MARGIN,
    TEXT,
    WARM,
    WIDTH,
    cut,
    load_font,
)
from hy3d_rocm.tools.planning import seconds_text
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.decoding.planning.planner import Candidate, Need
    from hy3d_rocm.tools.planning import Explained

__all__ = ["draw", "words"]

_ROW, _BAR, _TOP, _FOOT = 64, 20, 116, 100
# The node has inputs above its picture: it is wider than tall, so that it can be read there.
TALLEST = WIDTH * 4 // 5
_MOST_ROWS = (TALLEST - _TOP - _FOOT) // _ROW
_FITS, _TOO_MUCH, _HOST = (126, 211, 133), (120, 84, 84), (80, 92, 110)
_COLOURS = {
    "taken": ACCENT, "fits": _FITS, "does not fit": _TOO_MUCH, "on the host": _HOST, "budget": WARM,
}  # fmt: skip
_TEXT_WIDTH = 300  # right of the bars
# Where something fits, bars of more than so many budgets are cut, and look so: their size is told.
_BUDGETS = 2.5
# A budget of more than so many times the largest need would press the bars flat: it is told.
_FLAT = 4


def draw(found: Explained) -> torch.Tensor:
    """(1, H, WIDTH, 3) float32 in 0..1, H <= TALLEST."""
    rows, budget = _shown(found), found.budget.device_bytes
    image = Image.new("RGB", (WIDTH, _TOP + _ROW * len(rows) + _FOOT), BACKGROUND)
    pen, large, small = ImageDraw.Draw(image), load_font(TEXT + 8), load_font(TEXT)
    shape = "x".join(str(n) for n in found.job.out_shape)
    pen.text((MARGIN, 20), f"Memory plan: {found.job.family.name}, {shape}", BRIGHT, large)
    right, top = WIDTH - MARGIN - _TEXT_WIDTH, _edge(found, rows)
    about = f"on {found.job.device}, beyond the weights; budget {size_text(budget, 2)}"
    about += ", above this picture" if budget > top else ""
    about += "; times are estimates" if any(c.need and c.need.seconds for c in rows) else ""
    pen.text((MARGIN, 62), cut(about, small), DIM, small)
    for number, candidate in enumerate(rows):
        place = _TOP + number * _ROW, right, top
        _row(pen, small, candidate, place, found.is_taken(candidate))
        if budget <= top:
            x, low = _x(budget, right, top), place[0] + 28
            pen.line((x, low - 5, x, low + _BAR + 5), fill=WARM, width=2)
    y = _TOP + _ROW * len(rows)
    pen.text((MARGIN, y + 14), cut(_last_line(found, len(rows)), small), BRIGHT, small)
    x = MARGIN
    for name, colour in _COLOURS.items():
        pen.rectangle((x, y + 58, x + 12, y + 70), fill=colour)
        pen.text((x + 20, y + 52), name, DIM, small)
        x += 48 + int(small.getlength(name))
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)[None]


def _last_line(found: Explained, rows: int) -> str:
    if found.plan is not None:
        line = f"taken: {found.plan.way.name}"
    elif any(c.fits for c in found.candidates):
        line = "what was asked for does not fit"
    else:
        least = _least(found)
        line = "nothing fits"
        line += f"; the least is {_bytes(least.need)}" if least and least.need else ""
    left_out = len(found.candidates) - rows
    return line + (f"; {left_out} more are in the text" if left_out else "")


def _shown(found: Explained) -> list[Candidate]:
    """The first that there is room for, and in any case what is taken, or, where nothing is, what
    needs least."""
    rows = list(found.candidates)
    kept, others = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    wanted = [c for c in others if found.is_taken(c)]
    if found.plan is None:
        wanted = [c for c in others if c is _least(found)]
    return [*kept[:-1], *(wanted[:1] or kept[-1:])]


def _least(found: Explained) -> Candidate | None:
    """What the least budget would do for; nothing that is on the host alone."""
    known = [
        (c.need.device_bytes + (c.need.host_bytes if found.budget.is_unified else 0), c)
        for c in found.candidates
        if c.need is not None and c.need.device_bytes
    ]
    return min(known, key=lambda entry: entry[0])[1] if known else None


def words(title: str, text: str) -> torch.Tensor:
    """Lines as a picture."""
    return picture.draw(title, [picture.Section(title, text.splitlines())])


def _edge(found: Explained, rows: list[Candidate]) -> float:
    """Bytes at the bars' right end."""
    most = max((_all_of(c.need) for c in rows if c.need), default=1)
    budget = max(found.budget.device_bytes, 1)
    if found.plan is not None:
        most = min(most, round(_BUDGETS * budget))
    return (most if budget > _FLAT * most else max(most, budget)) * 1.05


def _row(
    pen: Any, font: Any, candidate: Candidate, place: tuple[int, int, float], taken: bool
) -> None:
    y, right, top = place
    bright = BRIGHT if taken else DIM
    pen.text((MARGIN, y), cut(candidate.way.name, font, right - MARGIN), bright, font)
    low = y + 28
    pen.rectangle((MARGIN, low, right, low + _BAR), fill=CARD)
    if candidate.need is None:
        pen.text((right + 12, low - 4), "can't be told", DIM, font)
        return
    need = candidate.need
    colour = ACCENT if taken else _FITS if candidate.fits else _TOO_MUCH
    first, last = _x(need.device_bytes, right, top), _x(_all_of(need), right, top)
    if need.device_bytes:
        pen.rectangle((MARGIN, low, first, low + _BAR), fill=colour)
    if last > first:
        pen.rectangle((first, low, last, low + _BAR), fill=_HOST)
    if _all_of(need) > top:
        for x in (right - 20, right - 12):
            pen.line((x, low + _BAR, x + 8, low), fill=BACKGROUND, width=3)
    pen.text((right + 12, y), _time(need), bright, font)
    pen.text((right + 12, low - 4), _bytes(need), bright, font)


def _all_of(need: Need) -> int:
    return need.device_bytes + need.host_bytes


def _bytes(need: Need) -> str:
    """ "3.78 GB + host 5.82 GB"."""
    sizes = [size_text(need.device_bytes, 2)] if need.device_bytes or not need.host_bytes else []
    sizes += [f"host {size_text(need.host_bytes, 2)}"] if need.host_bytes else []
    return ("at least " if need.unknown else "") + " + ".join(sizes)


def _time(need: Need) -> str:
    """ "~1.4 s, copies 32.7 GB", "" where nobody estimated anything."""
    said = [f"~{seconds_text(need.seconds)}"] if need.seconds else []
    moved = need.stored_bytes + need.loaded_bytes
    said += [f"copies {size_text(moved)}"] if moved else []
    return ", ".join(said)


def _x(count: int, right: int, top: float) -> int:
    return MARGIN + round(min(count / top, 1.0) * (right - MARGIN))
