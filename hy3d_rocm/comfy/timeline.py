"""A decode as a picture: its memory over time against the budget, and what took the time. Pillow
only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from PIL import ImageFont

from hy3d_rocm.comfy.picture import (
    ACCENT,
    BRIGHT,
    CARD,
    DIM,
    MARGIN,
    TEXT,
    WARM,
    WIDTH,
    as_image,
    cut,
    new_page,
)
from hy3d_rocm.comfy.reports import copies_of
from hy3d_rocm.decoding.report import DecodeReport
from hy3d_rocm.tools.planning import seconds_text
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.comfy.running import Run


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


HEIGHT = 556
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
    notes: Sequence[str] = field(default_factory=tuple)


def of_decode(report: DecodeReport, run: Run, seconds: float, waits: bool = False) -> torch.Tensor:
    """The picture of a decode or encode that has ended, (1, HEIGHT, WIDTH, 3) float32 in 0..1.

    waits: the device was waited for after each step.
    """
    meters = run.meters
    own = report.strategy == "own"
    way = "ComfyUI's own code" if own else str(report.plan.get("way", report.strategy))
    copies = copies_of(report)
    steps = _with_planning(run.steps.seen, report.planning_seconds)
    ends = [meters[0].seconds if meters else seconds, *(end for _, end, _ in steps[-1:]), 1e-3]
    return draw(
        Timeline(
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
        )
    )


def _with_planning(steps: Spans, seconds: float) -> list[tuple[float, float, str]]:
    """The first steps begin when it was planned."""
    rest = [(max(begin, seconds), end, kind) for begin, end, kind in steps if end > seconds]
    return [(0.0, seconds, "planning"), *rest] if seconds > 0 and steps else list(steps)


def _size(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


def draw(timeline: Timeline) -> torch.Tensor:
    """(1, HEIGHT, WIDTH, 3) float32 in 0..1."""
    image, pen, small = new_page(HEIGHT, timeline.title, timeline.about)
    frame = _Frame(pen, small, timeline.seconds, _top_of(timeline))
    pen.rectangle((_LEFT, _TOP, _RIGHT, _BOTTOM), fill=CARD)
    frame.axes()
    frame.area(timeline.series, timeline.peak_bytes)
    frame.line(timeline.host, DIM)
    _limits(frame, timeline)
    _steps(frame, timeline)
    _words(frame, timeline)
    return as_image(image)


def _top_of(timeline: Timeline) -> int:
    """Bytes at the upper edge."""
    highest = [b for _, b in (*timeline.series, *timeline.host)]
    needed = max(timeline.peak_bytes, timeline.planned_bytes, *highest, 1)
    budget = timeline.budget_bytes if timeline.budget_bytes <= _FLAT * needed else 0
    return max(int(max(needed, budget) * 1.15), 1)  # with room for a line of text


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

    def level(self, count: int, text: str, colour: tuple[int, int, int], above: bool) -> None:
        """A dashed line across at `count` bytes, and what it is: above it on the right, or below
        it on the left, so that no two of them meet."""
        y, dash = self.y(count), 8 if above else 3
        for x in range(_LEFT, _RIGHT, 2 * dash):
            self.pen.line((x, y, min(x + dash, _RIGHT), y), fill=colour, width=2)
        if above:
            self.text((_RIGHT - 6, y - 5), text, colour, "rs")
        else:
            self.text((_LEFT + 6, y + TEXT + 1), text, colour, "ls")


def _limits(frame: _Frame, timeline: Timeline) -> None:
    budget, planned = timeline.budget_bytes, timeline.planned_bytes
    if planned:
        frame.level(planned, f"planned peak {size_text(planned)}", DIM, above=False)
    if budget and budget <= frame.top:
        frame.level(budget, f"budget {size_text(budget)}", WARM, above=True)
    elif budget:
        text = f"budget {size_text(budget)}, above this picture"
        frame.text((_RIGHT - 6, _TOP + TEXT), text, WARM, "rs")


def _steps(frame: _Frame, timeline: Timeline) -> None:
    """The kind that took most of each stretch of time; red lines where it began anew."""
    pen, spans = frame.pen, [(b, e, _PHASES.get(k, k)) for b, e, k in timeline.steps]
    pen.rectangle((_LEFT, _LANE[0], _RIGHT, _LANE[1]), fill=CARD)
    for x, kind in _columns(spans, timeline.seconds):
        pen.line((x, _LANE[0] + 2, x, _LANE[1] - 2), fill=_COLOURS.get(kind, DIM))
    for second in timeline.again:
        x = frame.x(second)
        pen.line((x, _TOP, x, _LANE[1]), fill=_RED, width=2)
    lane = "queued" if timeline.is_queued else "steps"
    frame.text((_LEFT - 10, sum(_LANE) // 2), lane, DIM, "rm")
    _legend(frame, spans, timeline.is_queued)


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


def _legend(frame: _Frame, spans: Spans, is_queued: bool) -> None:
    """The kinds with what each took, most first; without, where that is not known."""
    took: dict[str, float] = {}
    for begin, end, kind in spans:
        took[kind] = took.get(kind, 0.0) + end - begin
    x, y = MARGIN, _LANE[1] + 14
    for kind in sorted(took, key=lambda k: -took[k]):
        least = "<0.01 s" if took[kind] < 0.01 else seconds_text(took[kind])
        text = kind if is_queued else f"{kind} {least}"
        wide = 20 + int(frame.font.getlength(text))
        if x + wide > _RIGHT:
            x, y = MARGIN, y + TEXT + 8
        frame.pen.rectangle((x, y, x + 12, y + 12), fill=_COLOURS.get(kind, DIM))
        frame.text((x + 20, y + 5), text, DIM, "lm")
        x += wide + 24


def _words(frame: _Frame, timeline: Timeline) -> None:
    text = f"peak {size_text(timeline.peak_bytes)} above the start"
    if timeline.host:
        highest = max(count for _, count in timeline.host)
        text += f"; host (thin line) {size_text(max(highest, 0))}"
    parts = [text, *timeline.notes, *(["red: began anew"] if timeline.again else [])]
    lines = [""]
    for part in parts:  # two lines
        longer = f"{lines[-1]}; {part}" if lines[-1] else part
        if len(lines) == 1 and frame.font.getlength(longer) > WIDTH - 2 * MARGIN:
            lines.append(part)
        else:
            lines[-1] = longer
    for number, line in enumerate(lines):
        place = (MARGIN, HEIGHT - 68 + 30 * number)
        frame.pen.text(place, cut(line, frame.font), BRIGHT, frame.font)
