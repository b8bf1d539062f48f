"""The demo's contact sheet: source, whole, protected and their difference, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    Frames = npt.NDArray[np.uint8]

MARGIN = 8
CAPTION_HEIGHT = 26
LABEL_WIDTH = 150
BACKGROUND = (250, 250, 248)
INK = (30, 34, 40)
QUIET_INK = (110, 116, 125)


def amplified_difference(first: Frames, second: Frames, gain: int = 8) -> Frames:
    """`gain` times the absolute difference of two uint8 clips of one shape, clipped to 255."""
    import numpy as np

    difference = np.abs(first.astype(np.int16) - second.astype(np.int16)) * gain
    amplified: Frames = np.minimum(difference, 255).astype(np.uint8)
    return amplified


def contact_sheet(
    rows: Sequence[tuple[str, str, Frames]], picks: Sequence[int], cell_width: int = 288
) -> Image.Image:
    """A labelled grid: one row a clip (title, note, frames (T, H, W, 3)), one column a frame."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = rows[0][2].shape[1:3]
    cell_height = round(cell_width * height / width)
    sheet = Image.new(
        "RGB",
        (
            LABEL_WIDTH + len(picks) * (cell_width + MARGIN) + MARGIN,
            CAPTION_HEIGHT + len(rows) * (cell_height + MARGIN) + MARGIN,
        ),
        BACKGROUND,
    )
    draw = ImageDraw.Draw(sheet)
    title_font, note_font = ImageFont.load_default(16), ImageFont.load_default(12)
    for column, pick in enumerate(picks):
        left = LABEL_WIDTH + MARGIN + column * (cell_width + MARGIN)
        draw.text((left, 6), f"frame {pick}", fill=QUIET_INK, font=note_font)
    for row, (title, note, frames) in enumerate(rows):
        top = CAPTION_HEIGHT + row * (cell_height + MARGIN)
        draw.text((MARGIN, top + 4), title, fill=INK, font=title_font)
        draw.multiline_text((MARGIN, top + 28), note, fill=QUIET_INK, font=note_font, spacing=3)
        for column, pick in enumerate(picks):
            cell = Image.fromarray(frames[pick]).resize(
                (cell_width, cell_height), Image.Resampling.LANCZOS
            )
            sheet.paste(cell, (LABEL_WIDTH + MARGIN + column * (cell_width + MARGIN), top))
    return sheet
