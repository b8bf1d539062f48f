"""Meshes to draw: arrays of one mesh with its colours and textures, and reading files.

trimesh reads the files. A scene's geometries are put where the scene has them, and become one mesh.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.render.creases import crease_normals, face_normals

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Indices = npt.NDArray[np.int32]
    Texture = npt.NDArray[np.uint8]

logger = logging.getLogger("hy3d_rocm")

DEFAULT_CREASE = 40.0
CLAY = (0.86, 0.83, 0.79)  # of what has neither a texture nor colours
_READABLE = (".glb", ".gltf", ".obj", ".ply", ".stl", ".off")
_WANTED = "give a .glb, .gltf, .obj, .ply, .stl or .off file with triangles"


class MeshError(ValueError):
    """A mesh cannot be read or drawn. The text says what to do."""


@dataclass(frozen=True)
class Part:
    """One geometry: positions (V, 3) in float64, faces (F, 3) of any integer type, uvs (V, 2) with
    v upwards or None, colors (V, 3) in 0..1 or None, texture (H, W, 3) uint8 or None."""

    positions: npt.NDArray[np.float64]
    faces: npt.NDArray[Any]
    uvs: npt.NDArray[Any] | None = None
    colors: npt.NDArray[Any] | None = None
    texture: Texture | None = None


@dataclass(frozen=True)
class Mesh:
    """A mesh at the origin, its farthest vertex at distance 1; `center` and `radius` (of the file's
    units) tell where it was. The center is that of the bounding box, as in the texture stage.

    positions (V, 3), faces (F, 3), normals (N, 3) and normal_faces (F, 3), uvs (V, 2), colors
    (V, 3) in 0..1 (clay where the file has none), textures, and which of them each face (F,) has:
    -1 is none.
    """

    name: str
    positions: Floats
    faces: Indices
    normals: Floats
    normal_faces: Indices
    uvs: Floats
    colors: Floats
    textures: tuple[Texture, ...]
    face_texture: Indices
    has_color: bool
    center: tuple[float, float, float]
    radius: float
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def face_normals(self) -> Floats:
        """(F, 3) of length 1; 0 for a face without area."""
        return face_normals(self.positions, self.faces)


def mesh_of_parts(
    name: str, parts: Sequence[Part], *, crease: float = DEFAULT_CREASE, notes: tuple[str, ...] = ()
) -> Mesh:
    """One mesh. crease: degrees; where faces meet at more, the surface has an edge. MeshError."""
    parts = [_checked(name, part) for part in parts if len(part.faces)]
    if not parts:
        raise MeshError(f"{name} has no triangles: {_WANTED}")
    offsets = np.cumsum([0, *(len(part.positions) for part in parts)])
    positions = np.concatenate([part.positions for part in parts])
    faces = np.concatenate([part.faces + at for part, at in zip(parts, offsets, strict=False)])
    positions, center, radius = _to_the_origin(name, positions, faces)
    index = faces.astype(np.int32)
    normals, normal_faces = crease_normals(positions, index, crease)
    textures = tuple(part.texture for part in parts if part.texture is not None)
    return Mesh(
        name, positions, index, normals, normal_faces,
        np.concatenate([_uvs(part) for part in parts]),
        np.concatenate([_colors(part) for part in parts]),
        textures, _face_textures(parts),
        any(part.texture is not None or part.colors is not None for part in parts),
        center, radius, notes,
    )  # fmt: skip


def read_mesh(path: str | Path, *, crease: float = DEFAULT_CREASE) -> Mesh:
    """The mesh in a file that trimesh reads. MeshError says what is wrong with it."""
    path = Path(path)
    if path.is_dir():
        raise MeshError(f"{path} is a folder: {_WANTED}")
    if not path.exists():
        raise MeshError(f"{path} does not exist: {_WANTED}, or none to draw a made one")
    trimesh = _trimesh()
    try:
        scene = trimesh.load_scene(str(path), process=False)
        parts, notes = _parts_of_scene(scene, trimesh)
    except MemoryError as error:
        raise MeshError(f"{path} is too large for the memory of this machine") from error
    except OSError as error:
        raise MeshError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # trimesh's readers raise what their parsers do
        logger.debug("%s", path, exc_info=True)
        known = path.suffix.lower() in _READABLE
        hint = "the file is damaged or not what its name says" if known else _WANTED
        raise MeshError(
            f"{path} cannot be read as a mesh ({type(error).__name__}: {error}): {hint}"
        ) from error
    return mesh_of_parts(path.name, parts, crease=crease, notes=notes)


def _trimesh() -> Any:
    try:
        import trimesh
    except ImportError:
        raise MeshError(
            "reading a mesh needs trimesh: pip install trimesh (or hy3d-rocm[render]); without a "
            "file, hy3d-rocm render draws a mesh that it makes itself"
        ) from None
    return trimesh


def _parts_of_scene(scene: Any, trimesh: Any) -> tuple[list[Part], tuple[str, ...]]:
    parts: list[Part] = []
    left_out = 0
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        geometry = scene.geometry[name]
        if isinstance(geometry, trimesh.Trimesh):
            parts.extend(_parts_of_geometry(geometry, np.asarray(transform, np.float64)))
        else:
            left_out += 1
    notes = (f"{left_out} geometries without faces (points, lines) are left out",)
    return parts, notes if left_out else ()


def _parts_of_geometry(geometry: Any, transform: npt.NDArray[np.float64]) -> Iterator[Part]:
    positions = np.asarray(geometry.vertices, np.float64)
    positions = positions @ transform[:3, :3].T + transform[:3, 3]
    faces = np.asarray(geometry.faces, np.int64).reshape(-1, 3)
    if np.linalg.det(transform[:3, :3]) < 0:
        faces = faces[:, ::-1]  # mirrored: what was inside is outside now
    visual = geometry.visual
    kind = getattr(visual, "kind", None)
    if kind == "vertex":
        yield Part(positions, faces, colors=np.asarray(visual.vertex_colors)[:, :3] / 255.0)
    elif kind == "face":
        colors = np.repeat(np.asarray(visual.face_colors)[:, :3] / 255.0, 3, axis=0)
        if np.linalg.det(transform[:3, :3]) < 0:
            colors = colors.reshape(-1, 3, 3)[:, ::-1].reshape(-1, 3)
        split = np.arange(faces.size).reshape(-1, 3)
        yield Part(positions[faces.reshape(-1)], split, colors=colors)
    elif kind == "texture" and visual.uv is not None:
        yield from _textured(positions, faces, visual)
    else:
        yield Part(positions, faces)


def _textured(
    positions: npt.NDArray[np.float64], faces: npt.NDArray[np.int64], visual: Any
) -> Iterator[Part]:
    """One part for each material that the faces have."""
    uvs = np.asarray(visual.uv, np.float64)[:, :2]
    materials = getattr(visual.material, "materials", None) or [visual.material]
    chosen = getattr(visual, "face_materials", None)
    chosen = np.zeros(len(faces), np.int64) if chosen is None else np.asarray(chosen)
    for number, material in enumerate(materials):
        mine = faces[chosen == number]
        texture, factor = _material(material)
        colors = None if factor is None else np.broadcast_to(factor, (len(positions), 3))
        yield Part(positions, mine, uvs=uvs, colors=colors, texture=texture)


def _material(material: Any) -> tuple[Texture | None, npt.NDArray[np.float64] | None]:
    """(texture, the colour it is multiplied by); None is none of that."""
    image = getattr(material, "baseColorTexture", None)
    image = getattr(material, "image", None) if image is None else image
    factor = getattr(material, "baseColorFactor", None)
    if factor is None and image is None:
        factor = getattr(material, "diffuse", None)
    color = None
    if factor is not None:
        values = np.asarray(factor, np.float64)[:3]
        color = values / 255.0 if np.asarray(factor).dtype.kind in "iu" else values
        if image is None and (color == 1).all():
            color = None  # white is what a mesh without a colour is drawn in anyway
    if image is None:
        return None, color
    return np.asarray(image.convert("RGB"), np.uint8), color


def _checked(name: str, part: Part) -> Part:
    """MeshError for what cannot be drawn."""
    positions, faces = part.positions, part.faces
    if faces.min() < 0 or faces.max() >= len(positions):
        raise MeshError(
            f"{name}: a face has vertex {faces.max() if faces.min() >= 0 else faces.min()}, there "
            f"are {len(positions)}; the file is damaged, export it again"
        )
    bad = np.flatnonzero(~np.isfinite(positions).all(axis=1))
    if len(bad):
        raise MeshError(
            f"{name}: vertex {bad[0]} is at {positions[bad[0]].tolist()} ({len(bad)} such "
            "vertices); repair the mesh (Blender: Mesh > Clean Up), or export it again"
        )
    if part.uvs is not None and not np.isfinite(part.uvs).all():
        raise MeshError(f"{name}: a texture coordinate is not finite; unwrap the mesh again")
    return part


def _to_the_origin(
    name: str, positions: npt.NDArray[np.float64], faces: npt.NDArray[Any]
) -> tuple[Floats, tuple[float, float, float], float]:
    used = positions[np.unique(faces)]
    low, high = used.min(axis=0), used.max(axis=0)
    center = low / 2 + high / 2
    scale = float(np.abs(used - center).max())
    if not 0 < scale < float("inf"):
        raise MeshError(f"{name}: all vertices are at one place, so there is nothing to see")
    radius = float(np.linalg.norm((used - center) / scale, axis=1).max()) * scale
    inside = (positions - center) / radius
    # Vertices of no face may be anywhere; they are not drawn, but they must be finite.
    return np.clip(inside, -1, 1).astype(np.float32), tuple(center.tolist()), radius


def _uvs(part: Part) -> Floats:
    if part.uvs is None:
        return np.zeros((len(part.positions), 2), np.float32)
    return np.ascontiguousarray(part.uvs, np.float32)


def _colors(part: Part) -> Floats:
    if part.colors is None:
        one = CLAY if part.texture is None else (1.0, 1.0, 1.0)
        return np.full((len(part.positions), 3), one, np.float32)
    return np.ascontiguousarray(part.colors, np.float32)


def _face_textures(parts: Sequence[Part]) -> Indices:
    numbers, number = [], 0
    for part in parts:
        has = part.texture is not None
        numbers.append(np.full(len(part.faces), number if has else -1, np.int32))
        number += has
    return np.concatenate(numbers)
