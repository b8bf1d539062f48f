"""Heat maps of where decodes err, drawn by Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Map = npt.NDArray[np.float64]

# Anchors of a perceptually even scale from dark blue over green to yellow.
_ANCHORS = np.array(
    [[38, 20, 72], [58, 76, 138], [38, 130, 142], [53, 183, 121], [170, 220, 50], [253, 231, 37]]
)
_LEAST = 1e-9  # of the range; less is shown as that: float32 itself ends at 6e-8
# In pixels: letters as large as in the pictures of the nodes; numbers at borders are smaller.
_MARGIN, _LETTERS, _SMALL, _CELL, _BAR, _LEFT = 16, 22, 14, 420, 210, 56
_LINE = _LETTERS + 5
_LABELS = 12  # of borders along a side, at most
_INK, _MARK = (30, 34, 40), (180, 83, 9)


@dataclass(frozen=True)
class Panel:
    """title and note: two short lines. values: (H, W), errors as a share of the range. rows,
    columns: borders of tiles, marked at the edges."""

    title: str
    note: str
    values: Map
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()


def draw_heat_map(path: Path | IO[bytes], panels: Sequence[Panel], heading: str) -> None:
    """Writes `path` (PNG, or an open file), one scale for all panels, logarithmic."""
    from PIL import Image, ImageDraw

    low, high = _limits(panels)
    height, width = panels[0].values.shape
    tall = max(round(_CELL * height / width), 40)
    top, step = 3 * _LINE + 2 * _MARGIN, _CELL + _LEFT  # the heading, two lines over each panel
    size = (len(panels) * step + _MARGIN + _BAR, top + tall + _SMALL + 2 * _MARGIN)
    sheet = Image.new("RGB", size, (250, 250, 248))
    draw, font, small = ImageDraw.Draw(sheet), load_font(_LETTERS), load_font(_SMALL)
    draw.text((_MARGIN, _MARGIN // 2), heading, fill=_INK, font=font)
    over = top - 2 * _LINE - _MARGIN // 2
    for number, panel in enumerate(panels):
        left = _LEFT + number * step
        draw.text((left, over), panel.title, fill=_INK, font=font)
        draw.text((left, over + _LINE), panel.note, fill=_INK, font=font)
        picture = Image.fromarray(_shades(panel.values, low, high))
        sheet.paste(picture.resize((_CELL, tall), Image.Resampling.NEAREST), (left, top))
        for row, label in zip(panel.rows, _labels(panel.rows, height), strict=True):
            y = top + round(row * tall / height)
            draw.line((left - 5, y, left, y), fill=_MARK)
            draw.text((left - 8, y), label, fill=_INK, font=small, anchor="rm")
        for column, label in zip(panel.columns, _labels(panel.columns, width), strict=True):
            x = left + round(column * _CELL / width)
            draw.line((x, top + tall, x, top + tall + 5), fill=_MARK)
            draw.text((x, top + tall + 8), label, fill=_INK, font=small, anchor="mt")
    _bar(draw, font, sheet.width - _BAR + _MARGIN, top, tall, low, high)
    sheet.save(path, format="PNG")


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Powers of ten around all values above 0."""
    shown = [p.values[p.values > _LEAST] for p in panels]
    found = np.concatenate(shown) if shown else np.array([])
    if not found.size:
        return _LEAST, _LEAST * 10
    low = 10.0 ** math.floor(math.log10(float(np.percentile(found, 1))))
    high = 10.0 ** math.ceil(math.log10(float(found.max())))
    return low, max(high, low * 10)


def _labels(places: Sequence[int], length: int) -> list[str]:
    """A number at each place, "" where it would run into the one before (a blend's three borders
    are close together)."""
    made: list[str] = []
    last = -math.inf
    for place in places:
        is_free = place - last >= length / _LABELS
        made.append(str(place) if is_free else "")
        last = place if is_free else last
    return made


def load_font(size: int) -> Any:
    """Pillow's own, about `size` pixels high where Pillow has FreeType."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except (TypeError, OSError, ImportError):  # an old Pillow, or one without FreeType
        return ImageFont.load_default()


def _bar(draw: Any, font: Any, left: int, top: int, tall: int, low: float, high: float) -> None:
    """The scale, with a number at each power of ten."""
    first, last = math.log10(low), math.log10(high)
    for y in range(tall):
        value = 10 ** (last - (last - first) * y / max(tall - 1, 1))
        shade = tuple(int(c) for c in _shades(np.array([[value]]), low, high)[0, 0])
        draw.line((left, top + y, left + 24, top + y), fill=shade)
    for power in range(round(first), round(last) + 1):
        y = top + round((last - power) / (last - first) * (tall - 1))
        draw.text((left + 32, y - _LETTERS // 2), f"1e{power}", fill=_INK, font=font)
    for number, text in enumerate(("mean error,", "of the range")):
        place = (left, top - 2 * _LINE - _MARGIN // 2 + number * _LINE)
        draw.text(place, text, fill=_INK, font=font)


def _shades(values: Map, low: float, high: float) -> npt.NDArray[np.uint8]:
    """(H, W, 3) on the logarithmic scale."""
    share = np.log(np.clip(values, low, high) / low) / math.log(high / low)
    places = share * (len(_ANCHORS) - 1)
    channels = [np.interp(places, range(len(_ANCHORS)), _ANCHORS[:, c]) for c in range(3)]
    made: npt.NDArray[np.uint8] = np.stack(channels, -1).round().astype(np.uint8)
    return made
