"""A decode as a picture: its memory over time against the budget, and its steps. Pillow only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

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
from hy3d_rocm.comfy.scales import nice_ticks
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.comfy.running import Run
    from hy3d_rocm.decode.report import DecodeReport

__all__ = ["Timeline", "draw", "of_decode"]

HEIGHT = 512
_LEFT, _TOP, _BOTTOM = 150, 112, 350  # of the curve, pixels
_RIGHT = WIDTH - MARGIN
_LANE = (_BOTTOM + 42, _BOTTOM + 64)  # of the steps
_RED = (255, 99, 99)
_FILL = (45, 74, 108)
_KINDS = (ACCENT, (126, 211, 133), (196, 154, 255), (255, 214, 102), (120, 220, 220), DIM)
# A budget more than so many times what was needed would press the curve flat: then it is told.
_FLAT = 4

Series = Sequence[tuple[float, int]]


@dataclass
class Timeline:
    """series: (seconds, bytes above the start) on the device; host: the same of the host where that
    is another. steps: (seconds, kind). again: seconds at which it began anew. planned_bytes,
    budget_bytes: 0 where there was none. peak_bytes: of the device."""

    title: str
    about: str
    seconds: float
    peak_bytes: int = 0
    budget_bytes: int = 0
    planned_bytes: int = 0
    series: Series = ()
    host: Series = ()
    steps: Sequence[tuple[float, str]] = ()
    again: Sequence[float] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def of_decode(report: DecodeReport, run: Run, seconds: float) -> torch.Tensor:
    """The picture of a decode or encode that has ended, (1, HEIGHT, WIDTH, 3) float32 in 0..1."""
    meters = run.meters
    own = report.strategy == "own"
    way = "ComfyUI's own code" if own else str(report.plan.get("way", report.strategy))
    return draw(
        Timeline(
            f"{report.vae}: {way}",
            f"{_size(report.latent_shape)} -> {_size(report.out_shape)} on {report.device} in "
            f"{report.dtype}, {seconds:.1f} s",
            max(meters[0].seconds if meters else seconds, 1e-3),
            meters[0].peak_bytes if meters else report.measured_peak_bytes,
            report.budget_bytes,
            report.predicted_peak_bytes,
            meters[0].series if meters else (),
            meters[1].series if len(meters) > 1 else (),
            run.steps.seen,
            run.steps.again,
            [str(event["event"]) for event in report.events],
        )
    )


def _size(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


def draw(timeline: Timeline) -> torch.Tensor:
    """(1, HEIGHT, WIDTH, 3) float32 in 0..1."""
    image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
    pen = ImageDraw.Draw(image)
    large, small = load_font(TEXT + 8), load_font(TEXT)
    pen.text((MARGIN, 20), _fitted(timeline.title, large), BRIGHT, large)
    pen.text((MARGIN, 62), _fitted(timeline.about, small), DIM, small)
    frame = _Frame(pen, small, timeline.seconds, _top_of(timeline))
    pen.rectangle((_LEFT, _TOP, _RIGHT, _BOTTOM), fill=CARD)
    frame.axes()
    frame.area(timeline.series, timeline.peak_bytes)
    frame.line(timeline.host, DIM)
    _limits(frame, timeline)
    _steps(frame, timeline)
    _words(frame, timeline)
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)[None]


def _top_of(timeline: Timeline) -> int:
    """Bytes at the upper edge."""
    highest = [b for _, b in (*timeline.series, *timeline.host)]
    needed = max(timeline.peak_bytes, timeline.planned_bytes, *highest, 1)
    budget = timeline.budget_bytes if timeline.budget_bytes <= _FLAT * needed else 0
    return max(int(max(needed, budget) * 1.12), 1)


@dataclass
class _Frame:
    """Seconds and bytes to pixels, and what is drawn by them."""

    pen: Any
    font: Any
    seconds: float
    top: int

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

    def axes(self) -> None:
        for count in nice_ticks(self.top, binary=True):
            y = self.y(count)
            self.pen.line((_LEFT, y, _RIGHT, y), fill=(52, 56, 66))
            text = size_text(round(count)) if count else "0"
            self.text((_LEFT - 10, y), text, DIM, "rm")
        for second in nice_ticks(self.seconds):
            x = self.x(second)
            self.pen.line((x, _BOTTOM, x, _BOTTOM + 5), fill=DIM)
            self.text((x, _BOTTOM + 8), f"{second:g} s", DIM, "ma")

    def area(self, series: Series, peak: int) -> None:
        """The curve, filled. A decode shorter than a sample has its peak alone."""
        points = list(series) or [(0.0, peak), (self.seconds, peak)]
        pixels = [(self.x(second), self.y(count)) for second, count in points]
        pixels = [(pixels[0][0], _BOTTOM), *pixels, (pixels[-1][0], _BOTTOM)]
        self.pen.polygon(pixels, fill=_FILL)
        self.pen.line(pixels[1:-1], fill=ACCENT, width=2)

    def line(self, series: Series, colour: tuple[int, int, int]) -> None:
        pixels = [(self.x(second), self.y(count)) for second, count in series]
        if len(pixels) > 1:
            self.pen.line(pixels, fill=colour, width=1)

    def level(self, count: int, text: str, colour: tuple[int, int, int], dash: int) -> None:
        """A dashed line across at `count` bytes, and what it is."""
        y = self.y(count)
        for x in range(_LEFT, _RIGHT, 2 * dash):
            self.pen.line((x, y, min(x + dash, _RIGHT), y), fill=colour, width=2)
        above = y - 5 if y - TEXT - 6 > _TOP else y + TEXT + 3
        self.text((_RIGHT - 6, above), text, colour, "rs")


def _limits(frame: _Frame, timeline: Timeline) -> None:
    budget, planned = timeline.budget_bytes, timeline.planned_bytes
    if planned:
        frame.level(planned, f"planned peak {size_text(planned)}", DIM, 3)
    if budget and budget <= frame.top:
        frame.level(budget, f"budget {size_text(budget)}", WARM, 8)
    elif budget:
        text = f"budget {size_text(budget)}, above this picture"
        x = _RIGHT - int(frame.font.getlength(text))  # beside the kinds of steps
        frame.pen.text((x, _LANE[1] + 8), text, WARM, frame.font)


def _steps(frame: _Frame, timeline: Timeline) -> None:
    """A mark for each step at its end, a colour for each kind; red lines where it began anew."""
    pen, kinds = frame.pen, list(dict.fromkeys(kind for _, kind in timeline.steps))
    pen.rectangle((_LEFT, _LANE[0], _RIGHT, _LANE[1]), fill=CARD)
    for second, kind in timeline.steps:
        colour = _KINDS[min(kinds.index(kind), len(_KINDS) - 1)]
        x = frame.x(second)
        pen.line((x, _LANE[0] + 2, x, _LANE[1] - 2), fill=colour, width=2)
    for second in timeline.again:
        x = frame.x(second)
        pen.line((x, _TOP, x, _LANE[1]), fill=_RED, width=2)
    frame.text((_LEFT - 10, sum(_LANE) // 2), "steps", DIM, "rm")
    x = _LEFT
    for place, kind in enumerate(kinds[: len(_KINDS)]):
        pen.rectangle((x, _LANE[1] + 14, x + 12, _LANE[1] + 26), fill=_KINDS[place])
        frame.text((x + 20, _LANE[1] + 19), kind, DIM, "lm")
        x += 48 + int(frame.font.getlength(kind))


def _words(frame: _Frame, timeline: Timeline) -> None:
    text = f"peak {size_text(timeline.peak_bytes)} above the start"
    if timeline.host:
        highest = max(count for _, count in timeline.host)
        text += f"; host (thin line) {size_text(max(highest, 0))}"
    for note in timeline.notes:
        text += f"; {note}"
    if timeline.again:
        text += "; red: began anew"
    place = (MARGIN, HEIGHT - 40)
    frame.pen.text(place, _fitted(text, frame.font), BRIGHT, frame.font)


def _fitted(text: str, font: Any) -> str:
    """Cut to the picture's width."""
    while text and font.getlength(text) > WIDTH - 2 * MARGIN:
        text = text[:-4].rstrip(".") + "..."
    return text
