"""Pictures of a drawing: each map is a function of it to an array that is written as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.render.drawing import Drawing
from examples.render.shading import shaded_colors

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Picture = npt.NDArray[np.uint8]

Color = tuple[int, int, int]
WHITE: Color = (255, 255, 255)
NORMAL_AXES = ("world", "camera", "stage")
# Of the surface in a depth map; 0 is where nothing is.
NEAREST_DEPTH, FARTHEST_DEPTH = 65535, 6554
# A depth map's range is no smaller, in radii: else a flat side would show the rounding of float32.
_LEAST_DEPTH_SPAN = 1e-3
_FACE_BITS, _FACE_MASK = 24, 0xFFFFFF
# Odd, so that it is a bijection of the numbers below 2^24; and its inverse.
_FACE_FACTOR = 0x9E3779
_FACE_INVERSE = pow(_FACE_FACTOR, -1, 1 << _FACE_BITS)


def normal_map(drawing: Drawing, axes: str = "world", background: Color | None = WHITE) -> Picture:
    """Normals as colours, -1..1 as 0..255.

    axes: "world": red, green and blue are X, Y and Z of the mesh. "camera": right, up and towards
    the viewer, so that what faces the viewer is blue. "stage": X, -Z and Y, as the texture stage
    has them. A surface keeps the side that its faces' order gives it, also seen from behind.
    """
    normals = drawing.normals
    if axes == "camera":
        normals = normals @ drawing.view.axes.T.astype(np.float32)
    elif axes == "stage":
        normals = as_stage(normals)
    elif axes != "world":
        raise ValueError(f"axes is {axes!r}; give one of {', '.join(NORMAL_AXES)}")
    return _painted(drawing, normals * np.float32(0.5) + np.float32(0.5), background)


def position_map(drawing: Drawing, background: Color | None = WHITE) -> Picture:
    """Positions as colours, as the texture stage encodes them: in the cube around the ball that
    holds the mesh, red to +X, green to -Z, blue to +Y, each from 0 to 255."""
    places = as_stage(drawing.positions()) * np.float32(0.5) + np.float32(0.5)
    return _painted(drawing, places, background)


def color_map(drawing: Drawing, background: Color | None = WHITE) -> Picture:
    """Texture and colours without any light."""
    return _painted(drawing, drawing.colors(), background)


def shaded_map(drawing: Drawing, background: Color | None = WHITE) -> Picture:
    """The mesh in the light of a studio, in its colours or as clay."""
    return _painted(drawing, shaded_colors(drawing), background)


def face_map(drawing: Drawing, background: Color | None = WHITE) -> Picture:
    """Each face in a colour of its own, the same in every view (see face_colors).

    The background's colour is some face's, too, and with supersample edges are mixed with it:
    faces_of_colors needs the mask, or background=None.
    """
    if drawing.supersample == 1:
        return _placed(drawing, face_colors(drawing.faces - 1), background)
    faces = drawing.face_picture()
    picture = face_colors(np.maximum(faces - 1, 0))
    return _with_background(picture, (faces > 0).astype(np.float32), background)


def mask_map(drawing: Drawing) -> Picture:
    """(H, W): 255 where the mesh is, 0 where it is not, between them along an antialiased edge."""
    _, covered = drawing.resolved(np.zeros((len(drawing.samples), 0), np.float32))
    return _bytes(covered)


def depth_map(drawing: Drawing) -> npt.NDArray[np.uint16]:
    """(H, W): the nearest surface is white (65535), the farthest that is seen dark (6554), linear
    in the distance along the camera's axis between them; 0 is where nothing is."""
    near, far = depth_range(drawing)
    share = (drawing.distances() - np.float32(near)) / np.float32(far - near)
    values = NEAREST_DEPTH + share * (FARTHEST_DEPTH - NEAREST_DEPTH)
    means, covered = drawing.resolved(values.astype(np.float32)[:, None])
    return np.where(covered > 0, np.rint(means[..., 0]), 0).astype(np.uint16)


def depth_range(drawing: Drawing) -> tuple[float, float]:
    """The distances, in radii, of depth_map's white and dark: of the nearest and of the farthest
    surface that is seen, but never closer together than _LEAST_DEPTH_SPAN."""
    distances = drawing.distances()
    if not len(distances):
        return 0.0, _LEAST_DEPTH_SPAN
    near, far = float(distances.min()), float(distances.max())
    return near, max(far, near + _LEAST_DEPTH_SPAN)


def face_colors(faces: npt.NDArray[Any]) -> Picture:
    """(..., 3): a colour for each face number below 2^24, no two the same. From 2^24 on they
    repeat: face n has that of face n - 2^24."""
    mixed = (faces.astype(np.int64) + 1) & _FACE_MASK
    for _ in range(2):
        mixed = mixed * _FACE_FACTOR & _FACE_MASK
        mixed ^= mixed >> 12
    return np.stack([mixed >> 16, mixed >> 8 & 255, mixed & 255], axis=-1).astype(np.uint8)


def faces_of_colors(colors: Picture, mask: npt.NDArray[Any] | None = None) -> npt.NDArray[np.int64]:
    """The face numbers (...,), below 2^24, that face_colors gave these colours; -1 where none is.

    colors: (..., 3), or a face_map without background (..., 4): -1 where alpha is 0. mask: (...,),
    of mask_map (mask_VIEW.png) or bool: -1 where it is not 255 or True. A colour alone does not
    tell: each is some face's, also the background's. ValueError for other shapes.
    """
    colors = np.asarray(colors)
    if colors.ndim == 0 or colors.shape[-1] not in (3, 4):
        raise ValueError(f"colors has shape {colors.shape}; give (..., 3) or (..., 4)")
    known = np.ones(colors.shape[:-1], np.bool_)
    if colors.shape[-1] == 4:
        known &= colors[..., 3] > 0
    if mask is not None:
        mask = np.asarray(mask)
        if mask.shape != known.shape:
            raise ValueError(f"mask has shape {mask.shape}; colors needs {known.shape}")
        known &= mask if mask.dtype == np.bool_ else mask == 255
    return np.where(known, _numbers(colors[..., :3]), -1)


def _numbers(colors: Picture) -> npt.NDArray[np.int64]:
    """face_colors undone."""
    red, green, blue = np.moveaxis(colors.astype(np.int64), -1, 0)
    mixed = red << 16 | green << 8 | blue
    for _ in range(2):
        mixed ^= mixed >> 12  # undoes itself: what is shifted in comes from bits that it left
        mixed = mixed * _FACE_INVERSE & _FACE_MASK
    faces: npt.NDArray[np.int64] = (mixed - 1) & _FACE_MASK
    return faces


def as_stage(vectors: Floats) -> Floats:
    """(K, 3) in mesh axes (X, Y, Z) as the texture stage orders them: X, -Z, Y."""
    return np.stack([vectors[:, 0], -vectors[:, 2], vectors[:, 1]], axis=1)


def _painted(drawing: Drawing, colors: Floats, background: Color | None) -> Picture:
    if drawing.supersample == 1:
        return _placed(drawing, _bytes(colors), background)
    means, covered = drawing.resolved(colors)
    return _with_background(_bytes(means), covered, background)


def _placed(drawing: Drawing, colors: Picture, background: Color | None) -> Picture:
    """The samples are pixels: their colours (K, 3), put where they belong."""
    height, width = drawing.size
    around = (0, 0, 0, 0) if background is None else background
    picture = np.empty((height * width, len(around)), np.uint8)
    picture[:] = around
    picture[drawing.samples, :3] = colors
    if background is None:
        picture[drawing.samples, 3] = 255
    return picture.reshape(height, width, -1)


def _with_background(picture: Picture, covered: Floats, background: Color | None) -> Picture:
    """(H, W, 3) before a background, or (H, W, 4) with alpha where there is none."""
    if background is None:
        return np.concatenate([picture, _bytes(covered)[..., None]], axis=-1)
    share = covered[..., None]
    mixed = picture * share + np.array(background, np.float32) * (1 - share)
    opaque: Picture = np.rint(mixed).astype(np.uint8)
    return opaque


def _bytes(values: Floats) -> Picture:
    whole: Picture = np.rint(np.clip(values, 0, 1) * np.float32(255)).astype(np.uint8)
    return whole


MAPS: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "shaded": shaded_map,
    "color": color_map,
    "normal": normal_map,
    "position": position_map,
    "depth": depth_map,
    "face": face_map,
    "mask": mask_map,
}
