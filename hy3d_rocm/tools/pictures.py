"""Heat maps of where decodes err: by matplotlib where it is, else a plain picture by Pillow."""

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
# Without matplotlib, in pixels: letters as large as in the pictures of the nodes.
_MARGIN, _LETTERS, _CELL, _BAR = 16, 22, 420, 210
_LINE = _LETTERS + 5
_LABELS = 12  # of borders along a side, at most


@dataclass(frozen=True)
class Panel:
    """title and note: two short lines. values: (H, W), errors as a share of the range. rows,
    columns: borders of tiles, marked at the edges."""

    title: str
    note: str
    values: Map
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()


def draw_heat_map(path: Path | IO[bytes], panels: Sequence[Panel], heading: str) -> str:
    """Writes `path` (PNG, or an open file), one scale for all panels, logarithmic; returns what
    drew it. Nothing of matplotlib's own state is touched: this runs in other people's programs."""
    low, high = _limits(panels)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        _by_pillow(path, panels, heading, low, high)
        return "Pillow"
    _by_matplotlib(path, panels, heading, low, high)
    return "matplotlib"


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Powers of ten around all values above 0."""
    shown = [p.values[p.values > _LEAST] for p in panels]
    found = np.concatenate(shown) if shown else np.array([])
    if not found.size:
        return _LEAST, _LEAST * 10
    low = 10.0 ** math.floor(math.log10(float(np.percentile(found, 1))))
    high = 10.0 ** math.ceil(math.log10(float(found.max())))
    return low, max(high, low * 10)


def _by_matplotlib(
    path: Path | IO[bytes], panels: Sequence[Panel], heading: str, low: float, high: float
) -> None:
    from matplotlib import colors
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = panels[0].values.shape
    size = (3.6 * len(panels) + 1.2, 3.4 * height / width + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)
    scale: Any = colors.LogNorm(low, high)
    shades = colors.LinearSegmentedColormap.from_list("hy3d", [tuple(a / 255) for a in _ANCHORS])
    for axis, panel in zip(axes[0], panels, strict=True):
        shown = axis.imshow(np.clip(panel.values, low, high), norm=scale, cmap=shades)
        axis.set_title(f"{panel.title}\n{panel.note}", fontsize=13, loc="left")
        axis.set_xticks([c - 0.5 for c in panel.columns], _labels(panel.columns, width))
        axis.set_yticks([r - 0.5 for r in panel.rows], _labels(panel.rows, height))
        axis.tick_params(labelsize=10)
        axis.tick_params(axis="x", rotation=90)
    bar = figure.colorbar(shown, ax=axes[0].tolist(), shrink=0.85)
    bar.set_label("mean absolute error, of the range", fontsize=11)
    bar.ax.tick_params(labelsize=11)
    figure.suptitle(heading, fontsize=14, x=0.01, ha="left")
    figure.savefig(path, dpi=110, format="png")


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


def _by_pillow(
    path: Path | IO[bytes], panels: Sequence[Panel], heading: str, low: float, high: float
) -> None:
    from PIL import Image, ImageDraw

    height, width = panels[0].values.shape
    tall = max(round(_CELL * height / width), 40)
    top = 3 * _LINE + 2 * _MARGIN  # the heading, and two lines over each panel
    sheet = Image.new(
        "RGB",
        (len(panels) * (_CELL + _MARGIN) + _MARGIN + _BAR, top + tall + 2 * _MARGIN),
        (250, 250, 248),
    )
    draw, font = ImageDraw.Draw(sheet), _font()
    draw.text((_MARGIN, _MARGIN // 2), heading, fill=(30, 34, 40), font=font)
    over = top - 2 * _LINE - _MARGIN // 2
    for number, panel in enumerate(panels):
        left = _MARGIN + number * (_CELL + _MARGIN)
        draw.text((left, over), panel.title, fill=(30, 34, 40), font=font)
        draw.text((left, over + _LINE), panel.note, fill=(30, 34, 40), font=font)
        picture = Image.fromarray(_shades(panel.values, low, high))
        sheet.paste(picture.resize((_CELL, tall), Image.Resampling.NEAREST), (left, top))
        for row in panel.rows:
            y = top + round(row * tall / height)
            draw.line((left - 5, y, left, y), fill=(180, 83, 9))
        for column in panel.columns:
            x = left + round(column * _CELL / width)
            draw.line((x, top + tall, x, top + tall + 5), fill=(180, 83, 9))
    _bar(draw, font, sheet.width - _BAR + _MARGIN, top, tall, low, high)
    sheet.save(path, format="PNG")


def _font() -> Any:
    """Pillow's own, in that size where Pillow has FreeType."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(_LETTERS)
    except (TypeError, OSError, ImportError):
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
        draw.text((left + 32, y - _LETTERS // 2), f"1e{power}", fill=(30, 34, 40), font=font)
    for number, text in enumerate(("mean error,", "of the range")):
        place = (left, top - 2 * _LINE - _MARGIN // 2 + number * _LINE)
        draw.text(place, text, fill=(30, 34, 40), font=font)


def _shades(values: Map, low: float, high: float) -> npt.NDArray[np.uint8]:
    """(H, W, 3) on the logarithmic scale."""
    share = np.log(np.clip(values, low, high) / low) / math.log(high / low)
    places = share * (len(_ANCHORS) - 1)
    channels = [np.interp(places, range(len(_ANCHORS)), _ANCHORS[:, c]) for c in range(3)]
    made: npt.NDArray[np.uint8] = np.stack(channels, -1).round().astype(np.uint8)
    return made
