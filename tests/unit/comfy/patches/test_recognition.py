"""The wrapper is found whatever its folder is called, and compared with what is known of it."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
from patch_doubles import FOLDER, PAINT_PIPELINE, Core, find_upstream

from hy3d_rocm.comfy.patches.upstream import (
    UpstreamError,
    defaults_differ,
    is_v1,
    names_missing,
    parameters_missing,
)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    return Core(monkeypatch)


FOLDERS = [
    "/srv/custom_nodes/ComfyUI-Hunyuan3DWrapper",
    "/srv/custom.d/ComfyUI v1.0/3D.wrapper",
    "C:\\ComfyUI\\custom_nodes\\hunyuan",
    "wrapper",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_wrapper_is_found_whatever_its_folder_is_called(folder: str, core: Core) -> None:
    assert find_upstream(core.mappings) is None
    table = core.load(folder)
    found = find_upstream(core.mappings)
    assert found is not None
    assert found.name == folder.replace("\\", "/").rpartition("/")[2]
    assert found.part("Hy3DVAEDecode") is table["Hy3DVAEDecode"]
    assert found.part(PAINT_PIPELINE) is core.pipeline(folder)


def test_another_pack_s_node_of_the_same_id_is_not_the_wrapper(core: Core) -> None:
    core.mappings["Hy3DDelightImage"] = type("Hy3DDelightImage", (), {"FUNCTION": "process"})
    assert find_upstream(core.mappings) is None


def test_a_node_that_another_pack_defines_is_not_taken_for_the_wrapper_s(core: Core) -> None:
    table = core.load()
    del table["Hy3DVAEDecode"]  # the wrapper's own table
    core.mappings["Hy3DVAEDecode"] = type("Hy3DVAEDecode", (), {"FUNCTION": "process"})
    found = find_upstream(core.mappings)
    assert found is not None
    assert found.node_ids == ("Hy3DDelightImage",)
    with pytest.raises(UpstreamError, match="it has no node Hy3DVAEDecode"):
        found.part("Hy3DVAEDecode")


def test_a_node_that_only_comfyui_s_table_has_is_found(core: Core) -> None:
    core.load()
    del sys.modules[FOLDER].NODE_CLASS_MAPPINGS
    del sys.modules[FOLDER + ".nodes"].NODE_CLASS_MAPPINGS  # as a V3 pack, which has none
    found = find_upstream(core.mappings)
    assert found is not None
    assert found.part("Hy3DVAEDecode") is core.mappings["Hy3DVAEDecode"]


def test_a_module_that_cannot_be_imported_is_a_sentence(core: Core) -> None:
    core.load()
    found = find_upstream(core.mappings)
    assert found is not None
    with pytest.raises(UpstreamError, match=r"its module hy3dgen\.nothing cannot be imported"):
        found.part("hy3dgen.nothing")


def test_a_pack_that_failed_to_load_is_not_upstream(core: Core) -> None:
    core.load()
    core.mappings.clear()
    for name in (FOLDER, FOLDER + ".nodes"):
        del sys.modules[name].NODE_CLASS_MAPPINGS
    assert find_upstream(core.mappings) is None


def outer(a: int, b: str = "x", *rest: int, only: bool = True) -> Any:
    """For the checks: an inner function, a comprehension, a keyword argument in a call."""
    kept = [item.imag for item in rest]

    def inner() -> Any:
        return print(kept, sep="-")

    return inner, (1, ("deep", 2.5)), a, b, only


def test_the_checks_read_signature_and_code_inner_functions_included() -> None:
    assert parameters_missing(outer, ("a", "b", "only")) is None
    assert parameters_missing(outer, ("rest", "c")) == "outer has no parameter rest, c"
    assert names_missing(outer, ("imag", "print", "kept", "a")) is None
    assert names_missing(outer, ("imag", "printf")) == "outer has no use of printf"
    assert defaults_differ(outer, {"b": "x", "only": True}) is None
    assert defaults_differ(outer, {"only": 1}) == "outer has the default True for only, not 1"
    assert defaults_differ(outer, {"a": 1}) == "outer has no default for a, not 1"
    assert defaults_differ(outer, {"z": 1}) == "outer has no parameter z"


def test_the_checks_look_under_decorators_and_say_what_has_no_code() -> None:
    @functools.wraps(outer)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return outer(*args, **kwargs)

    assert names_missing(wrapper, ("imag",)) is None
    assert names_missing(len, ("imag",)) == "len is not written in Python"
    assert parameters_missing(3, ("x",)) == "3 has no signature that could be read"


def test_v1_is_asked_without_running_a_property() -> None:
    class V3:
        @property
        def FUNCTION(self) -> str:
            raise AssertionError("asked")

    assert not is_v1(V3)
    assert is_v1(type("V1", (), {"FUNCTION": "process"}))
