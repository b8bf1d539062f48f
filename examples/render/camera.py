"""Where a mesh is seen from, and how it gets to clip space.

A mesh is seen in its own axes, Y up and its front towards +Z (as glTF has it), moved to the origin
and scaled so that its farthest vertex is at distance 1. Azimuth 0 looks at the front, 90 at what is
on the right of it (+X), elevation 90 looks down from above: the texture stage's angles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

# Half of the picture's shorter side, in radii of the mesh, when the view is orthographic. The
# texture stage scales a mesh's diameter to 1.15 and looks at 1.2, and so do the views here.
HALF_SIDE = 1.2 / 1.15
# The near and the far plane stand this far from the centre, in radii.
_REACH = 1.01
_NEAREST = 0.01

# The texture stage's six views: name, azimuth, elevation. The bottom is seen from behind.
_SIX = (
    ("front", 0.0, 0.0),
    ("right", 90.0, 0.0),
    ("back", 180.0, 0.0),
    ("left", 270.0, 0.0),
    ("top", 0.0, 90.0),
    ("bottom", 180.0, -90.0),
)
_NAMES = {azimuth: name for name, azimuth, elevation in _SIX if elevation == 0}


@dataclass(frozen=True)
class View:
    """azimuth, elevation: degrees. fov: of the picture's shorter side, in degrees; None is
    orthographic. distance: from the centre of the mesh to the camera, in radii of the mesh; None is
    the nearest from which the whole mesh is in the picture (orthographic: has no influence)."""

    name: str
    azimuth: float
    elevation: float
    fov: float | None = None
    distance: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.azimuth) and math.isfinite(self.elevation)):
            raise ValueError(f"azimuth {self.azimuth} and elevation {self.elevation}: give degrees")
        if self.fov is not None and not 1 <= self.fov <= 150:
            raise ValueError(f"fov is {self.fov}; give 1 to 150 degrees, or none (orthographic)")
        if self.distance is not None and not 0.02 <= self.distance <= 1e4:
            raise ValueError(f"distance is {self.distance}; give 0.02 to 10000 radii of the mesh")

    @property
    def axes(self) -> npt.NDArray[np.float64]:
        """(3, 3): the directions right, up and towards the viewer, each a row, in mesh axes."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        sin_a, cos_a = math.sin(azimuth), math.cos(azimuth)
        sin_e, cos_e = math.sin(elevation), math.cos(elevation)
        return np.array([
            [cos_a, 0.0, -sin_a],
            [-sin_a * sin_e, cos_e, -cos_a * sin_e],
            [sin_a * cos_e, sin_e, cos_a * cos_e],
        ])  # fmt: skip

    @property
    def camera_distance(self) -> float:
        """In radii; of an orthographic view the plane where distances are counted from."""
        if self.distance is not None:
            return self.distance
        if self.fov is None:
            return 2.0
        return HALF_SIDE / math.sin(math.radians(self.fov) / 2)

    def distances(self, positions: Floats) -> Floats:
        """(V,): how far the positions (V, 3) are in front of the camera, along its axis."""
        toward = self.axes[2].astype(np.float32)
        away: Floats = np.float32(self.camera_distance) - positions @ toward
        return away

    def clip(self, positions: Floats, size: tuple[int, int]) -> Floats:
        """(V, 4) float32 for a picture of size (height, width): row 0 is the top, so Y points down.

        The mesh lies between the planes -W and W of Z, but for what a camera inside it has behind.
        """
        height, width = size
        shorter = min(height, width)
        side, up = (positions @ self.axes[:2].T.astype(np.float32)).T
        away = self.distances(positions)
        near = max(self.camera_distance - _REACH, _NEAREST)
        far = self.camera_distance + _REACH
        clip = np.empty((len(positions), 4), np.float32)
        if self.fov is None:
            zoom = 1 / HALF_SIDE
            near, far = self.camera_distance - _REACH, self.camera_distance + _REACH
            clip[:, 2] = (2 * away - (far + near)) / (far - near)
            clip[:, 3] = 1
        else:
            zoom = 1 / math.tan(math.radians(self.fov) / 2)
            clip[:, 2] = ((far + near) * away - 2 * far * near) / (far - near)
            clip[:, 3] = away
        clip[:, 0] = side * (zoom * shorter / width)
        clip[:, 1] = up * (-zoom * shorter / height)
        return clip

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: what is needed to put a picture back on the mesh."""
        right, up, toward = self.axes.round(9).tolist()
        return {
            "name": self.name, "azimuth": self.azimuth, "elevation": self.elevation,
            "fov": self.fov, "distance": self.camera_distance,
            "half_side": HALF_SIDE if self.fov is None else None,
            "right": right, "up": up, "toward_viewer": toward,
        }  # fmt: skip


def six_views(fov: float | None = None, distance: float | None = None) -> list[View]:
    """Front, right, back, left, top, bottom: those of the texture stage (it has no fov)."""
    return [View(name, azimuth, elevation, fov, distance) for name, azimuth, elevation in _SIX]


def views_around(
    count: int, elevation: float = 0.0, fov: float | None = None, distance: float | None = None
) -> list[View]:
    """`count` views, beginning at the front; at elevation 0 the known ones have their names."""
    if count < 1:
        raise ValueError(f"{count} views; give 1 or more")
    views = []
    for i in range(count):
        azimuth = 360.0 * i / count
        name = _NAMES.get(azimuth) if elevation == 0 else None
        name = name or "azimuth_" + f"{azimuth:05.1f}".removesuffix(".0").replace(".", "_")
        views.append(View(name, azimuth, elevation, fov, distance))
    return _with_distinct_names(views)


def _with_distinct_names(views: Sequence[View]) -> list[View]:
    """More than 3600 views share a tenth of a degree: then they are numbered."""
    if len({view.name for view in views}) == len(views):
        return list(views)
    return [replace(view, name=f"view_{i:05d}") for i, view in enumerate(views)]
