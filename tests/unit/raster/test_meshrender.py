"""Both packs' own MeshRender through the drop-in, against what geometry says.

Tolerances are sums of: BARYCENTRIC, the stated bound on each of the three barycentrics (it counts
three times the largest value that is interpolated), and ROUNDING, for the packs' own float32
arithmetic, at most 40 roundings of numbers up to 2 between a mesh and a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from raster_packs import (
    DEVICE,
    INWARDS,
    PACKS,
    RADIUS,
    SCALE,
    Camera,
    ball,
    cube,
    cube_seen,
    host,
    keep_picture,
    renderer_module,
    texture_view,
)

from hy3d_rocm.raster import finder

BARYCENTRIC = 1e-5
ROUNDING = 2 * 40 * 2.0**-24
LATERAL = 3 * BARYCENTRIC * RADIUS + ROUNDING  # how far off a point may lie across the view
# From 256 pixels on the packs leave out a seam of pixels along outlines when they bake.
PIXELS, TEXELS = 256, 128
VIEWS = [(20.0, 35.0), (-35.0, 160.0), (0.0, 0.0), (50.0, -100.0)]
ROUND_ABOUT = [
    (20.0, 35.0),
    (20.0, 125.0),
    (20.0, 215.0),
    (20.0, 305.0),
    (75.0, 35.0),
    (-75.0, 35.0),
]


@pytest.fixture(name="pack", params=PACKS)
def a_pack(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A pack's module. The real rasteriser is nowhere here."""
    finder.install()
    yield renderer_module(request.param)
    finder.uninstall()


def renderer_of(pack: Any, mesh: Any, **more: Any) -> Any:
    made = pack.MeshRender(
        camera_distance=1.45, ortho_scale=1.2, default_resolution=PIXELS, texture_size=TEXELS,
        device=DEVICE, **more,
    )  # fmt: skip
    made.load_mesh(mesh)
    assert finder.status().served["custom_rasterizer"]
    return made


def position_of(picture: Any) -> Any:
    """The points behind a position map, in the packs' coordinates."""
    return (0.5 - host(picture)) * SCALE


def normal_picture(renderer: Any, view: tuple[float, float]) -> Any:
    found = renderer.render_normal(*view, use_abs_coor=True, bg_color=[0, 0, 0])
    return host(found[0] if isinstance(found, tuple) else found) * 2 - 1


def name_of(pack: Any) -> str:
    return str(pack.__name__).split(".")[0].removeprefix("pack_of_")


@pytest.mark.parametrize("view", VIEWS)
def test_a_cubes_positions_and_normals_are_those_of_the_rays_that_hit_it(
    pack: Any, view: tuple[float, float]
) -> None:
    renderer = renderer_of(pack, cube())
    camera = Camera(pack, renderer, *view)
    points, normals, state = cube_seen(camera, margin=4 * LATERAL)
    assert (state < 0).mean() < 0.03
    picture = renderer.render_position(*view)
    drawn = np.abs(normal_picture(renderer, view)).sum(-1) > 0.5
    assert np.array_equal(drawn[state >= 0], state[state >= 0] == 1)
    hit = state == 1
    steepness = (normals[hit] @ camera.towards)[:, None]
    off = np.abs(position_of(picture)[hit] - points[hit])
    assert np.all(off <= LATERAL * (1 + 1 / steepness))
    turned = np.abs(normal_picture(renderer, view)[hit] - INWARDS * normals[hit])
    assert np.all(turned <= 2 * (3 * BARYCENTRIC + ROUNDING))
    keep_picture(f"{name_of(pack)}_cube_position_{VIEWS.index(view)}", picture)
    keep_picture(f"{name_of(pack)}_cube_normal_{VIEWS.index(view)}",
                 normal_picture(renderer, view) / 2 + 0.5)  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_a_balls_positions_and_normals_are_those_of_a_ball(
    pack: Any, view: tuple[float, float]
) -> None:
    """Exact for the ball but for the facets: how deep they lie, and how far the normals at the
    corners are from the ball's, is computed from the mesh in float64."""
    mesh = ball()
    more = {"shader_type": "vertex"} if name_of(pack) == "visualbruno" else {}
    renderer = renderer_of(pack, mesh, **more)
    camera = Camera(pack, renderer, *view)
    corners = mesh.triangles
    planes = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    planes /= np.linalg.norm(planes, axis=1, keepdims=True)
    deepest = np.abs((planes * corners[:, 0]).sum(1)).min() * RADIUS
    crooked = np.linalg.norm(_mean_normals(mesh, planes) - mesh.vertices, axis=1).max()
    picture = renderer.render_position(*view)
    normals = normal_picture(renderer, view)
    drawn = np.abs(normals).sum(-1) > 0.5
    points = position_of(picture)[drawn]
    depth = np.linalg.norm(points, axis=1)
    assert depth.max() <= RADIUS + 3 * LATERAL
    assert depth.min() >= deepest - 3 * LATERAL
    assert np.abs(camera.across(points) - camera.across(camera.rays()[drawn])).max() <= 2 * LATERAL
    # The side that is turned to the camera: a facet's plane is that of its corners.
    assert (points @ camera.towards).min() >= -(RADIUS - deepest) - np.sqrt(RADIUS**2 - deepest**2)
    off = np.linalg.norm(normals[drawn] - INWARDS * points / RADIUS, axis=1)
    assert off.max() <= crooked + 6 * (3 * BARYCENTRIC + ROUNDING)
    outline = np.linalg.norm(camera.across(camera.rays()), axis=-1)
    assert np.all(drawn[outline < deepest - LATERAL])
    assert not np.any(drawn[outline > RADIUS + LATERAL])
    keep_picture(f"{name_of(pack)}_ball_normal_{VIEWS.index(view)}", normals / 2 + 0.5)
    keep_picture(f"{name_of(pack)}_ball_position_{VIEWS.index(view)}", picture)


def _mean_normals(mesh: Any, planes: Any) -> Any:
    summed = np.zeros_like(mesh.vertices)
    for corner in range(3):
        np.add.at(summed, mesh.faces[:, corner], planes)
    return summed / np.linalg.norm(summed, axis=1, keepdims=True)


def test_a_bake_of_what_is_seen_gives_the_texture_back(pack: Any) -> None:
    """Colours are positions, so what a texel must hold is known: it differs by at most what lies
    between a texel and the pixels that fell near it.

    kijai's "linear" puts a pixel's colour into the four texels around it: one texel each way.
    visualbruno's "back_sample" reads the picture around a texel, up to a pixel beside it and
    another one to interpolate: two pixels each way, longer by the slant of the surface.
    """
    renderer = renderer_of(pack, cube())
    linear = renderer.bake_mode == "linear"
    pictures = [renderer.render_position(*view) for view in ROUND_ABOUT]
    elevs, azims = ([view[i] for view in ROUND_ABOUT] for i in range(2))
    texture, known = renderer.bake_texture(
        pictures, elevs, azims, weights=[1.0] * len(pictures), exp=4
    )
    known = host(known[..., 0]) > 0
    wanted, chart = _cube_texture(renderer)
    assert known[chart].mean() > 0.8
    inside = known & chart
    if linear:
        across = 2 * RADIUS / np.sqrt(3) / SCALE / (TEXELS - 1)  # a chart is 0.84 of a cell
        bound = across * (3 / 0.84 + 2 / 0.84) + LATERAL
    else:
        slants = [_least_slant(Camera(pack, renderer, *view)) for view in ROUND_ABOUT]
        bound = 2 * np.sqrt(2) * 1.2 / (PIXELS - 1) / min(slants) / SCALE + LATERAL
    assert np.abs(host(texture) - wanted)[inside].max() <= bound
    keep_picture(f"{name_of(pack)}_baked", texture)
    _paint_and_look(pack, renderer, texture, known, bound)


def _paint_and_look(pack: Any, renderer: Any, texture: Any, known: Any, bound: float) -> None:
    """In-painting leaves what is known; the painted cube looks like what was baked."""
    mask = (known * 255).astype(np.uint8)
    try:
        painted = renderer.uv_inpaint(texture.cpu().numpy().copy(), mask.copy())
    finally:
        renderer.load_mesh(cube())  # get_mesh turned its own coordinates, as it does on a CPU
    assert painted.shape == (TEXELS, TEXELS, 3)
    step = 1 / 255
    assert np.abs(painted / 255 - host(texture))[known].max() <= step + ROUNDING
    keep_picture(f"{name_of(pack)}_painted", painted / 255)
    renderer.set_texture(painted / 255)
    for number, view in enumerate(ROUND_ABOUT):
        seen, uv = texture_view(renderer, view, renderer.tex)
        wanted = renderer.render_position(*view, bg_color=[0, 0, 0])
        whole = _texels_known(uv, known)
        off = np.abs(host(seen) - host(wanted))[whole]
        assert whole.mean() > 0.1
        assert off.max() <= bound + 3 * step
        keep_picture(f"{name_of(pack)}_view_{number}", seen)


def _texels_known(uv: Any, known: Any) -> Any:
    """Pixels all four of whose texels are known."""
    at = host(uv) * (TEXELS - 1)
    column, row = (np.clip(np.floor(at[..., i]).astype(int), 0, TEXELS - 2) for i in range(2))
    eroded = known[:-1, :-1] & known[1:, :-1] & known[:-1, 1:] & known[1:, 1:]
    return eroded[row, column] & (host(uv).sum(-1) > 0)


def _cube_texture(renderer: Any) -> tuple[Any, Any]:
    """What each texel must hold, (H, W, 3), and which texels lie in a chart, in float64."""
    uv = renderer.vtx_uv.double().cpu().numpy().reshape(6, 4, 2)
    colours = 0.5 - renderer.vtx_pos.double().cpu().numpy().reshape(6, 4, 3) / SCALE
    steps = np.arange(TEXELS) / (TEXELS - 1)
    u, v = np.meshgrid(steps, steps)
    wanted = np.zeros((TEXELS, TEXELS, 3))
    inside = np.zeros((TEXELS, TEXELS), bool)
    for place, colour in zip(uv, colours, strict=True):
        a = (u - place[0, 0]) / (place[1, 0] - place[0, 0])
        b = (v - place[0, 1]) / (place[3, 1] - place[0, 1])
        here = (a >= 0) & (a <= 1) & (b >= 0) & (b <= 1)
        mixed = colour[0] + a[..., None] * (colour[1] - colour[0])
        wanted[here] = (mixed + b[..., None] * (colour[3] - colour[0]))[here]
        inside |= here
    return wanted, inside


def _least_slant(camera: Camera) -> float:
    """The smallest cosine between the view and a side of the cube that is turned to it."""
    return float(np.abs(camera.towards).min())


def test_a_texture_made_of_the_mesh_is_what_its_charts_say(pack: Any) -> None:
    renderer = renderer_of(pack, cube())
    found = renderer.uv_feature_map(0.5 - renderer.vtx_pos / SCALE)
    wanted, chart = _cube_texture(renderer)
    drawn = host(found).sum(-1) > 0
    # A texel on a chart's outline may fall to either side.
    assert np.mean(drawn != chart) < 0.02
    both = drawn & chart
    assert np.abs(host(found) - wanted)[both].max() <= 3 * BARYCENTRIC + 8 * ROUNDING


def test_rendering_gives_the_same_bits_again_and_for_every_thread_count(pack: Any) -> None:
    renderer = renderer_of(pack, ball())
    threads = torch.get_num_threads()
    first = renderer.render_position(20, 35)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(renderer.render_position(20, 35), first)
    finally:
        torch.set_num_threads(threads)
