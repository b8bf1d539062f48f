"""_core.vertex_normals against sums in extended precision and against shapes that are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from raster_mesh_support import Array, floats

from hy3d_rocm import _core

ROUNDING = 2.0**-25  # of a number of at most 1 to float32


def normals_of(positions: Array, faces: Array, **options: Any) -> Array:
    normals = np.full(positions.shape, 7.0, np.float32)
    assert _core.vertex_normals(positions, faces, normals, **options) is None
    return normals


def oracle(positions: Array, faces: Array, weighting: str) -> tuple[Array, Array]:
    """Unit normals (0 where there is none) in long double, and what a relative error of 1 in every
    face would do to them."""
    corners = positions.astype(np.longdouble)[faces]
    sums = np.zeros(positions.shape, np.longdouble)
    sizes = np.zeros(len(positions), np.longdouble)
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.sqrt((cross**2).sum(1))
    reach = abs(corners[:, 1:] - corners[:, :1]).sum(2).prod(1)  # at least |e1| * |e2|
    for k in range(3):
        one = corners[:, (k + 1) % 3] - corners[:, k]
        two = corners[:, (k + 2) % 3] - corners[:, k]
        weight = np.ones(len(faces), np.longdouble)
        if weighting == "angle":
            weight = np.arctan2(length, (one * two).sum(1)) / np.where(length > 0, length, 1)
        used = length > 0
        np.add.at(sums, faces[used, k], (weight[:, None] * cross)[used])
        np.add.at(sizes, faces[used, k], (weight * reach)[used])
    whole = np.sqrt((sums**2).sum(1))
    whole = np.where(whole > 0, whole, 1)
    return sums / whole[:, None], sizes / whole


@pytest.mark.parametrize("seed", range(5))
def test_whole_numbers_give_the_rounded_direction_by_area(seed: int) -> None:
    """All sums are exact then; a root, a division (2^-52 in all) and the rounding are left."""
    rng = np.random.default_rng(seed)
    positions = rng.integers(-1000, 1001, (300, 3)).astype(np.float32)
    faces = rng.integers(0, 300, (500, 3), dtype=np.int32)
    wanted, _ = oracle(positions, faces, "area")
    assert abs(normals_of(positions, faces) - wanted).max() <= ROUNDING + 2.0**-50


@pytest.mark.parametrize("weighting", ["area", "angle"])
def test_any_positions_are_within_what_double_loses(weighting: str) -> None:
    """With u = 2^-53: edges, products and the difference of a cross product lose at most 4 u of
    |e1| |e2| in each coordinate, so its length 8 u; an angle 13 u, and it is at most
    weight * |e1| |e2|; the weight and its product a few u; n sums n u. Together less than
    (40 + n) u of weight * |e1| |e2|, and twice that after a division by the sum's length."""
    rng = np.random.default_rng(7)
    positions = floats(rng, 5000, 3)
    faces = np.array([rng.choice(5000, 3, replace=False) for _ in range(9000)], np.int32)
    wanted, sizes = oracle(positions, faces, weighting)
    count = np.bincount(faces.ravel(), minlength=5000)
    room = ROUNDING + 2 * 2.0**-53 * (40 + count) * sizes
    assert np.median(room) < 1.01 * ROUNDING
    assert (abs(normals_of(positions, faces, weighting=weighting) - wanted).max(1) <= room).all()


def test_by_angle_it_does_not_matter_how_a_cube_is_cut() -> None:
    corner = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1], indexing="ij")).reshape(3, -1).T.copy()
    squares = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    rng = np.random.default_rng(3)
    by_area = set()
    for _ in range(20):
        turned = [np.roll(square, rng.integers(0, 2)) for square in squares]
        faces = np.array([t[[0, 1, 2, 0, 2, 3]].reshape(2, 3) for t in turned], np.int32)
        faces = rng.permutation(faces.reshape(-1, 3))
        positions = corner.astype(np.float32)
        got = normals_of(positions, faces, weighting="angle")
        assert abs(got - corner / np.sqrt(3)).max() <= ROUNDING + 2.0**-49
        by_area.add(normals_of(positions, faces).tobytes())
    assert len(by_area) > 1


def test_a_vertex_without_a_direction_has_zero() -> None:
    positions = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [2, 0, 0], [5, 5, 5]], np.float32)
    no_faces = np.empty((0, 3), np.int32)
    both_ways = np.array([[0, 1, 2], [0, 2, 1]], np.int32)
    slivers = np.array([[0, 1, 3], [2, 2, 4], [4, 4, 4]], np.int32)
    for faces in (no_faces, both_ways, slivers):
        for weighting in ("area", "angle"):
            assert not normals_of(positions, faces, weighting=weighting).any()
    assert normals_of(np.empty((0, 3), np.float32), no_faces).shape == (0, 3)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30, 1e38])
def test_tiny_and_huge_meshes_have_directions_too(scale: float) -> None:
    positions = (np.eye(3) * scale).astype(np.float32)
    faces = np.array([[0, 1, 2]], np.int32)
    for weighting in ("area", "angle"):
        got = normals_of(positions, faces, weighting=weighting)
        assert abs(got - 1 / np.sqrt(3)).max() <= ROUNDING + 2.0**-49


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("positions", lambda: np.array([[0, 0, 0], [0, np.nan, 0]], np.float32), "in vertex 1"),
    ("positions", lambda: np.array([[0, 0, np.inf], [0, 0, 0]], np.float32), "in vertex 0"),
    ("positions", lambda: np.zeros((2, 4), np.float32), "4 values a row: it needs 3"),
    ("positions", lambda: np.zeros((2, 3)), "must be float32"),
    ("faces", lambda: np.array([[0, 0, 0], [0, 1, 2]], np.int32), "index 2 in face 1"),
    ("faces", lambda: np.array([[0, 0, -5]], np.int32), "index -5 in face 0"),
    ("faces", lambda: np.zeros((1, 3), np.int64), "must be int32"),
    ("normals", lambda: np.zeros((3, 3), np.float32), "has size 3 in dimension 0"),
    ("weighting", lambda: "volume", 'must be "area" or "angle"'),
]


@pytest.mark.parametrize(("name", "make", "sentence"), BAD, ids=[b[0] + "-" + b[2] for b in BAD])
def test_what_has_no_meaning_is_told_and_nothing_is_written(
    name: str, make: Callable[[], Any], sentence: str
) -> None:
    normals = np.full((2, 3), 7, np.float32)
    call: dict[str, Any] = {
        "positions": np.zeros((2, 3), np.float32), "faces": np.array([[0, 1, 1]], np.int32),
        "normals": normals,
    }  # fmt: skip
    call[name] = make()
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(sentence)}"):
        _core.vertex_normals(**call)
    assert (normals == 7).all()
