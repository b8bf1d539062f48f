"""All pictures of a run on one: a row a map, a column a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

CELL = 256
_MARGIN, _LABEL_WIDTH, _CAPTION_HEIGHT = 8, 84, 54
_BACKGROUND, _INK, _QUIET_INK = (250, 250, 248), (30, 34, 40), (110, 116, 125)


class Sheet:
    """Pictures are made small as they come; picture() puts them together."""

    def __init__(self, title: str, maps: Sequence[str], views: Sequence[str]) -> None:
        self._title = title
        self._maps, self._views = list(maps), list(views)
        self._cells: dict[tuple[str, str], Image.Image] = {}

    def add(self, map_name: str, view: str, picture: npt.NDArray[Any]) -> None:
        """picture: as write_png takes it."""
        from PIL import Image

        if picture.dtype == np.uint16:
            picture = (picture >> 8).astype(np.uint8)
        image = Image.fromarray(picture).convert("RGBA")
        # Colours of faces stand for numbers: mixed ones would be those of other faces.
        kind = Image.Resampling.NEAREST if map_name == "face" else Image.Resampling.LANCZOS
        image.thumbnail((CELL, CELL), kind)
        self._cells[map_name, view] = image

    def picture(self) -> npt.NDArray[np.uint8]:
        """(H, W, 3)."""
        from PIL import Image, ImageDraw, ImageFont

        cell_width = max(cell.width for cell in self._cells.values())
        cell_height = max(cell.height for cell in self._cells.values())
        step_x, step_y = cell_width + _MARGIN, cell_height + _MARGIN
        size = (
            _LABEL_WIDTH + step_x * len(self._views) + _MARGIN,
            _CAPTION_HEIGHT + step_y * len(self._maps) + _MARGIN,
        )
        sheet = Image.new("RGB", size, _BACKGROUND)
        ink = ImageDraw.Draw(sheet)
        font = ImageFont.load_default(15)
        ink.text((_MARGIN, 6), self._title, fill=_INK, font=font)
        for column, view in enumerate(self._views):
            middle = _LABEL_WIDTH + column * step_x + cell_width // 2
            ink.text((middle, 31), view, fill=_QUIET_INK, font=font, anchor="ma")
        for row, name in enumerate(self._maps):
            top = _CAPTION_HEIGHT + row * step_y
            ink.text((_MARGIN, top + cell_height // 2), name, fill=_INK, font=font, anchor="lm")
            for column, view in enumerate(self._views):
                cell = self._cells[name, view]
                sheet.paste(cell, (_LABEL_WIDTH + column * step_x, top), cell)
        return np.asarray(sheet)
