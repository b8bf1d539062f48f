"""Reading meshes: where a scene has its parts, colours and textures, and sentences for the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.render.meshes import MeshError, Part, mesh_of_parts, read_mesh

trimesh = pytest.importorskip("trimesh")
image = pytest.importorskip("PIL.Image")


def corners(mesh: Any) -> np.ndarray:
    """(F, 3, 3) in the file's units."""
    return np.asarray(mesh.positions[mesh.faces] * mesh.radius + mesh.center)


@pytest.mark.parametrize("suffix", [".glb", ".obj", ".ply", ".stl", ".off"])
def test_every_format_gives_the_same_triangles(suffix: str, tmp_path: Path) -> None:
    solid = trimesh.creation.icosphere(subdivisions=1, radius=3.0)
    solid.apply_translation([10, -4, 2])
    path = tmp_path / f"mesh{suffix}"
    solid.export(path)
    mesh = read_mesh(path)
    assert mesh.name == path.name
    assert mesh.radius == pytest.approx(3, rel=1e-5)
    assert mesh.center == pytest.approx((10, -4, 2), abs=1e-5)
    # Text formats keep 8 digits; float32 has 2^-24 of 10.
    assert np.abs(corners(mesh) - solid.triangles).max() < 1e-5
    assert not mesh.has_color


def test_a_scenes_parts_are_where_the_scene_has_them_and_mirrored_ones_face_outwards(
    tmp_path: Path,
) -> None:
    scene = trimesh.Scene()
    ball = trimesh.creation.icosphere(subdivisions=2)
    mirror = np.diag([-2.0, 1.0, 1.0, 1.0])
    mirror[:3, 3] = (5, 0, 0)
    scene.add_geometry(ball, transform=trimesh.transformations.translation_matrix([-4, 1, 0]))
    scene.add_geometry(ball.copy(), transform=mirror)
    scene.export(tmp_path / "scene.glb")
    mesh = read_mesh(tmp_path / "scene.glb")
    assert len(mesh.faces) == 2 * len(ball.faces)
    found = corners(mesh)
    middles = found.mean(axis=1)
    normals = np.cross(found[:, 1] - found[:, 0], found[:, 2] - found[:, 0])
    for center, count in (((-4, 1, 0), len(ball.faces)), ((5, 0, 0), len(ball.faces))):
        mine = np.linalg.norm(middles - center, axis=1) < 2.5
        assert mine.sum() == count
        assert (np.einsum("ij,ij->i", normals[mine], middles[mine] - center) > 0).all()


def test_textures_and_colours_are_read(tmp_path: Path) -> None:
    quad = {"vertices": [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]],
            "faces": [[0, 1, 2], [0, 2, 3]], "process": False}  # fmt: skip
    texture = image.new("RGB", (4, 2), (10, 20, 30))
    texture.putpixel((0, 0), (250, 0, 0))  # top left
    material = trimesh.visual.material.PBRMaterial(
        baseColorTexture=texture, baseColorFactor=[128, 255, 255, 255]
    )
    uv = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    textured = trimesh.Trimesh(**quad, visual=trimesh.visual.TextureVisuals(uv, material=material))
    colored = trimesh.Trimesh(**quad, vertex_colors=[[255, 0, 0, 255]] * 2 + [[0, 51, 0, 255]] * 2)
    faced = trimesh.Trimesh(**quad, face_colors=[[0, 0, 255, 255], [0, 255, 0, 255]])
    plain = trimesh.Trimesh(**quad)
    textured.export(tmp_path / "textured.glb")
    mesh = read_mesh(tmp_path / "textured.glb")
    assert mesh.has_color
    assert np.array_equal(mesh.textures[0], np.asarray(texture))
    assert np.array_equal(mesh.face_texture, [0, 0])
    assert mesh.colors[0] == pytest.approx((128 / 255, 1, 1), abs=1 / 255)
    upper_left = np.argmin(np.abs(mesh.positions * mesh.radius + mesh.center - (0, 1, 0)).sum(1))
    assert mesh.uvs[upper_left] == pytest.approx((0, 1))
    colored.export(tmp_path / "colored.ply")
    mesh = read_mesh(tmp_path / "colored.ply")
    assert mesh.has_color
    assert np.abs(mesh.colors[mesh.faces[1, 2]] - (0, 0.2, 0)).max() < 1e-6
    faced.export(tmp_path / "faced.ply")
    mesh = read_mesh(tmp_path / "faced.ply")
    assert np.array_equal(mesh.colors[mesh.faces], [[[0, 0, 1]] * 3, [[0, 1, 0]] * 3])
    both = trimesh.Scene([textured, plain])
    both.export(tmp_path / "both.glb")
    mesh = read_mesh(tmp_path / "both.glb")
    assert sorted(mesh.face_texture.tolist()) == [-1, -1, 0, 0]


def test_points_in_a_scene_are_left_out_and_said(tmp_path: Path) -> None:
    scene = trimesh.Scene([trimesh.creation.box(), trimesh.PointCloud(np.eye(3))])
    scene.export(tmp_path / "scene.glb")
    mesh = read_mesh(tmp_path / "scene.glb")
    assert len(mesh.faces) == 12
    assert "1 geometries without faces" in mesh.notes[0]


def _bytes_in(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("none.glb", None, "does not exist"),
     ("empty.obj", b"", "no triangles|cannot be read as a mesh"),
     ("points.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
      b"property float z\nend_header\n0 0 0\n", "no triangles"),
     ("broken.glb", b"glTF\x02\0\0\0\xff\xff", "cannot be read as a mesh.*damaged"),
     ("text.xyzzy", b"hello", "cannot be read as a mesh.*give a .glb"),
     ("one.obj", b"v 1 1 1\nv 1 1 1\nv 1 1 1\nf 1 2 3\n", "all vertices are at one place"),
     ("nan.obj", b"v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "vertex 0 is at"),
     ("far.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n", "face has vertex|cannot be read")],
)  # fmt: skip
def test_a_file_that_is_no_mesh_gets_a_sentence(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MeshError, match=words) as caught:
        read_mesh(path)
    assert name in str(caught.value)


def test_a_folder_is_no_mesh(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match="is a folder"):
        read_mesh(tmp_path)


def test_without_trimesh_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    path = _bytes_in(tmp_path / "mesh.stl", b"solid\nendsolid\n")
    with pytest.raises(MeshError, match="pip install trimesh"):
        read_mesh(path)


def test_arrays_are_checked_like_files() -> None:
    corner = np.eye(3)
    with pytest.raises(MeshError, match="has vertex 3, there are 3"):
        mesh_of_parts("m", [Part(corner, np.array([[0, 1, 3]]))])
    with pytest.raises(MeshError, match="has vertex -1"):
        mesh_of_parts("m", [Part(corner, np.array([[0, 1, -1]]))])
    with pytest.raises(MeshError, match="texture coordinate"):
        mesh_of_parts("m", [Part(corner, np.array([[0, 1, 2]]), uvs=np.full((3, 2), np.inf))])
    with pytest.raises(MeshError, match="no triangles"):
        mesh_of_parts("m", [])


def test_a_vertex_of_no_face_moves_nothing() -> None:
    corner = np.concatenate([np.eye(3), [[1e6, 0, 0]]])
    mesh = mesh_of_parts("m", [Part(corner, np.array([[0, 1, 2]]))])
    assert mesh.radius < 1
    assert np.isfinite(mesh.positions).all()
