"""Normals that are smooth where a surface is, and not across its edges.

A mesh has one vertex where faces meet. To have several normals there, each corner of a face gets
the number of its smoothing group: two corners at one place are of one group if their faces share an
edge there that bends by less than the crease angle, or are linked by such faces.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Indices = npt.NDArray[np.int32]


def crease_normals(
    positions: Floats, faces: Indices, crease: float = 40.0
) -> tuple[Floats, Indices]:
    """(normals (N, 3) of length 1, normal_faces (F, 3)): the normal of corner k of face f is
    normals[normal_faces[f, k]]. crease: degrees; 180 is smooth everywhere, 0 is faceted.

    Vertices at the same place count as one, so that a texture's seams do not show.
    """
    from hy3d_rocm.raster import vertex_normals

    if not 0 <= crease <= 180:
        raise ValueError(f"the crease angle is {crease}; give 0 (faceted) to 180 (smooth) degrees")
    if crease == 0:
        split = np.arange(faces.size, dtype=np.int32).reshape(-1, 3)
        normals = vertex_normals(positions[faces.reshape(-1)], split)
        return normals, split
    places, merged = merge_places(positions, faces)
    groups = merged if crease == 180 else _groups(places, merged, crease)
    at = np.zeros((int(groups.max()) + 1, 3), np.float32)
    at[groups.reshape(-1)] = places[merged.reshape(-1)]
    return vertex_normals(at, groups, weighting="angle"), groups


def merge_places(positions: Floats, faces: Indices) -> tuple[Floats, Indices]:
    """(places, faces of places): vertices with the same coordinates are one."""
    whole = np.ascontiguousarray(positions + np.float32(0))  # no -0.0, which has other bytes
    keys = whole.view([("", np.float32)] * 3).reshape(-1)
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return whole[first], number.astype(np.int32).reshape(-1)[faces]


def face_normals(positions: Floats, faces: Indices) -> Floats:
    """(F, 3) of length 1; 0 for a face without area."""
    corners = positions[faces].astype(np.float64)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    unit: Floats = np.divide(normals, length, out=np.zeros_like(normals), where=length > 0).astype(
        np.float32
    )
    return unit


def _groups(places: Floats, faces: Indices, crease: float) -> Indices:
    """(F, 3): the smoothing group of each corner, from 0 on."""
    first, second = _smooth_links(places, faces, math.cos(math.radians(crease)))
    label = np.arange(faces.size, dtype=np.int64)
    while True:  # the least number of all linked corners: each round doubles the reach
        least = np.minimum(label[first], label[second])
        np.minimum.at(label, label[first], least)
        np.minimum.at(label, label[second], least)
        label = label[label]
        if np.array_equal(label[first], label[second]):
            break
    _, groups = np.unique(label, return_inverse=True)
    return groups.astype(np.int32).reshape(faces.shape)


def _smooth_links(
    places: Floats, faces: Indices, least_cosine: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of corners (numbers 3 f + k) at one place, at an edge that bends less than allowed."""
    low = faces.astype(np.int64)
    high = np.roll(low, -1, axis=1)  # edge k goes from corner k to corner k + 1
    corners = np.arange(faces.size, dtype=np.int64).reshape(-1, 3)
    following = np.roll(corners, -1, axis=1)
    swap = low > high
    low, high = np.where(swap, high, low), np.where(swap, low, high)
    start = np.where(swap, following, corners).reshape(-1)
    end = np.where(swap, corners, following).reshape(-1)
    key = (low * np.int64(len(places)) + high).reshape(-1)
    order = np.argsort(key, kind="stable")
    here, there = order[:-1], order[1:]
    same = key[here] == key[there]
    here, there = here[same], there[same]
    normals = face_normals(places, faces)
    ours, theirs = normals[here // 3], normals[there // 3]
    cosine = np.einsum("ij,ij->i", ours, theirs)
    flat = ~(ours.any(axis=1) & theirs.any(axis=1))  # a face without area bends nothing
    smooth = (cosine >= least_cosine) | flat
    here, there = here[smooth], there[smooth]
    return (
        np.concatenate([start[here], end[here]]),
        np.concatenate([start[there], end[there]]),
    )
