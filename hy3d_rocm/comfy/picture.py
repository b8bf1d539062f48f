"""The status as a picture: sections of lines and a bar, drawn with Pillow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

WIDTH = 1024  # pixels
MARGIN = 28
TEXT = 19  # height of the letters, pixels
LINE = 27
GAP = 16  # between sections
BAR = 18
MAX_LINES = 120  # of all sections; what is beyond is counted in the last line

BACKGROUND, CARD = (22, 24, 29), (33, 36, 43)
BRIGHT, DIM, ACCENT, WARM = (232, 234, 238), (168, 174, 186), (98, 178, 255), (255, 166, 87)


class Section(NamedTuple):
    """A title, its lines, and how full the bar under them is (0..1; None: no bar)."""

    title: str
    lines: Sequence[str]
    full: float | None = None


def draw(title: str, sections: Sequence[Section]) -> torch.Tensor:
    """The sections one under the other, long lines wrapped: (1, H, WIDTH, 3) float32 in 0..1."""
    fonts = load_font(TEXT), load_font(TEXT + 9)
    measure = cache(fonts[0].getlength)
    wrapped = _shortened([_fitted(section, measure) for section in sections])
    height = 2 * MARGIN + LINE + sum(_height(section) + GAP for section in wrapped)
    image = Image.new("RGB", (WIDTH, height), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, MARGIN - 8), title, BRIGHT, fonts[1])
    y = MARGIN + LINE + GAP
    for section in wrapped:
        _draw_section(pen, section, y, fonts[0])
        y += _height(section) + GAP
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)[None]


def load_font(size: int) -> Any:
    """Pillow's own, about `size` pixels high where Pillow has FreeType."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, OSError, ImportError):  # an old Pillow, or one without FreeType
        return ImageFont.load_default()


def _height(section: Section) -> int:
    bar = 0 if section.full is None else BAR + 8
    return LINE * (1 + len(section.lines)) + bar + 18


def _draw_section(pen: Any, section: Section, y: int, font: Any) -> None:
    box = (MARGIN, y, WIDTH - MARGIN, y + _height(section))
    pen.rounded_rectangle(box, radius=8, fill=CARD)
    left, y = MARGIN + 14, y + 8
    pen.text((left, y), section.title, ACCENT, font)
    for line in section.lines:
        y += LINE
        pen.text((left, y), line, BRIGHT if not line.startswith("  ") else DIM, font)
    if section.full is not None:
        _draw_bar(pen, section.full, (left, y + LINE + 4, WIDTH - MARGIN - 14))


def _draw_bar(pen: Any, full: float, place: tuple[int, int, int]) -> None:
    left, top, right = place
    share = min(max(full, 0.0), 1.0)
    pen.rounded_rectangle((left, top, right, top + BAR), radius=4, fill=BACKGROUND)
    if (end := left + round(share * (right - left))) > left:
        colour = WARM if share > 0.9 else ACCENT
        pen.rounded_rectangle((left, top, end, top + BAR), radius=4, fill=colour)


def _fitted(section: Section, measure: Callable[[str], float]) -> Section:
    width = WIDTH - 2 * MARGIN - 28
    lines = [part for line in section.lines for part in _wrapped(line, measure, width)]
    return section._replace(lines=lines)


def _wrapped(line: str, measure: Callable[[str], float], width: float) -> list[str]:
    """`line` in pieces that fit; those after the first are indented. A long word is cut.

    measure: the width of one letter, in pixels; kerning is left out of account.
    """
    done: list[str] = []
    rest = line.rstrip()
    while len(done) < MAX_LINES:
        ends = list(accumulate(map(measure, rest)))
        if not ends or ends[-1] <= width:
            break
        count = bisect_right(ends, width)
        space = rest.rfind(" ", 8, count + 1)
        cut = space if space > 0 else max(count, 8)
        done.append(rest[:cut])
        rest = "    " + rest[cut:].strip()
    return [*done, rest]


def _shortened(sections: Sequence[Section]) -> list[Section]:
    """The first MAX_LINES lines, so that no list makes a picture of endless height."""
    kept: list[Section] = []
    left, total = MAX_LINES, sum(len(section.lines) for section in sections)
    for section in sections:
        if left <= 0:
            break
        lines = section.lines[:left]
        left -= len(lines)
        kept.append(section._replace(lines=lines))
    if total > MAX_LINES:
        more = f"{total - MAX_LINES} lines more are in the text"
        kept[-1] = kept[-1]._replace(lines=[*kept[-1].lines, more])
    return kept
