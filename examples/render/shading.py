"""Light that shows a shape: a soft sky, a key light and a rim, fixed to the camera."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from examples.render.drawing import BLOCK, Drawing

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

# Directions in camera axes (right, up, towards the viewer), strengths in linear light. They add up
# to about 1 on what faces the key light, so that a texture's white stays below white.
_KEY, _KEY_STRENGTH = (-0.45, 0.62, 0.64), 0.66
_FILL, _FILL_STRENGTH = (0.75, 0.05, 0.66), 0.16
_SKY, _GROUND = 0.42, 0.16
_RIM_STRENGTH, _GLOSS_STRENGTH, _GLOSS_SQUARINGS = 0.10, 0.10, 5  # to the power of 32


def shaded_colors(drawing: Drawing) -> Floats:
    """(K, 3) in 0..1, as a screen takes them. Faces seen from behind are lit as if from before."""
    axes = drawing.view.axes.T.astype(np.float32)
    behind, shaded = drawing.seen_from_behind(), drawing.colors()
    for start in range(0, len(shaded), BLOCK):
        part = slice(start, start + BLOCK)
        normals = drawing.normals[part] @ axes
        np.negative(normals, out=normals, where=behind[part, None])
        shaded[part] = _lit(normals, shaded[part])
    return shaded


def _lit(normals: Floats, stored: Floats) -> Floats:
    """Colours (K, 3) in the light that surfaces with normals (K, 3), in camera axes, get."""
    up, front = normals[:, 1], np.clip(normals[:, 2], 0, 1)
    sky = np.float32(_GROUND) + np.float32(_SKY - _GROUND) * (up + 1) / 2
    key = np.clip(normals @ _unit(_KEY), 0, 1)
    fill = np.clip(normals @ _unit(_FILL), 0, 1)
    light = sky + np.float32(_KEY_STRENGTH) * key + np.float32(_FILL_STRENGTH) * fill
    half = _unit(np.add(_unit(_KEY), (0, 0, 1)))
    gloss = np.clip(normals @ half, 0, 1)
    for _ in range(_GLOSS_SQUARINGS):
        gloss *= gloss
    edge = 1 - front
    shine = gloss * np.float32(_GLOSS_STRENGTH) + edge * edge * edge * np.float32(_RIM_STRENGTH)
    # A gamma of 2, near the screen's 2.2: a square root takes a tenth of a power's time.
    linear = stored * stored * light[:, None] + shine[:, None]
    lit: Floats = np.sqrt(np.minimum(linear, 1))
    return lit


def _unit(direction: npt.ArrayLike) -> Floats:
    vector = np.asarray(direction, np.float64)
    unit: Floats = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit
