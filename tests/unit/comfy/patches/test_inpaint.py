"""Upstream's in-painting over the mesh is computed by the C core where that gives its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import patches_doubles
import pytest
from patches_doubles import patched, settings_are

from hy3d_rocm import _native, raster

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper
PROCESSOR = "hy3dgen.texgen.differentiable_renderer.mesh_processor"
RENDERER = "hy3dgen.texgen.differentiable_renderer.mesh_render"
FACES = np.array([[0, 1, 2]], np.int32)
UV = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
POSITIONS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)


def scene(**other: Any) -> dict[str, Any]:
    """A face whose texels at two corners are known."""
    texture, mask = np.zeros((5, 5, 3), np.float32), np.full((5, 5), 255, np.uint8)
    texture[4, 0], texture[4, 4], mask[0, 0] = 0.25, 0.75, 0
    usual = {"texture": texture, "mask": mask, "vtx_pos": POSITIONS, "vtx_uv": UV,
             "pos_idx": FACES, "uv_idx": FACES}  # fmt: skip
    return {**usual, **other}


@pytest.fixture(name="asked")
def calls_of_upstream(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if not _native.available:
        pytest.skip("the C core is not built")
    settings_are(monkeypatch)
    found: list[str] = wrapper.part(PROCESSOR).ASKED
    found.clear()
    return found


@pytest.mark.parametrize("place", [PROCESSOR, RENDERER])
def test_the_c_core_is_asked_wherever_upstream_has_the_function(
    wrapper: Any, asked: list[str], place: str
) -> None:
    given = scene()
    with patched(wrapper, "inpaint"):
        painted, known = wrapper.part(place).meshVerticeInpaint(**given)
    wanted = raster.inpaint_vertices(
        *(given[name] for name in ("texture", "mask", "vtx_pos", "vtx_uv", "pos_idx", "uv_idx"))
    )
    assert np.array_equal(painted, wanted[0])
    assert np.array_equal(known, wanted[1])
    assert painted[0, 0, 0] > 0
    assert not asked
    wrapper.part(place).meshVerticeInpaint(**given)
    assert asked == ["smooth"]


DIFFERENT: dict[str, dict[str, Any]] = {
    "another method": {"method": "forward"},
    "colours in float64": {"texture": np.zeros((5, 5, 3))},
    "a mask of bools": {"mask": np.ones((5, 5), bool)},
    "coordinates outside": {"vtx_uv": UV + 1},
    "coordinates that are none": {"vtx_uv": UV * np.float32("nan")},
    "an index out of range": {"pos_idx": FACES + 1},
    "lists": {"pos_idx": FACES.tolist()},
    "no mesh": {"vtx_uv": UV[:0], "pos_idx": FACES[:0], "uv_idx": FACES[:0]},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_was_not_compared_is_left_to_upstream(
    wrapper: Any, asked: list[str], case: str
) -> None:
    given = scene(**DIFFERENT[case])
    with patched(wrapper, "inpaint"):
        painted, _ = wrapper.part(PROCESSOR).meshVerticeInpaint(**given)
    assert asked == [DIFFERENT[case].get("method", "smooth")]
    assert np.array_equal(painted, given["texture"] + 1)


def test_switched_off_or_without_the_core_upstream_is_asked(
    wrapper: Any, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = "meshVerticeInpaint"
    with patched(wrapper, "inpaint"):
        settings_are(monkeypatch, patches_off=frozenset({"inpaint"}))
        getattr(wrapper.part(PROCESSOR), function)(**scene())
        settings_are(monkeypatch)
        monkeypatch.setattr(_native, "available", False)
        getattr(wrapper.part(PROCESSOR), function)(**scene())
    assert asked == ["smooth"] * 2


def test_another_signature_is_left_alone(wrapper: Any) -> None:
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS

    (found,) = [spec for spec in SPECS if spec.name == "inpaint"]

    wrapper.part(PROCESSOR).meshVerticeInpaint = lambda texture, mask, mesh: None
    assert "vtx_pos" in (found.expects(wrapper) or "")
    del wrapper.part(RENDERER).meshVerticeInpaint
    assert "has no meshVerticeInpaint" in (found.expects(wrapper) or "")
