"""_core.inpaint_vertices against its rule in NumPy float32, and against upstream's
meshVerticeInpaint, called as a black box.

HY3D_WRAPPER=DIR        a checkout of ComfyUI-Hunyuan3DWrapper; without it that one test is skipped
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raster_mesh_support import Array, sheet

from hy3d_rocm import _core

F32 = np.float32


def inpainted(texture: Array, mask: Array, *mesh: Array) -> tuple[Array, Array, int]:
    texture, mask = texture.copy(), mask.copy()
    filled = _core.inpaint_vertices(texture, mask, *mesh)
    return texture, mask, filled


def texel(uv: Array, height: int, width: int) -> tuple[int, int]:
    row = round(float((F32(1) - uv[1]) * F32(height - 1)))
    column = round(float(uv[0] * F32(width - 1)))
    return min(max(row, 0), height - 1), min(max(column, 0), width - 1)


def smoothed(vertex: int, after: list[list[int]], colours: dict[int, Array], at: Array) -> Any:
    """The mean of the successors' colours; None without a coloured one."""
    total, weights = F32(0), F32(0)
    for other in after[vertex]:
        if other in colours:
            apart = at[vertex] - at[other]
            distance = np.sqrt((apart[0] * apart[0] + apart[1] * apart[1]) + apart[2] * apart[2])
            near = F32(1) / np.maximum(distance, F32(1e-4))
            total = total + colours[other] * (near * near)
            weights = weights + near * near
    return total / weights if weights > 0 else None


def oracle(
    texture: Array, mask: Array, at: Array, uvs: Array, faces: Array, uv_faces: Array
) -> tuple[Array, Array, int]:
    """What include/hy3d/raster.h says, one operation after the other."""
    texture, mask = texture.copy(), mask.copy()
    corners = list(zip(faces.ravel().tolist(), uv_faces.ravel().tolist(), strict=True))
    places = [texel(uvs[u], *mask.shape) for _, u in corners]
    after: list[list[int]] = [[] for _ in at]
    for face in faces.tolist():
        for k in range(3):
            after[face[k]].append(face[(k + 1) % 3])
    colours: dict[int, Array] = {}
    open_corners = []
    for (vertex, _), place in zip(corners, places, strict=True):
        if mask[place]:
            colours[vertex] = texture[place].copy()
        else:
            open_corners.append(vertex)
    known, counter, before = len(colours), 2, 0
    while counter > 0:
        without = 0
        for vertex in open_corners:
            colour = smoothed(vertex, after, colours, at)
            if colour is None:
                without += 1
            else:
                colours[vertex] = colour
        counter += -1 if without == before else 1
        before = without
    for (vertex, _), place in zip(corners, places, strict=True):
        if vertex in colours:
            texture[place], mask[place] = colours[vertex], 255
    return texture, mask, len(colours) - known


def random_case(seed: int, *, outside: bool = False) -> tuple[Array, ...]:
    """texture, mask, positions, uvs, faces, uv_faces: with seams, shared texels, odd faces."""
    rng = np.random.default_rng(seed)
    vertices, uvs, faces = rng.integers(4, 30), rng.integers(3, 50), rng.integers(1, 40)
    height, width, channels = rng.integers(1, 12), rng.integers(1, 12), rng.integers(1, 6)
    reach = 1.5 if outside else 1.0
    uv = rng.random((uvs, 2)) * reach - (reach - 1) / 2
    return (
        rng.random((height, width, channels)).astype(F32),
        ((rng.random((height, width)) < 0.3) * rng.integers(1, 256, (height, width))).astype("u1"),
        rng.standard_normal((vertices, 3)).astype(F32),
        uv.astype(F32),
        rng.integers(0, vertices, (faces, 3), dtype=np.int32),
        rng.integers(0, uvs, (faces, 3), dtype=np.int32),
    )


@pytest.mark.parametrize("outside", [False, True])
def test_random_meshes_have_the_bits_of_the_rule(outside: bool) -> None:
    filled = 0
    for seed in range(40):
        case = random_case(seed, outside=outside)
        got, wanted = inpainted(*case), oracle(*case)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"random_case({seed}, {outside=})")
        filled += got[2]
    assert filled > 100


def test_it_has_upstreams_bits() -> None:
    root = os.environ.get("HY3D_WRAPPER", "")
    path = Path(root, "hy3dgen", "texgen", "differentiable_renderer", "mesh_processor.py")
    if not root or not path.is_file():
        pytest.skip("HY3D_WRAPPER names no checkout of ComfyUI-Hunyuan3DWrapper")
    spec = importlib.util.spec_from_file_location("hy3d_upstream_mesh_processor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for seed in range(150):
        case = random_case(seed)
        texture, mask = module.meshVerticeInpaint(*(a.copy() for a in case), "smooth")
        got = inpainted(*case)
        np.testing.assert_array_equal(got[0], texture, err_msg=f"random_case({seed})")
        np.testing.assert_array_equal(got[1], mask, err_msg=f"random_case({seed})")


def strip(count: int) -> tuple[Array, Array, Array]:
    """positions, uvs and faces of vertices in a row of `count` texels; each is followed by the one
    before it, over faces whose third corner is a vertex of its own in the row below."""
    place = np.arange(count, dtype=F32)
    positions = np.zeros((2 * count, 3), F32)
    positions[:, 0] = np.tile(place, 2)
    positions[count:, 1] = 100
    uvs = np.stack([np.tile(place / F32(count - 1), 2), np.repeat([1, 0], count)], 1)
    later = np.arange(1, count)
    faces = np.stack([later, later - 1, count + later], 1)
    return positions, uvs.astype(F32), faces.astype(np.int32)


@pytest.mark.parametrize("backwards", [False, True])
def test_one_colour_reaches_all_that_it_can_reach(backwards: bool) -> None:
    """In the order of the faces or against it, when a round takes a colour one vertex further."""
    positions, uvs, faces = strip(60)
    faces = np.ascontiguousarray(faces[::-1]) if backwards else faces
    texture, mask = np.zeros((2, 60, 3), F32), np.zeros((2, 60), np.uint8)
    texture[0, 0], mask[0, 0] = [0.25, 0.5, 0.75], 1
    painted, masked, filled = inpainted(texture, mask, positions, uvs, faces, faces)
    assert (painted[0] == texture[0, 0]).all()
    assert (masked[0] == 255).all()
    assert filled == 59 + 59


def test_nothing_coloured_and_everything_coloured_change_nothing() -> None:
    positions, uvs, faces = sheet(6, np.random.default_rng(1))
    texture = np.random.default_rng(2).random((7, 7, 3)).astype(F32)
    for value in (0, 255):
        mask = np.full((7, 7), value, np.uint8)
        painted, masked, filled = inpainted(texture, mask, positions, uvs, faces, faces)
        np.testing.assert_array_equal(painted, texture)
        np.testing.assert_array_equal(masked, mask)
        assert filled == 0


def test_texels_of_no_vertex_are_left_alone() -> None:
    positions, uvs, faces = sheet(4, np.random.default_rng(1))
    rng = np.random.default_rng(3)
    texture = rng.random((33, 33, 2)).astype(F32)
    mask = (rng.random((33, 33)) < 0.5).astype(np.uint8)
    painted, masked, filled = inpainted(texture, mask, positions, uvs, faces, faces)
    others = np.ones((33, 33), bool)
    others[::8, ::8] = False
    np.testing.assert_array_equal(painted[others], texture[others])
    np.testing.assert_array_equal(masked[others], mask[others])
    assert (masked[::8, ::8] == 255).all()
    assert filled == (mask[::8, ::8] == 0).sum()


def test_a_long_one_ends_when_it_is_cancelled_and_changes_nothing() -> None:
    """A spot that spreads over 180,000 faces, against their order for a part: seconds of rounds."""
    positions, uvs, _ = sheet(300, np.random.default_rng(1))
    first = (np.arange(300)[:, None] * 301 + np.arange(300)).ravel()
    faces = np.stack([first, first + 1, first + 301, first + 1, first + 302, first + 301], 1)
    faces = faces.reshape(-1, 3).astype(np.int32)
    texture = np.random.default_rng(2).random((301, 301, 3)).astype(F32)
    mask = np.zeros((301, 301), np.uint8)
    mask[150:155, 150:155] = 255
    before = texture.copy(), mask.copy()
    flag = _core.CancelFlag()
    timer = threading.Timer(0.1, flag.request)
    timer.start()
    with pytest.raises(_core.Hy3dError, match="cancelled") as caught:
        _core.inpaint_vertices(texture, mask, positions, uvs, faces, faces, cancel=flag)
    timer.join()
    assert caught.value.name == "HY3D_ERR_CANCELLED"
    np.testing.assert_array_equal(texture, before[0])
    np.testing.assert_array_equal(mask, before[1])


NAN = np.full((3, 3), np.nan, F32)
BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("texture", lambda: np.zeros((2, 2), F32), "2 dimensions: it needs 3"),
    ("texture", lambda: np.zeros((2, 2, 3)), "must be float32"),
    ("texture", lambda: np.zeros((2, 2, 0), F32), "no channels"),
    ("texture", lambda: np.zeros((0, 2, 3), F32), "0 pixels high"),
    ("mask", lambda: np.zeros((2, 2), bool), "must be uint8"),
    ("mask", lambda: np.zeros((2, 3), np.uint8), "has size 3 in dimension 1"),
    ("mask", lambda: np.frombuffer(bytes(4), np.uint8).reshape(2, 2), "read-only"),
    ("positions", lambda: NAN, "a NaN or an infinity in vertex 0"),
    ("uvs", lambda: NAN[:, :2].copy(), "a NaN or an infinity in uv 0"),
    ("faces", lambda: np.array([[0, 1, 3]], np.int32), "index 3 in face 0: there are 3 vertices"),
    ("faces", lambda: np.array([[0, 1, 2], [0, -1, 1]], np.int32), "has size 1 in dimension 0"),
    ("uv_faces", lambda: np.array([[0, -1, 2]], np.int32), "index -1 in face 0: there are 3 uvs"),
    ("method", lambda: "forward", 'is "forward"'),
]


@pytest.mark.parametrize(("name", "make", "sentence"), BAD, ids=[b[0] + "-" + b[2] for b in BAD])
def test_what_has_no_meaning_is_told_and_nothing_is_written(
    name: str, make: Callable[[], Any], sentence: str
) -> None:
    texture, mask = np.full((2, 2, 3), 7, F32), np.array([[255, 0], [0, 0]], np.uint8)
    faces = np.array([[0, 1, 2]], np.int32)
    call: dict[str, Any] = {
        "texture": texture, "mask": mask, "positions": np.eye(3, dtype=F32),
        "uvs": np.array([[0, 1], [1, 1], [0, 0]], F32), "faces": faces, "uv_faces": faces,
    }  # fmt: skip
    call[name] = make()
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(sentence)}|{re.escape(sentence)}"):
        _core.inpaint_vertices(**call)
    assert (texture == 7).all()
    assert mask.tolist() == [[255, 0], [0, 0]]
