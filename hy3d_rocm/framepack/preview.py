"""Pictures of a video that is being made: the frame in work, and all finished ones under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_FRAMES = 64  # on one picture; of more, so many are shown, evenly spread
THUMBNAIL = 96  # longest side of a finished frame, in pixels


def evenly(count: int, most: int) -> list[int]:
    """Indices of at most `most` of `count` frames, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most < 2:
        return [0][:most]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def thumbnail(image: Image) -> Image:
    """A copy whose longest side is THUMBNAIL, or smaller as it is."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return small


def sheet(current: Image | None, finished: Sequence[Image]) -> Image | None:
    """The frame in work above the finished frames in reading order; None if there is neither.

    finished: thumbnails of one size, in the order of the video.
    """
    from PIL.Image import new

    if not finished:
        return current
    shown = [finished[i] for i in evenly(len(finished), MOST_FRAMES)]
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    width, height = shown[0].size
    above = None if current is None else _as_wide(current, columns * width)
    top = 0 if above is None else above.size[1]
    made = new("RGB", (columns * width, top + rows * height))
    if above is not None:
        made.paste(above, (0, 0))
    for index, frame in enumerate(shown):
        made.paste(frame, ((index % columns) * width, top + index // columns * height))
    return made


def _as_wide(image: Image, width: int) -> Image:
    return image.resize((width, max(1, round(image.size[1] * width / image.size[0]))))
