"""A plan as a picture: a bar for each way, and the budget as a line. Pillow only."""

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
    load_font,
)
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.decode.planning.planner import Candidate
    from hy3d_rocm.decode.tools.planning import Explained

__all__ = ["draw", "words"]

_ROW, _BAR, _TOP, _FOOT = 64, 20, 116, 72
# The node has inputs above its picture: it is wider than tall, so that it can be read there.
TALLEST = WIDTH * 4 // 5
_MOST_ROWS = (TALLEST - _TOP - _FOOT) // _ROW
_FITS, _TOO_MUCH, _HOST = (126, 211, 133), (120, 84, 84), (80, 92, 110)
_TEXT_WIDTH = 300  # right of the bars
# Ways that need more than so many budgets end at the edge: their size is told.
_BUDGETS = 2.5


def draw(found: Explained) -> torch.Tensor:
    """(1, H, WIDTH, 3) float32 in 0..1, H <= TALLEST."""
    rows = _shown(found)
    image = Image.new("RGB", (WIDTH, _TOP + _ROW * len(rows) + _FOOT), BACKGROUND)
    pen, large, small = ImageDraw.Draw(image), load_font(TEXT + 8), load_font(TEXT)
    shape = "x".join(str(n) for n in found.job.out_shape)
    pen.text((MARGIN, 20), f"Memory plan: {found.job.family.name}, {shape}", BRIGHT, large)
    device = f"on {found.job.device}, beyond the weights; budget "
    pen.text((MARGIN, 62), device + size_text(found.budget.device_bytes, 2), DIM, small)
    right = WIDTH - MARGIN - _TEXT_WIDTH
    top = _edge(found)
    for number, candidate in enumerate(rows):
        y = _TOP + number * _ROW
        _row(pen, small, candidate, (y, right, top), found.is_taken(candidate))
    x = MARGIN + round(min(found.budget.device_bytes / top, 1.0) * (right - MARGIN))
    bottom = _TOP + _ROW * len(rows)
    for y in range(_TOP - 6, bottom, 12):
        pen.line((x, y, x, min(y + 7, bottom)), fill=WARM, width=2)
    line = "nothing fits" if found.plan is None else f"taken: {found.plan.way.name}"
    if left_out := len(found.candidates) - len(rows):
        line += f"; {left_out} more are in the text"
    pen.text((MARGIN, bottom + 18), line, BRIGHT, small)
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)[None]


def _shown(found: Explained) -> list[Candidate]:
    """The first that there is room for, and what is taken in any case."""
    rows = list(found.candidates)
    kept, others = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    return [*kept[:-1], *([c for c in others if found.is_taken(c)][:1] or kept[-1:])]


def words(title: str, text: str) -> torch.Tensor:
    """Lines as a picture."""
    return picture.draw(title, [picture.Section(title, text.splitlines())])


def _edge(found: Explained) -> float:
    """Bytes at the bars' right end."""
    needs = [c.need.device_bytes + c.need.host_bytes for c in found.candidates if c.need]
    budget = max(found.budget.device_bytes, 1)
    return max(min(max(needs, default=budget), _BUDGETS * budget), budget) * 1.05


def _row(
    pen: Any, font: Any, candidate: Candidate, place: tuple[int, int, float], taken: bool
) -> None:
    y, right, top = place
    pen.text((MARGIN, y), candidate.way.name, BRIGHT if taken else DIM, font)
    low = y + 28
    pen.rectangle((MARGIN, low, right, low + _BAR), fill=CARD)
    if candidate.need is None:
        pen.text((right + 12, low - 4), "can't be told", DIM, font)
        return
    need = candidate.need
    colour = ACCENT if taken else _FITS if candidate.fits else _TOO_MUCH
    first = _x(need.device_bytes, right, top)
    last = _x(need.device_bytes + need.host_bytes, right, top)
    pen.rectangle((MARGIN, low, first, low + _BAR), fill=colour)
    if last > first:
        pen.rectangle((first, low, last, low + _BAR), fill=_HOST)
    text = ("at least " if need.unknown else "") + size_text(need.device_bytes, 2)
    if need.host_bytes:
        text += f" + host {size_text(need.host_bytes, 2)}"
    pen.text((right + 12, low - 4), text, BRIGHT if taken else DIM, font)


def _x(count: int, right: int, top: float) -> int:
    return MARGIN + round(min(count / top, 1.0) * (right - MARGIN))
