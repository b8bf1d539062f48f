"""Meshes made here, so that something can be drawn without a file (and without trimesh)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.render.meshes import DEFAULT_CREASE, Mesh, MeshError, Part, mesh_of_parts

if TYPE_CHECKING:
    import numpy.typing as npt

    Doubles = npt.NDArray[np.float64]

DEFAULT_MESH = "knot"


def make_mesh(name: str = DEFAULT_MESH, *, crease: float = DEFAULT_CREASE) -> Mesh:
    """One of MADE, by name. MeshError for another name."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise MeshError(f"there is no mesh {name!r} to make: give one of {', '.join(MADE)}")
    return mesh_of_parts(name, [maker()], crease=crease)


def sphere(rings: int = 128, sectors: int = 256) -> Part:
    """The unit sphere; the poles are at +Y and -Y."""
    polar = np.linspace(0, math.pi, rings + 1)[1:-1, None]
    around = np.linspace(0, 2 * math.pi, sectors, endpoint=False)[None, :]
    ring = np.stack([
        np.sin(polar) * np.sin(around),
        np.broadcast_to(np.cos(polar), (rings - 1, sectors)),
        np.sin(polar) * np.cos(around),
    ], axis=-1).reshape(-1, 3)  # fmt: skip
    positions = np.concatenate([ring, [[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]])
    north, south = len(ring), len(ring) + 1
    here = np.arange(sectors)
    after = np.roll(here, -1)
    last = (rings - 2) * sectors
    caps = [
        np.stack([np.full(sectors, north), here, after], axis=1),
        np.stack([np.full(sectors, south), last + after, last + here], axis=1),
    ]
    return Part(positions, np.concatenate([_grid(rings - 1, sectors, open_rows=True), *caps]))


def torus(around: int = 256, across: int = 96) -> Part:
    """Radius 1, tube 0.4, lying in the plane X Z and tilted to the viewer by 35 degrees."""
    angle = np.linspace(0, 2 * math.pi, around, endpoint=False)
    curve = np.stack([np.cos(angle), np.zeros(around), -np.sin(angle)], axis=1)
    part = _tube(curve, 0.4, across)
    tilt = math.radians(35)
    turn = np.array([
        [1, 0, 0],
        [0, math.cos(tilt), -math.sin(tilt)],
        [0, math.sin(tilt), math.cos(tilt)],
    ])  # fmt: skip
    return Part(part.positions @ turn.T, part.faces)


def knot(around: int = 768, across: int = 48) -> Part:
    """A trefoil knot, coloured along its way."""
    angle = np.linspace(0, 2 * math.pi, around, endpoint=False)
    curve = np.stack([
        np.sin(angle) + 2 * np.sin(2 * angle),
        np.cos(angle) - 2 * np.cos(2 * angle),
        -np.sin(3 * angle),
    ], axis=1)  # fmt: skip
    part = _tube(curve, 0.62, across)
    phase = np.repeat(angle, across)[:, None] + np.array([0.0, 2.1, 4.2])
    return Part(part.positions, part.faces, colors=0.62 + 0.3 * np.cos(phase))


def cube() -> Part:
    """Edges of length 2, each side of another colour."""
    corners = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    sides = np.array([
        [1, 5, 7, 3], [4, 0, 2, 6], [5, 4, 6, 7], [0, 1, 3, 2], [3, 7, 6, 2], [0, 4, 5, 1],
    ])  # fmt: skip
    colors = np.array([
        [0.90, 0.45, 0.40], [0.45, 0.70, 0.90], [0.55, 0.80, 0.50],
        [0.95, 0.80, 0.45], [0.75, 0.60, 0.90], [0.60, 0.60, 0.60],
    ])  # fmt: skip
    first = np.arange(0, 24, 4)[:, None]
    faces = np.concatenate([first + np.array([0, 1, 2]), first + np.array([0, 2, 3])])
    return Part(corners[sides.reshape(-1)], faces, colors=np.repeat(colors, 4, axis=0))


_MAKERS: dict[str, Callable[[], Part]] = {
    "knot": knot, "torus": torus, "sphere": sphere, "cube": cube,
}  # fmt: skip
MADE = tuple(_MAKERS)


def _grid(rows: int, columns: int, *, open_rows: bool = False) -> npt.NDArray[Any]:
    """Faces of a grid of vertices (rows, columns) that is closed along the columns, and along the
    rows unless open_rows; seen from outside, rows go down and columns to the right."""
    row = np.arange(rows - 1 if open_rows else rows)[:, None]
    column = np.arange(columns)[None, :]
    below, right = (row + 1) % rows, (column + 1) % columns
    a, b = row * columns + column, below * columns + column
    c, d = below * columns + right, row * columns + right
    return np.concatenate([
        np.stack([a, b, c], axis=-1).reshape(-1, 3), np.stack([a, c, d], axis=-1).reshape(-1, 3),
    ])  # fmt: skip


def _tube(curve: Doubles, radius: float, across: int) -> Part:
    """A tube along a closed curve (N, 3), its cross-sections turned as little as can be."""
    tangent = np.roll(curve, -1, axis=0) - np.roll(curve, 1, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    normal = np.empty_like(curve)
    helper = np.eye(3)[np.abs(tangent[0]).argmin()]
    normal[0] = np.cross(tangent[0], helper)
    normal[0] /= np.linalg.norm(normal[0])
    for i in range(1, len(curve)):  # carried along, so that it does not twist
        normal[i] = normal[i - 1] - tangent[i] * (normal[i - 1] @ tangent[i])
        normal[i] /= np.linalg.norm(normal[i])
    side = np.cross(normal, tangent)  # to the right, seen from outside with the way going down
    # The frame comes back turned by an angle: it is spread along the way.
    gap = math.atan2(normal[-1] @ side[0], normal[-1] @ normal[0])
    spread = -gap * np.arange(len(curve))[:, None] / (len(curve) - 1)
    angle = np.linspace(0, 2 * math.pi, across, endpoint=False)[None, :] + spread
    rim = np.cos(angle)[..., None] * normal[:, None] + np.sin(angle)[..., None] * side[:, None]
    positions = (curve[:, None] + radius * rim).reshape(-1, 3)
    return Part(positions, _grid(len(curve), across))
