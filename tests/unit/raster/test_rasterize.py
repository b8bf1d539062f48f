"""The rasteriser: equal to brute force on random scenes (a share of tests/long/raster_random.py),
the same bits however it is run, and what must hold of any rasteriser."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import how_much
import numpy as np
import pytest
import raster_exact
import raster_scenes
from places import LONG
from raster_judge import Judge, Picture, Verdict, draw

from hy3d_rocm import _core

Array = Any
RULES = ("compat", "topleft")
SEED, SCENES = 21, how_much.of(48, 300)  # each kind three times
COMMAND = LONG / "raster_random.py"


def scene(clip: Any, faces: Any, size: tuple[int, int], prior: Any = None) -> raster_scenes.Scene:
    return raster_scenes.Scene("made", np.ascontiguousarray(clip, np.float32),
                               np.ascontiguousarray(faces, np.int32), size, prior)  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_random_scenes_equal_brute_force_at_every_pixel(rule: str) -> None:
    """Replay: tests/long/raster_random.py --seed SEED --first INDEX --count 1."""
    total = Verdict()
    for index in range(SCENES):
        made = raster_scenes.scene_of(SEED, index)
        verdict = Judge(rule, made).verdict(draw(rule, made))
        assert not verdict.wrong, (index, verdict.wrong[:5])
        total.add(verdict)
    assert total.counts["covered"] > how_much.of(10_000, 50_000)
    assert total.counts["exact"] > 2_000


@pytest.mark.parametrize("rule", RULES)
def test_the_judge_sees_what_is_wrong(rule: str) -> None:
    made = raster_scenes.scene_of(SEED, 0, "soup")
    good, judge = draw(rule, made), Judge(rule, made)
    assert not judge.verdict(good).wrong
    row, column = (int(k[0]) for k in np.nonzero(good.face_index))
    outside = tuple(int(k[0]) for k in np.nonzero(good.face_index == 0))
    for part, place, value in (
        (0, (row, column), 0), (0, (row, column), len(made.faces)), (0, outside, 1),
        (1, (row, column, 0), good.barycentric[row, column, 0] + 2e-5), (1, (*outside, 1), 0.5),
        (2, (row, column), good.depth[row, column] + 1e-6), (2, outside, 0.0),
    ):  # fmt: skip
        bad = Picture(*(array.copy() for array in good))
        bad[part][place] = value
        if not all(np.array_equal(a, b) for a, b in zip(bad, good, strict=True)):
            assert judge.verdict(bad).wrong, (part, place, value)


def digest(level: str, threads: int) -> list[str]:
    command = [sys.executable, str(COMMAND), "--digest", "--count", "105", "--seed", str(SEED),
               "--threads", str(threads), "--level", level]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    return done.stdout.split()


def test_no_thread_count_and_no_cpu_level_changes_a_bit() -> None:
    """tests/c/test_rasterize.c has more threads than this machine may have CPUs."""
    wanted = None
    for level in _core.cpu_info()["levels"]:
        for threads in (1, 2, 3, 8) if level == _core.cpu_info()["level"] else (1,):
            used, found = digest(level, threads)
            assert used == level
            wanted = wanted or found
            assert found == wanted, (level, threads)


def many(rng: Any, count: int, reach: float) -> Array:
    """Corners (3 count, 4) of triangles before the eye; every hundredth is large."""
    centre = rng.uniform(-1.1, 1.1, (count, 1, 2))
    size = np.where(np.arange(count) % 100 == 0, 0.8, reach)[:, None, None]
    xy = centre + rng.normal(size=(count, 3, 2)) * size
    z, w = rng.uniform(-0.9, 0.9, (count, 3, 1)), rng.uniform(0.5, 2, (count, 3, 1))
    return np.concatenate([xy * w, z * w, w], 2).reshape(-1, 4).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
def test_pictures_of_many_tiles_and_faces_are_right_at_random_pixels(rule: str) -> None:
    """More faces than one part of the bins takes, and some in many tiles."""
    rng = np.random.default_rng(5)
    count, size = 20_000, (203, 331)
    made = scene(many(rng, count, 0.02), np.arange(3 * count).reshape(-1, 3), size)
    picture = draw(rule, made, threads=2)
    exact = raster_exact.Scene(rule, made.clip, made.faces, size)
    step, offset = (1, 0.5) if rule == "compat" else (0, 0.0)
    places = (made.clip[:, :2] / made.clip[:, 3:] * 0.5 + 0.5) * (
        [size[1] - step, size[0] - step]) + offset  # fmt: skip
    corners = places.reshape(-1, 3, 2)
    low, high = corners.min(1) - 0.01, corners.max(1) + 0.01
    for row, column in rng.integers((0, 0), size, (300, 2)):
        at = np.array([column + 0.5, row + 0.5])
        near = np.nonzero(((low <= at) & (at <= high)).all(1))[0]
        wanted = exact.winner(row, column, near)
        assert picture.face_index[row, column] == wanted, (row, column)


def coverage(rule: str, clip: Any, faces: Any, size: tuple[int, int]) -> Array:
    """How many faces cover each pixel, each drawn alone."""
    return sum((draw(rule, scene(clip, [face], size)).face_index != 0).astype(int)
               for face in faces)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_sheet_covers_each_pixel_exactly_once(seed: int) -> None:
    """Its outline beyond the picture, the rest anywhere or on centres and corners of pixels."""
    rng = np.random.default_rng(seed)
    uv, faces = raster_scenes._grid(7, 6)
    xy = uv * 2 - 1
    inner = ((uv > 0) & (uv < 1)).all(1)
    xy[inner] += rng.normal(size=(inner.sum(), 2)) * 0.03
    w = np.ones((len(xy), 1))
    if seed % 2:
        xy = np.round(xy * 16) / 16 + 1 / 64
        w = np.exp2(rng.integers(-2, 3, (len(xy), 1)))
    elif seed:
        w = rng.uniform(0.3, 3, (len(xy), 1))
    xy[~inner] *= 1.5
    clip = np.hstack([xy * w, rng.uniform(-0.2, 0.2, (len(xy), 1)), w])
    for size in ((32, 64), (64, 32), (45, 33)):
        found = coverage("topleft", clip, faces, size)
        assert (found == 1).all(), (size, np.argwhere(found != 1)[:5])


@pytest.mark.parametrize("make", [raster_scenes.sphere, raster_scenes.torus])
def test_a_closed_surface_has_as_many_fronts_as_backs_at_every_pixel(make: Any) -> None:
    rng = np.random.default_rng(2)
    points, faces = make(7, 9)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    points = points @ turn
    for size in ((33, 40), (64, 64)):
        clip = np.hstack([points[:, :2] * 1.5, points[:, 2:] * 0.5, 2.5 - points[:, 2:]])
        clip = clip.astype(np.float32)
        corners = clip[faces].astype(np.float64)[..., [0, 1, 3]]
        front = np.linalg.det(corners) > 0
        assert 0 < front.sum() < len(front)
        fronts = coverage("topleft", clip, faces[front], size)
        backs = coverage("topleft", clip, faces[~front], size)
        assert np.array_equal(fronts, backs)
        assert fronts.max() >= 1


@pytest.mark.parametrize("rule", RULES)
def test_peeling_shows_the_layers_in_order(rule: str) -> None:
    """Each pass has the depth of the one before as its prior."""
    rng = np.random.default_rng(3)
    layers, size = 9, (40, 37)
    heights = np.linspace(-0.8, 0.8, layers)
    order = rng.permutation(layers)
    corners = np.array([[-3, -1], [3, -1], [0, 5]], float)
    clip = np.concatenate([np.hstack([corners, np.full((3, 1), heights[k]), np.ones((3, 1))])
                           for k in order])  # fmt: skip
    faces = np.arange(3 * layers).reshape(-1, 3)
    prior = None
    for layer in range(layers):
        picture = draw(rule, scene(clip, faces, size, prior))
        assert (picture.face_index == np.nonzero(order == layer)[0][0] + 1).all()
        prior = picture.depth
    last = draw(rule, scene(clip, faces, size, prior))
    assert (last.face_index == 0).all()
    assert (last.depth == np.inf).all()
    assert (draw(rule, scene(clip, faces, size, last.depth)).face_index == 0).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [(31, 33), (32, 32), (33, 31), (65, 64), (97, 3), (1, 130)])
def test_faces_over_borders_of_tiles_are_seamless(rule: str, size: tuple[int, int]) -> None:
    for index in range(6):
        drawn = raster_scenes.scene_of(SEED, index, "huge")
        made = scene(drawn.clip, drawn.faces, size)
        verdict = Judge(rule, made).verdict(draw(rule, made))
        assert not verdict.wrong, (index, verdict.wrong[:5])


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_faces_changes_only_their_numbers(rule: str) -> None:
    rng = np.random.default_rng(4)
    clip, faces = raster_scenes.soup(rng, 60)
    clip[:, 2] = np.repeat(rng.permutation(60) / 40 - 0.7, 3) * clip[:, 3]  # no equal depths
    size = (70, 75)
    first = draw(rule, scene(clip, faces, size))
    for _ in range(3):
        order = rng.permutation(60)
        again = draw(rule, scene(clip, faces[order], size))
        back = np.concatenate([[0], order + 1])
        assert np.array_equal(back[again.face_index], first.face_index)
        assert np.array_equal(again.barycentric, first.barycentric)
        assert np.array_equal(again.depth, first.depth)


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_corners_changes_no_coverage(rule: str) -> None:
    for index, kind in enumerate(("lattice", "slivers", "fan", "behind", "needles")):
        made = raster_scenes.scene_of(SEED, index, kind)
        clip, faces = made.clip, made.faces[:12]
        first = coverage(rule, clip, faces, made.size)
        for turn in itertools.permutations(range(3)):
            found = coverage(rule, clip, faces[:, turn], made.size)
            assert np.array_equal(found, first), (kind, turn)


@pytest.mark.parametrize("rule", RULES)
def test_powers_of_two_scale_everything_alike(rule: str) -> None:
    for index in range(8):
        made = raster_scenes.scene_of(SEED, index, ("soup", "closed", "fan", "planes")[index % 4])
        first = draw(rule, made)
        for power in (-20, 30):
            clip = np.ldexp(made.clip, power)
            scaled = draw(rule, scene(clip, made.faces, made.size, made.prior))
            for a, b in zip(first, scaled, strict=True):
                assert np.array_equal(a, b), (index, power)


def test_only_the_face_index_may_be_asked_for() -> None:
    made = raster_scenes.scene_of(SEED, 0, "soup")
    for rule in RULES:
        whole, alone = draw(rule, made), np.full(made.size, -7, np.int32)
        _core.rasterize(made.clip, made.faces, made.prior, alone, None, None, rule)
        assert np.array_equal(alone, whole.face_index)
