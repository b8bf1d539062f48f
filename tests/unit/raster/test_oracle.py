"""The judges judged: float64 on the screen, whole numbers, clipping in fractions and pictures
drawn by hand agree with each other, without the rasteriser."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import how_much
import numpy as np
import pytest
import raster_exact
import raster_oracle
import raster_scenes

RULES = ("compat", "topleft")
SEED, SCENES = 11, how_much.of(32, 112)  # each kind twice
Vertex = list[Fraction]


def candidates(reference: raster_oracle.Reference, row: int, column: int) -> list[int]:
    f = reference.fragments
    return [int(k) for k in np.unique(f.face[(f.row == row) & (f.column == column)])]


@pytest.mark.parametrize("rule", RULES)
def test_float64_on_the_screen_is_right_wherever_it_is_sure(rule: str) -> None:
    """And its fragments leave nothing out. Replay: raster_scenes.scene_of(SEED, index)."""
    sure = 0
    for index in range(SCENES):
        scene = raster_scenes.scene_of(SEED, index)
        given = (rule, scene.clip, scene.faces, scene.size, scene.prior)
        reference, exact = raster_oracle.reference(*given), raster_exact.Scene(*given)
        rng = np.random.default_rng(index)
        for row, column in rng.integers((0, 0), scene.size, (10, 2)):
            whole = exact.winner(row, column)
            assert whole == exact.winner(row, column, candidates(reference, row, column)), index
            if reference.unsure[row, column]:
                continue
            sure += 1
            assert whole == reference.face_index[row, column], (index, row, column)
            if whole:
                check_values(reference, exact, whole - 1, row, column)
    assert sure > SCENES * 7


def check_values(
    reference: raster_oracle.Reference, exact: raster_exact.Scene, face: int, row: int, column: int
) -> None:
    """Errors are within their bounds."""
    depth = exact.seen(row, column, [face])[0].depth
    shares = exact.barycentric(face, row, column)
    assert abs(Fraction(float(reference.depth.value[row, column])) - depth) <= Fraction(
        float(reference.depth.error[row, column])
    )
    error = reference.barycentric.error[row, column]
    values = reference.barycentric.value[row, column]
    for share, value, bound in zip(shares, values, error, strict=True):
        assert abs(Fraction(float(value)) - share) <= Fraction(float(bound))


def clipped(vertices: list[Vertex]) -> list[Vertex]:
    """Sutherland-Hodgman in fractions: -W <= Z <= W."""
    polygon = vertices
    for sign in (1, -1):
        kept = []
        for k, here in enumerate(polygon):
            there = polygon[k - 1]
            mine, its = here[3] + sign * here[2], there[3] + sign * there[2]
            if (mine >= 0) != (its >= 0):
                way = its / (its - mine)
                kept.append([a + way * (b - a) for a, b in zip(there, here, strict=True)])
            if mine >= 0:
                kept.append(here)
        polygon = kept
    return polygon


def strictly_inside(polygon: list[Vertex], size: tuple[int, int], row: int, column: int) -> Any:
    """Of a convex polygon on the screen: True, False, or None on its outline."""
    points = [((v[0] / v[3] + 1) / 2 * size[1], (v[1] / v[3] + 1) / 2 * size[0]) for v in polygon]
    px, py = column + Fraction(1, 2), row + Fraction(1, 2)
    sides = set()
    for k, (bx, by) in enumerate(points):
        ax, ay = points[k - 1]
        side = (bx - ax) * (py - ay) - (by - ay) * (px - ax)
        if (ax, ay) != (bx, by):
            sides.add((side > 0) - (side < 0))
    return None if 0 in sides else len(sides) == 1


def test_rays_of_topleft_meet_what_clipping_in_fractions_leaves() -> None:
    compared = 0
    for index in range(60):
        scene = raster_scenes.scene_of(SEED, index, ("planes", "behind", "closed")[index % 3])
        exact = raster_exact.Scene("topleft", scene.clip, scene.faces, scene.size)
        for number in range(min(len(scene.faces), 12)):
            vertices = [[Fraction(float(x)) for x in scene.clip[v]] for v in scene.faces[number]]
            polygon, face = clipped(vertices), exact.face(number)
            if any(v[3] == 0 for v in polygon):
                continue
            for row, column in np.random.default_rng(number).integers((0, 0), scene.size, (8, 2)):
                inside = polygon and strictly_inside(polygon, scene.size, int(row), int(column))
                if inside is None:
                    continue
                compared += 1
                covered = face is not None and face.covers(2 * int(column) + 1, 2 * int(row) + 1)
                assert covered == bool(inside), (index, number, row, column)
    assert compared > 3000


def picture(rule: str, clip: Any, faces: Any, size: tuple[int, int]) -> list[str]:
    scene = raster_exact.Scene(rule, np.array(clip, np.float32), np.array(faces), size)
    return ["".join(str(scene.winner(row, column)) for column in range(size[1]))
            for row in range(size[0])]  # fmt: skip


def flat(*points: tuple[float, float]) -> list[tuple[float, float, float, float]]:
    return [(x, y, 0.0, 1.0) for x, y in points]


def test_a_square_of_two_triangles_as_drawn_by_hand() -> None:
    """From corner to corner: compat's corners are centres of pixels, topleft's are not."""
    clip, faces = flat((-1, -1), (1, -1), (-1, 1), (1, 1)), [(0, 1, 2), (3, 2, 1)]
    assert picture("compat", clip, faces, (4, 4)) == ["1111", "1112", "1122", "1222"]
    # The diagonal goes through the centres of i + j = 3: the right one's left edge owns it.
    assert picture("topleft", clip, faces, (4, 4)) == ["1112", "1122", "1222", "2222"]


def test_edges_on_centres_belong_to_the_triangle_right_or_below() -> None:
    # Corners on centres of pixels 1 and 3 of 4: -1/4 and 3/4.
    square = flat((-0.25, -0.25), (0.75, -0.25), (-0.25, 0.75), (0.75, 0.75))
    faces = [(0, 1, 2), (1, 3, 2)]
    assert picture("topleft", square, faces, (4, 4)) == ["0000", "0110", "0120", "0000"]
    assert picture("topleft", square, [f[::-1] for f in faces], (4, 4)) == [
        "0000", "0110", "0120", "0000"]  # fmt: skip
