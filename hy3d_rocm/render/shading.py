"""Light that shows a shape: a soft sky, a key light and a rim, fixed to the camera."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hy3d_rocm.render.drawing import Drawing

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

CLAY = (0.86, 0.83, 0.79)
# Directions in camera axes (right, up, towards the viewer), strengths in linear light. They add up
# to about 1 on what faces the key light, so that a texture's white stays below white.
_KEY, _KEY_STRENGTH = (-0.45, 0.62, 0.64), 0.66
_FILL, _FILL_STRENGTH = (0.75, 0.05, 0.66), 0.16
_SKY, _GROUND = 0.42, 0.16
_RIM_STRENGTH, _GLOSS_STRENGTH, _GLOSS_POWER = 0.10, 0.10, 40
_GAMMA = 2.2


def shaded_colors(drawing: Drawing) -> Floats:
    """(K, 3) in 0..1, as a screen takes them. Faces seen from behind are lit as if from before."""
    normals = drawing.normals() @ drawing.view.axes.T.astype(np.float32)
    normals[drawing.seen_from_behind()] *= -1
    if drawing.mesh.has_color:
        albedo = drawing.colors()
    else:
        albedo = np.broadcast_to(np.array(CLAY, np.float32), normals.shape)
    up, front = normals[:, 1], np.clip(normals[:, 2], 0, 1)
    sky = np.float32(_GROUND) + np.float32(_SKY - _GROUND) * (up + 1) / 2
    key = np.clip(normals @ _unit(_KEY), 0, 1)
    fill = np.clip(normals @ _unit(_FILL), 0, 1)
    light = sky + np.float32(_KEY_STRENGTH) * key + np.float32(_FILL_STRENGTH) * fill
    half = _unit(np.add(_unit(_KEY), (0, 0, 1)))
    gloss = np.clip(normals @ half, 0, 1) ** _GLOSS_POWER * np.float32(_GLOSS_STRENGTH)
    shine = gloss + (1 - front) ** 3 * np.float32(_RIM_STRENGTH)
    linear = albedo ** np.float32(_GAMMA) * light[:, None] + shine[:, None]
    shaded: Floats = np.clip(linear, 0, 1) ** np.float32(1 / _GAMMA)
    return shaded


def _unit(direction: npt.ArrayLike) -> Floats:
    vector = np.asarray(direction, np.float64)
    unit: Floats = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit
