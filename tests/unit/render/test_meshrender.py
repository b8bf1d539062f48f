"""The six views are those of the packs' own MeshRender, which runs on the module served for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import raster_packs  # noqa: E402

from examples.render import made, maps  # noqa: E402
from examples.render.camera import View, six_views  # noqa: E402
from examples.render.drawing import draw  # noqa: E402
from examples.render.meshes import Part, mesh_of_parts  # noqa: E402
from hy3d_rocm import raster  # noqa: E402

SIZE = 256


@pytest.fixture
def served() -> Iterator[None]:
    raster.install()
    yield
    raster.uninstall()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("view", six_views(), ids=lambda view: view.name)
def test_masks_are_equal_positions_within_a_step_and_normals_within_a_faces_bend(
    view: View,
) -> None:
    module = raster_packs.renderer_module("kijai")
    part = made.knot(192, 48)
    stretched = Part(part.positions * [1.0, 0.7, 1.3] + [3.0, 4.0, 5.0], part.faces)
    mesh = mesh_of_parts("stretched knot", [stretched], crease=180.0)
    theirs = module.MeshRender(device="cpu", use_antialias=False, default_resolution=SIZE)
    theirs.set_mesh(mesh.positions.copy(), mesh.faces)
    options = {"elev": view.elevation, "azim": view.azimuth, "return_type": "np"}
    normals, mask = theirs.render_normal(use_abs_coor=True, **options)
    positions = theirs.render_position(**options)
    ours = draw(mesh, view, (SIZE, SIZE), rule="compat", threads=1)
    assert np.array_equal(np.asarray(mask)[0, ..., 0] > 0, maps.mask_map(ours) > 0)
    difference = np.abs(np.rint(positions * 255) - maps.position_map(ours))
    assert difference.max() <= 1
    # Both average the normals of the faces around a vertex, with other weights.
    difference = np.abs(np.rint(normals * 255) - maps.normal_map(ours, "stage"))
    assert difference.max() <= 127.5 * _most_bend(mesh) + 1


def _most_bend(mesh: object) -> float:
    """Of a face's normal and its corners', the largest difference of a component."""
    corners = mesh.normals[mesh.normal_faces]  # type: ignore[attr-defined]
    return float(np.abs(corners - mesh.face_normals[:, None]).max())  # type: ignore[attr-defined]
