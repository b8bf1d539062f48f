"""Pictures that can be read inside a node, by Pillow: sections of lines and a bar; and a decode's
memory over time against the budget, with what took the time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from hy3d_rocm.comfy.reports import copies_of
from hy3d_rocm.decoding.report import DecodeReport
from hy3d_rocm.tools.pictures import load_font
from hy3d_rocm.tools.planning import seconds_text
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.comfy.running import Run

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
    wrapped = [
        one._replace(lines=[part for line in one.lines for part in _wrapped(line, measure, width)])
        for one in sections
    ]
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


def nice_ticks(top: float, binary: bool = False) -> list[float]:
    """0 and up to `top`, in round steps, some four of them.

    binary: steps that are round in kB, MB or GB of powers of 1024 (as sizes of memory are told).
    ValueError unless top is a number above 0.
    """
    if not (top > 0 and math.isfinite(top)):
        raise ValueError(f"an axis ends at {top!r}; give a number above 0")
    unit = 1024.0 ** math.floor(math.log(top, 1024) + 1e-12) if binary and top >= 1024 else 1.0
    rough = top / unit / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10) if m * power >= rough), default=10 * power)
    if binary and step < 1 and unit == 1:
        step = 1.0
    count = math.floor(top / unit / step + 1e-9)
    return [round(i * step, 12) * unit for i in range(count + 1)]


TIMELINE_HEIGHT = 556
_LEFT, _TOP, _BOTTOM = 150, 112, 350  # of the curve, pixels
_RIGHT = WIDTH - MARGIN
_LANE = (_BOTTOM + 42, _BOTTOM + 64)  # of the steps
_RED = (255, 99, 99)
_FILL = (45, 74, 108)
# What users call the kinds of steps (decoding/run.py, OPS), and its colour; others as they are.
_COLOURS = {
    "convolutions": ACCENT, "attention": (196, 154, 255), "norms": (255, 214, 102),
    "other layers": (126, 211, 133), "copies": (120, 220, 220), "frames in and out": DIM,
    "own code": ACCENT, "statistics": (255, 143, 196), "planning": (92, 100, 120),
}  # fmt: skip
_PHASES = {
    "conv": "convolutions", "keys": "attention", "attend": "attention", "moments": "norms",
    "reduce": "norms", "store": "copies", "drop": "copies", "load": "copies",
    "enter": "frames in and out", "emit": "frames in and out", "pass": "other layers",
    "map": "other layers", "add": "other layers", "trim": "other layers", "opaque": "own code",
    "whole": "own code", "frames": "own code",
}  # fmt: skip
# A budget more than so many times what was needed would press the curve flat: then it is told.
_FLAT = 4

Series = Sequence[tuple[float, int]]
Spans = Sequence[tuple[float, float, str]]


def of_decode(report: DecodeReport, run: Run, seconds: float, waits: bool = False) -> torch.Tensor:
    """The picture of a decode or encode that has ended, (1, TIMELINE_HEIGHT, WIDTH, 3) float32 in
    0..1.

    waits: the device was waited for after each step.
    """
    meters, planned = run.meters, report.planning_seconds
    own = report.strategy == "own"
    way = "ComfyUI's own code" if own else str(report.plan.get("way", report.strategy))
    copies = copies_of(report)
    steps = list(run.steps.seen)
    if planned > 0 and steps:  # the first steps begin when it was planned
        steps = [(max(begin, planned), end, kind) for begin, end, kind in steps if end > planned]
        steps.insert(0, (0.0, planned, "planning"))
    ends = [meters[0].seconds if meters else seconds, *(end for _, end, _ in steps[-1:]), 1e-3]
    return Timeline(
        f"{report.vae}: {way}",
        f"{_size(report.latent_shape)} -> {_size(report.out_shape)} on {report.device} in "
        f"{report.dtype}, {seconds:.1f} s",
        max(ends),  # the clock of the steps began before the meter's
        meters[0].peak_bytes if meters else report.measured_peak_bytes,
        report.budget_bytes,
        report.predicted_peak_bytes,
        meters[0].series if meters else (),
        meters[1].series if len(meters) > 1 else (),
        steps,
        not (waits or report.device == "cpu" or report.strategy == "cpu"),
        run.steps.again,
        [*([copies] if copies else []), *(str(event["event"]) for event in report.events)],
    ).draw()


def _size(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


@dataclass
class Timeline:
    """series: (seconds, bytes above the start) on the device; host: the same of the host where that
    is another. steps: (begin, end, kind) in seconds; is_queued: they are of when a GPU was given
    its work, not of when it did it. again: seconds at which it began anew. planned_bytes,
    budget_bytes: 0 where there was none. peak_bytes: of the device."""

    title: str
    about: str
    seconds: float
    peak_bytes: int = 0
    budget_bytes: int = 0
    planned_bytes: int = 0
    series: Series = ()
    host: Series = ()
    steps: Spans = ()
    is_queued: bool = False
    again: Sequence[float] = ()
    notes: Sequence[str] = ()

    def draw(self) -> torch.Tensor:
        """(1, TIMELINE_HEIGHT, WIDTH, 3) float32 in 0..1."""
        image, self.pen, self.font = new_page(TIMELINE_HEIGHT, self.title, self.about)
        highest = [b for _, b in (*self.series, *self.host)]
        needed = max(self.peak_bytes, self.planned_bytes, *highest, 1)
        budget = self.budget_bytes if self.budget_bytes <= _FLAT * needed else 0
        # Bytes at the upper edge, with room for a line of text.
        self.top = max(int(max(needed, budget) * 1.15), 1)
        self.pen.rectangle((_LEFT, _TOP, _RIGHT, _BOTTOM), fill=CARD)
        self._axes()
        self._curves()
        self._limits()
        self._lane()
        self._words()
        return as_image(image)

    def x(self, second: float) -> int:
        share = min(max(second / self.seconds, 0.0), 1.0)
        return _LEFT + round(share * (_RIGHT - _LEFT))

    def y(self, count: float) -> int:
        share = min(max(count / self.top, 0.0), 1.0)
        return _BOTTOM - round(share * (_BOTTOM - _TOP))

    def text(self, place: Any, text: str, colour: Any, anchor: str) -> None:
        """Pillow without FreeType knows no anchors."""
        scalable = isinstance(self.font, ImageFont.FreeTypeFont)
        self.pen.text(place, text, colour, self.font, anchor=anchor if scalable else None)

    def _axes(self) -> None:
        for count in nice_ticks(self.top, binary=True):
            y = self.y(count)
            self.pen.line((_LEFT, y, _RIGHT, y), fill=(52, 56, 66))
            text = size_text(round(count)) if count else "0"
            self.text((_LEFT - 10, y), text, DIM, "rm")
        for second in nice_ticks(self.seconds):
            x = self.x(second)
            self.pen.line((x, _BOTTOM, x, _BOTTOM + 5), fill=DIM)
            self.text((x, _BOTTOM + 8), f"{second:g} s", DIM, "ma")

    def _curves(self) -> None:
        """The device's, filled, and the host's. A decode shorter than a sample has its peak
        alone."""
        points = list(self.series) or [(0.0, self.peak_bytes), (self.seconds, self.peak_bytes)]
        pixels = [(self.x(second), self.y(count)) for second, count in points]
        pixels = [(pixels[0][0], _BOTTOM), *pixels, (pixels[-1][0], _BOTTOM)]
        self.pen.polygon(pixels, fill=_FILL)
        self.pen.line(pixels[1:-1], fill=ACCENT, width=2)
        pixels = [(self.x(second), self.y(count)) for second, count in self.host]
        if len(pixels) > 1:
            self.pen.line(pixels, fill=DIM, width=1)

    def _level(self, count: int, text: str, colour: tuple[int, int, int], above: bool) -> None:
        """A dashed line across at `count` bytes, and what it is: above it on the right, or below
        it on the left, so that no two of them meet."""
        y, dash = self.y(count), 8 if above else 3
        for x in range(_LEFT, _RIGHT, 2 * dash):
            self.pen.line((x, y, min(x + dash, _RIGHT), y), fill=colour, width=2)
        if above:
            self.text((_RIGHT - 6, y - 5), text, colour, "rs")
        else:
            self.text((_LEFT + 6, y + TEXT + 1), text, colour, "ls")

    def _limits(self) -> None:
        budget, planned = self.budget_bytes, self.planned_bytes
        if planned:
            self._level(planned, f"planned peak {size_text(planned)}", DIM, above=False)
        if budget and budget <= self.top:
            self._level(budget, f"budget {size_text(budget)}", WARM, above=True)
        elif budget:
            text = f"budget {size_text(budget)}, above this picture"
            self.text((_RIGHT - 6, _TOP + TEXT), text, WARM, "rs")

    def _lane(self) -> None:
        """The kind that took most of each stretch of time; red lines where it began anew; and the
        kinds with what each took, most first, without, where that is not known."""
        spans = [(b, e, _PHASES.get(k, k)) for b, e, k in self.steps]
        self.pen.rectangle((_LEFT, _LANE[0], _RIGHT, _LANE[1]), fill=CARD)
        for x, kind in _columns(spans, self.seconds):
            self.pen.line((x, _LANE[0] + 2, x, _LANE[1] - 2), fill=_COLOURS.get(kind, DIM))
        for second in self.again:
            x = self.x(second)
            self.pen.line((x, _TOP, x, _LANE[1]), fill=_RED, width=2)
        lane = "queued" if self.is_queued else "steps"
        self.text((_LEFT - 10, sum(_LANE) // 2), lane, DIM, "rm")
        took: dict[str, float] = {}
        for begin, end, kind in spans:
            took[kind] = took.get(kind, 0.0) + end - begin
        x, y = MARGIN, _LANE[1] + 14
        for kind in sorted(took, key=lambda k: -took[k]):
            least = "<0.01 s" if took[kind] < 0.01 else seconds_text(took[kind])
            text = kind if self.is_queued else f"{kind} {least}"
            wide = 20 + int(self.font.getlength(text))
            if x + wide > _RIGHT:
                x, y = MARGIN, y + TEXT + 8
            self.pen.rectangle((x, y, x + 12, y + 12), fill=_COLOURS.get(kind, DIM))
            self.text((x + 20, y + 5), text, DIM, "lm")
            x += wide + 24

    def _words(self) -> None:
        text = f"peak {size_text(self.peak_bytes)} above the start"
        if self.host:
            highest = max(count for _, count in self.host)
            text += f"; host (thin line) {size_text(max(highest, 0))}"
        lines = [""]
        for part in (text, *self.notes, *(["red: began anew"] if self.again else [])):  # two lines
            longer = f"{lines[-1]}; {part}" if lines[-1] else part
            if len(lines) == 1 and self.font.getlength(longer) > WIDTH - 2 * MARGIN:
                lines.append(part)
            else:
                lines[-1] = longer
        for number, line in enumerate(lines):
            place = (MARGIN, TIMELINE_HEIGHT - 68 + 30 * number)
            self.pen.text(place, cut(line, self.font), BRIGHT, self.font)


def _columns(spans: Spans, seconds: float) -> list[tuple[int, str]]:
    """(pixel, the kind that took most of its time) of all in which some step was."""
    scale = (_RIGHT - _LEFT) / seconds
    found: dict[int, dict[str, float]] = {}
    for begin, end, kind in spans:
        first, last = min(begin * scale, _RIGHT - _LEFT), min(end * scale, _RIGHT - _LEFT)
        for x in range(int(first), int(last) + 1):
            share = min(last, x + 1) - max(first, x)
            kinds = found.setdefault(_LEFT + x, {})
            kinds[kind] = kinds.get(kind, 0.0) + share
    return [(x, max(kinds, key=lambda k: kinds[k])) for x, kinds in found.items()]
