"""Sections of lines and a bar as a picture that can be read inside a node, by Pillow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw

from hy3d_rocm.tools.pictures import load_font

WIDTH = 1024  # pixels
# A node shows a picture whole, so one that is taller than wide is too small to be read.
TALLEST = WIDTH
MARGIN = 24
TEXT = 22  # height of the letters, pixels
LINE = 29
GAP = 10  # between sections
BAR = 18
PAD = 12  # inside a section
LABEL = WIDTH // 4  # titles up to that wide stand beside their lines
MAX_LINES = TALLEST // LINE

BACKGROUND, CARD = (22, 24, 29), (33, 36, 43)
BRIGHT, DIM, ACCENT, WARM = (232, 234, 238), (168, 174, 186), (98, 178, 255), (255, 166, 87)


class Section(NamedTuple):
    """A title, its lines, and how full the bar under them is (0..1; None: no bar)."""

    title: str
    lines: Sequence[str]
    full: float | None = None


def draw(title: str, sections: Sequence[Section]) -> torch.Tensor:
    """The sections one under the other, long lines wrapped, (1, H, WIDTH, 3) float32 in 0..1 with
    H <= TALLEST: of long sections the first lines are shown, with a word about the others."""
    fonts = load_font(TEXT), load_font(TEXT + 8)
    measure = cache(fonts[0].getlength)
    widest = max((fonts[0].getlength(section.title) for section in sections), default=0)
    aside = round(widest) + 2 * PAD if widest <= LABEL else 0
    width = WIDTH - 2 * MARGIN - 2 * PAD - aside
    wrapped = [_fitted(section, measure, width) for section in sections]
    top = MARGIN + LINE + 2 * GAP
    shown = _shortened(wrapped, TALLEST - top - MARGIN + GAP, aside)
    height = top + sum(_height(section, aside) + GAP for section in shown) - GAP + MARGIN
    image = Image.new("RGB", (WIDTH, height), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, MARGIN - 8), title, BRIGHT, fonts[1])
    y = top
    for section in shown:
        _draw_section(pen, section, y, fonts[0], aside)
        y += _height(section, aside) + GAP
    return as_image(image)


def as_image(image: Image.Image) -> torch.Tensor:
    """As ComfyUI has images: (1, H, W, 3) float32 in 0..1."""
    return torch.from_numpy(np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0)[None]


def new_page(height: int, title: str, about: str) -> tuple[Image.Image, Any, Any]:
    """A picture WIDTH wide with two lines at its top, what draws on it, the font of its texts."""
    image = Image.new("RGB", (WIDTH, height), BACKGROUND)
    pen, large, small = ImageDraw.Draw(image), load_font(TEXT + 8), load_font(TEXT)
    pen.text((MARGIN, 20), cut(title, large), BRIGHT, large)
    pen.text((MARGIN, 62), cut(about, small), DIM, small)
    return image, pen, small


def cut(text: str, font: Any, width: float = WIDTH - 2 * MARGIN) -> str:
    """`text`, or as much of it as fits with dots behind it."""
    while text and font.getlength(text) > width:
        text = text[:-4].rstrip(".") + "..."
    return text


def _height(section: Section, aside: int) -> int:
    bar = 0 if section.full is None else BAR + 8
    lines = max(len(section.lines), 1) if aside else 1 + len(section.lines)
    return LINE * lines + bar + PAD


def _draw_section(pen: Any, section: Section, y: int, font: Any, aside: int) -> None:
    """aside: pixels that the title takes beside the lines; 0: it stands above them."""
    box = (MARGIN, y, WIDTH - MARGIN, y + _height(section, aside))
    pen.rounded_rectangle(box, radius=8, fill=CARD)
    left, y = MARGIN + PAD, y + PAD // 2
    pen.text((left, y), section.title, ACCENT, font)
    left, y = left + aside, y if aside else y + LINE
    for line in section.lines:
        pen.text((left, y), line, BRIGHT if not line.startswith("  ") else DIM, font)
        y += LINE
    if section.full is not None:
        _draw_bar(pen, section.full, (left, y + 4, WIDTH - MARGIN - PAD))


def _draw_bar(pen: Any, full: float, place: tuple[int, int, int]) -> None:
    left, top, right = place
    share = min(max(full, 0.0), 1.0)
    pen.rounded_rectangle((left, top, right, top + BAR), radius=4, fill=BACKGROUND)
    if (end := left + round(share * (right - left))) > left:
        colour = WARM if share > 0.9 else ACCENT
        pen.rounded_rectangle((left, top, end, top + BAR), radius=4, fill=colour)


def _fitted(section: Section, measure: Callable[[str], float], width: float) -> Section:
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


def _shortened(sections: Sequence[Section], room: int, aside: int) -> list[Section]:
    """What goes into `room` pixels of height: the longest sections give way first, down to a line
    each; then the last sections."""

    def taken(kept: Sequence[Section]) -> int:
        return sum(_height(section, aside) + GAP for section in kept)

    kept: list[Section] = []
    for most in range(MAX_LINES, 0, -1):
        kept = [_cut_lines(section, most) for section in sections]
        if taken(kept) <= room:
            return kept
    rest = Section("...", ["more is in the text"])
    while kept and taken([*kept, rest]) > room:
        kept.pop()
    return [*kept, rest]


def _cut_lines(section: Section, most: int) -> Section:
    left_out = len(section.lines) - most
    if left_out <= 0:
        return section
    more = f"... {left_out + 1} lines more are in the text"
    return section._replace(lines=[*section.lines[: most - 1], more])
