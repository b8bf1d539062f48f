"""Views, drawings and maps, against what geometry says they must be."""

from __future__ import annotations

import numpy as np
import pytest

from examples.render import camera, creases, drawing, made, maps
from examples.render.camera import HALF_SIDE, View, six_views, views_around
from examples.render.drawing import draw, sample_texture
from examples.render.meshes import Mesh, Part, mesh_of_parts

SIZE = 128


@pytest.fixture(scope="module")
def ball() -> Mesh:
    return made.make_mesh("sphere")


def rays(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Right and up, in radii, of the pixels' centres of an orthographic view (size, size)."""
    steps = ((np.arange(size) + 0.5) / size * 2 - 1) * HALF_SIDE
    return np.meshgrid(steps, -steps)


def facet_error() -> float:
    """How far inside of the unit sphere made.sphere's faces are at most, its poles included: the
    sagitta of a face, whose corners are 180/128 degrees apart in both directions."""
    half_diagonal = np.hypot(np.pi / 128, 2 * np.pi / 256) / 2
    return float(1 - np.cos(half_diagonal))


@pytest.mark.parametrize("view", six_views(), ids=lambda view: view.name)
def test_a_sphere_has_the_distances_and_normals_of_one(ball: Mesh, view: View) -> None:
    seen = draw(ball, view, (SIZE, SIZE), threads=1)
    right, up = (grid.reshape(-1)[seen.samples] for grid in rays(SIZE))
    off_axis = np.hypot(right, up)
    assert off_axis.max() <= 1 + 1e-6
    inner = off_axis < 0.9
    front = np.sqrt(1 - np.minimum(off_axis, 1) ** 2)
    # A face lies `facet_error` inside along its normal, so by that over the cosine along the view.
    bound = facet_error() / front[inner] + 1e-5
    assert (np.abs(view.camera_distance - seen.distances() - front)[inner] <= bound).all()
    expected = np.stack([right, up, front], axis=1) @ view.axes
    # Interpolated normals are those of a point of the face, which is off by twice the tilt at most.
    tilt = 2 * np.pi / 128
    assert (np.abs(seen.normals - expected)[inner] <= tilt).all()
    assert len(seen.samples) == pytest.approx(np.pi / (2 * HALF_SIDE) ** 2 * SIZE**2, rel=0.01)


def test_each_of_the_six_views_shows_its_side_upright() -> None:
    box = made.make_mesh("cube")
    sides = {"front": (0, 0, 1), "right": (1, 0, 0), "back": (0, 0, -1), "left": (-1, 0, 0),
             "top": (0, 1, 0), "bottom": (0, -1, 0)}  # fmt: skip
    # Of each picture's middle row, left to right, and middle column, upwards: which way they go.
    rightwards = {"front": (1, 0, 0), "right": (0, 0, -1), "back": (-1, 0, 0), "left": (0, 0, 1),
                  "top": (1, 0, 0), "bottom": (-1, 0, 0)}  # fmt: skip
    for view in six_views():
        seen = draw(box, view, (65, 65), threads=1)
        assert np.abs(seen.normals - np.array(sides[view.name])).max() < 1e-6, view.name
        places = np.zeros((65 * 65, 3), np.float32)
        places[seen.samples] = seen.positions()
        places = places.reshape(65, 65, 3)
        across = places[32, 42] - places[32, 22]
        upwards = places[22, 32] - places[42, 32]
        right = np.array(rightwards[view.name])
        assert np.argmax(across * right) == np.abs(right).argmax(), view.name
        assert (across * right).sum() > 0.1, view.name
        expected = np.cross(sides[view.name], right)  # up, of a right-handed frame
        assert (upwards * expected).sum() > 0.1, view.name
        assert np.allclose(view.axes @ view.axes.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(view.axes) == pytest.approx(1)


@pytest.mark.parametrize("fov", [None, 15.0, 60.0, 120.0])
@pytest.mark.parametrize("rule", ["topleft", "compat"])
def test_the_whole_mesh_is_in_the_picture_whatever_the_camera(fov: float | None, rule: str) -> None:
    mesh = mesh_of_parts("torus", [made.torus(48, 24)])
    for view in [*six_views(fov), *views_around(5, 33.0, fov)]:
        seen = draw(mesh, view, (48, 64), rule=rule, threads=1)
        rows, columns = np.divmod(seen.samples, 64)
        assert len(rows) > 100
        assert rows.min() > 0
        assert columns.min() > 0
        assert rows.max() < 47
        assert columns.max() < 63


def test_nearer_parts_are_larger_in_perspective_and_not_in_an_orthographic_view() -> None:
    quads = [_quad(-0.5, z) for z in (0.5,)] + [_quad(0.5, z) for z in (-0.5,)]
    mesh = mesh_of_parts("two", quads)
    for fov, least in ((None, 1.0), (60.0, 1.3)):
        seen = draw(mesh, views_around(1, 0.0, fov)[0], (256, 256), threads=1)
        near, far = (np.count_nonzero((seen.faces - 1) // 2 == k) for k in (0, 1))
        assert near / far == pytest.approx(1.0, rel=0.03) if fov is None else near / far > least


def _quad(x: float, z: float) -> Part:
    corners = np.array([[-0.3, -0.3, 0], [0.3, -0.3, 0], [0.3, 0.3, 0], [-0.3, 0.3, 0]])
    return Part(corners + np.array([x, 0, z]), np.array([[0, 1, 2], [0, 2, 3]]))


def test_normals_are_coloured_as_is_usual(ball: Mesh) -> None:
    for axes, view in (("camera", six_views()[2]), ("world", six_views()[0])):
        picture = maps.normal_map(draw(ball, view, (101, 101), threads=1), axes)
        assert np.abs(picture[50, 50].astype(int) - (128, 128, 255)).max() <= 2, axes
        assert picture[50, 95, 0] > 230  # right is red
        assert picture[6, 50, 1] > 230  # up is green
    top = maps.normal_map(draw(ball, six_views()[4], (101, 101), threads=1), "world")
    assert np.abs(top[50, 50].astype(int) - (128, 255, 128)).max() <= 2
    stage = maps.normal_map(draw(ball, six_views()[0], (101, 101), threads=1), "stage")
    assert np.abs(stage[50, 50].astype(int) - (128, 0, 128)).max() <= 2
    with pytest.raises(ValueError, match="world, camera, stage"):
        maps.normal_map(draw(ball, six_views()[0], (8, 8)), "wrong")


def test_positions_are_encoded_as_the_texture_stage_encodes_them() -> None:
    """There, a vertex (x, y, z) is turned to (-x, z, -y), scaled so that the diameter is s, and
    coloured 0.5 - turned / s."""
    generator = np.random.default_rng(3)
    vertices = generator.normal(size=(40, 3)) + np.array([5, -3, 2])
    mesh = mesh_of_parts("random", [Part(vertices, np.arange(39).reshape(13, 3))])
    middle = (vertices[:39].min(axis=0) + vertices[:39].max(axis=0)) / 2
    diameter = 2 * np.linalg.norm(vertices[:39] - middle, axis=1).max()
    turned = (vertices - middle) @ np.array([[-1, 0, 0], [0, 0, -1], [0, 1, 0]])
    expected = 0.5 - turned * (1.15 / diameter) / 1.15
    ours = maps.as_stage(mesh.positions) / 2 + 0.5
    assert np.abs(ours[:39] - expected[:39]).max() < 1e-6
    assert mesh.center == pytest.approx(middle)
    assert mesh.radius == pytest.approx(diameter / 2)


def test_depth_is_white_where_nearest_dark_where_farthest_and_linear_between(ball: Mesh) -> None:
    seen = draw(ball, six_views()[0], (SIZE, SIZE), threads=1)
    picture = maps.depth_map(seen).reshape(-1)
    near, far = maps.depth_range(seen)
    values = picture[seen.samples].astype(np.float64)
    assert values.max() == maps.NEAREST_DEPTH
    assert values.min() == maps.FARTHEST_DEPTH
    share = (seen.distances() - near) / (far - near)
    expected = maps.NEAREST_DEPTH + share * (maps.FARTHEST_DEPTH - maps.NEAREST_DEPTH)
    assert np.abs(values - expected).max() <= 0.51  # half a step, and float32's rounding
    picture[seen.samples] = 0
    assert not picture.any()


def test_a_flat_side_has_one_depth() -> None:
    seen = draw(made.make_mesh("cube"), six_views()[0], (64, 64), threads=1)
    shown = maps.depth_map(seen).reshape(-1)[seen.samples]
    assert shown.max() == maps.NEAREST_DEPTH
    # float32 rounds distances of about 2 to 2^-23, the sum of three of them a few times that; the
    # range of 1e-3 has 58981 steps.
    assert shown.min() >= maps.NEAREST_DEPTH - 8 * 2.0**-23 / 1e-3 * 58981


def test_faces_have_distinct_colours_that_tell_their_number() -> None:
    numbers = np.concatenate([np.arange(200_000), [2**24 - 2, 2**24 - 1]])
    colors = maps.face_colors(numbers)
    assert len(np.unique(colors, axis=0)) == len(numbers)
    assert np.array_equal(maps.faces_of_colors(colors), numbers)
    seen = draw(made.make_mesh("cube"), views_around(1, 20.0, 40.0)[0], (64, 64), threads=1)
    picture = maps.face_map(seen).reshape(-1, 3)[seen.samples]
    assert np.array_equal(maps.faces_of_colors(picture), seen.faces - 1)


@pytest.mark.parametrize("supersample", [1, 3])
def test_a_face_map_tells_the_background_from_faces(supersample: int) -> None:
    seen = draw(made.make_mesh("cube"), views_around(1, 20.0, 40.0)[0], (64, 64),
                supersample=supersample, threads=1)  # fmt: skip
    faces, mask = seen.face_picture() - 1, maps.mask_map(seen)
    assert (faces == -1).any()
    assert np.array_equal(maps.faces_of_colors(maps.face_map(seen, None)), faces)
    picture = maps.face_map(seen)  # on white: a mixed edge has no face's colour
    whole = np.where(mask == 255, faces, -1)
    assert np.array_equal(maps.faces_of_colors(picture, mask), whole)
    assert np.array_equal(maps.faces_of_colors(picture, mask == 255), whole)
    white = maps.faces_of_colors(np.full(3, 255, np.uint8))
    assert np.array_equal(maps.face_colors(white), [255, 255, 255])  # white is a face's, too


def test_colours_repeat_after_as_many_faces_as_there_are_colours() -> None:
    assert np.array_equal(
        maps.face_colors(np.array([5, 2**24 - 1])),
        maps.face_colors(np.array([5 + 2**24, 2**25 - 1])),
    )


def test_a_face_maps_wrong_shape_is_told() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2\); give \(\.\.\., 3\)"):
        maps.faces_of_colors(np.zeros((2, 2), np.uint8))
    with pytest.raises(ValueError, match=r"mask has shape \(3,\); colors needs \(2,\)"):
        maps.faces_of_colors(np.zeros((2, 3), np.uint8), np.zeros(3, np.uint8))


def test_supersampling_blends_edges_and_changes_nothing_inside(ball: Mesh) -> None:
    one, four = (
        draw(ball, six_views()[0], (64, 64), supersample=s, threads=1) for s in (1, 4)
    )  # fmt: skip
    smooth, hard = maps.mask_map(four), maps.mask_map(one)
    assert set(np.unique(hard)) == {0, 255}
    assert len(np.unique(smooth)) > 10
    assert smooth.mean() == pytest.approx(np.pi / (2 * HALF_SIDE) ** 2 * 255, rel=2e-3)
    inside = smooth == 255
    normals = [maps.normal_map(d).astype(int) for d in (one, four)]
    assert np.abs(normals[0] - normals[1])[inside].max() <= 255 / 64 * 4  # a pixel's bend
    faces = four.face_picture()
    assert ((faces > 0) == (smooth > 0)).all()
    clear = maps.normal_map(four, background=None)
    assert np.array_equal(clear[..., 3], smooth)
    assert not clear[smooth == 0].any()
    for name, picture in maps.MAPS.items():
        assert picture(four).shape[:2] == (64, 64), name


def test_smooth_where_it_bends_little_and_hard_at_edges() -> None:
    box = Part(
        np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64),
        np.array([[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
                  [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]]),
    )  # fmt: skip
    for crease, groups in ((40.0, 24), (180.0, 8), (0.0, 36), (100.0, 8)):
        mesh = mesh_of_parts("box", [box], crease=crease)
        assert len(mesh.normals) == groups, crease
    hard = mesh_of_parts("box", [box])
    corners = hard.normals[hard.normal_faces]
    assert np.abs(corners - hard.face_normals[:, None]).max() < 1e-6
    ball = made.make_mesh("sphere")
    assert len(ball.normals) == len(ball.positions)
    with pytest.raises(ValueError, match="crease"):
        creases.crease_normals(ball.positions, ball.faces, 181.0)


def test_a_textures_seam_does_not_show_in_the_normals() -> None:
    part = made.sphere(16, 32)
    seam = Part(part.positions[part.faces.reshape(-1)], np.arange(part.faces.size).reshape(-1, 3))
    whole, cut = (mesh_of_parts("ball", [p]) for p in (part, seam))
    assert len(cut.normals) == len(whole.normals)
    corners = [m.normals[m.normal_faces] for m in (whole, cut)]
    assert np.abs(corners[0] - corners[1]).max() < 1e-6


@pytest.mark.parametrize("name", made.MADE)
def test_made_meshes_are_closed_and_their_normals_point_outwards(name: str) -> None:
    mesh = made.make_mesh(name)
    corners = mesh.positions[mesh.faces].astype(np.float64)
    assert np.einsum("ij,ij->", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])) > 0.5
    _, places = creases.merge_places(mesh.positions, mesh.faces)
    corner = places.astype(np.int64)
    edges = np.concatenate([corner[:, [0, 1]], corner[:, [1, 2]], corner[:, [2, 0]]])
    there = np.sort(edges[:, 0] * len(mesh.positions) + edges[:, 1])
    back = np.sort(edges[:, 1] * len(mesh.positions) + edges[:, 0])
    assert (np.diff(there) > 0).all()  # no edge twice in one direction
    assert np.array_equal(there, back)  # and each in both
    assert np.linalg.norm(mesh.positions, axis=1).max() == pytest.approx(1, abs=1e-6)


def test_textures_are_sampled_between_the_centres_of_their_pixels_and_repeat() -> None:
    texture = np.array([[[0], [100]], [[200], [40]]], np.uint8).repeat(3, axis=2)
    at = np.array([[0.25, 0.75], [0.75, 0.75], [0.25, 0.25], [0.75, 0.25], [0.5, 0.75], [0.5, 0.5],
                   [1.25, -0.25], [0.0, 0.75]], np.float32)  # fmt: skip
    expected = [0, 100, 200, 40, 50, 85, 0, 50]
    assert np.abs(sample_texture(texture, at)[:, 0] * 255 - expected).max() < 1e-4


def test_a_textured_mesh_shows_its_texture_and_a_plain_part_clay() -> None:
    quad = _quad(0, 0)
    uvs = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    texture = np.zeros((2, 2, 3), np.uint8)
    texture[0, 0], texture[1, 1] = (255, 0, 0), (0, 0, 255)  # red is top left, blue bottom right
    aside = np.array([0.5, 0, 0])
    left = Part(quad.positions - aside, quad.faces, uvs=uvs, texture=texture)
    right = Part(quad.positions + aside, quad.faces)
    mesh = mesh_of_parts("two", [left, right])
    picture = maps.color_map(draw(mesh, six_views()[0], (200, 200), threads=1))
    # The quad is 0.6 wide at -0.5 and a radius is hypot(0.8, 0.3): so its quarters are at columns
    # 27 and 60, rows 83 and 116, to half a pixel, which is 1.5 % of a texture's pixel.
    assert (np.abs(picture[83, 27].astype(int) - (255, 0, 0)) <= 0.031 * 255).all()
    assert (np.abs(picture[116, 60].astype(int) - (0, 0, 255)) <= 0.031 * 255).all()
    assert tuple(picture[100, 140]) == tuple(np.rint(np.array([0.86, 0.83, 0.79]) * 255))


def test_what_is_seen_from_behind_is_lit_like_what_is_seen_from_before() -> None:
    mesh = mesh_of_parts("quad", [_quad(0, 0)])
    front, back = (draw(mesh, v, (33, 33), threads=1) for v in (six_views()[0], six_views()[2]))
    assert not front.seen_from_behind().any()
    assert back.seen_from_behind().all()
    assert np.array_equal(maps.shaded_map(front)[16, 16], maps.shaded_map(back)[16, 16])


def test_views_have_distinct_names_and_begin_at_the_front() -> None:
    assert [v.name for v in views_around(4)] == ["front", "right", "back", "left"]
    assert [v.name for v in views_around(3, 10)] == ["azimuth_000", "azimuth_120", "azimuth_240"]
    assert views_around(16)[1].name == "azimuth_022_5"
    for count in (7, 360, 5000):
        views = views_around(count, 20.0)
        assert views[0].azimuth == 0
        assert len({view.name for view in views}) == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"azimuth": float("nan")}, "azimuth"), ({"fov": 0.5}, "fov is 0.5"),
     ({"distance": 0.0}, "distance is 0.0")],
)  # fmt: skip
def test_a_camera_that_cannot_be_is_told_so(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        camera.View(**{"name": "x", "azimuth": 0.0, "elevation": 0.0, **arguments})


def test_a_picture_that_is_too_large_is_refused_before_anything_is_made(ball: Mesh) -> None:
    for size, supersample in (((20000, 10), 2), ((0, 10), 1), ((10, 32769), 1), ((10, 10), 0)):
        with pytest.raises(ValueError, match="32768 a side"):
            drawing.draw(ball, six_views()[0], size, supersample=supersample)


def test_a_camera_inside_the_mesh_draws_what_is_before_it() -> None:
    inside = View("inside", 0.0, 0.0, fov=90.0, distance=0.3)
    seen = draw(made.make_mesh("sphere"), inside, (32, 32), threads=1)
    assert len(seen.samples) == 32 * 32
    assert seen.seen_from_behind().all()
    assert seen.positions()[:, 2].max() < 0.3
