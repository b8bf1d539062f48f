"""Installation: any load order, each patch by itself, taken back as it was, one line each.

ComfyUI's server and the wrapper are stand-ins; docs/comfyui.md says what was tried in real ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import pytest
from patch_doubles import Core, FakeServer, assert_identical, attributes_of, install, specs
from patch_fixtures import (  # noqa: F401
    ON,
    ORIGINAL,
    PATCHED,
    SUMMARY,
    clean_core,
    decoded,
    said_above_debug,
    uninstall,
)

from hy3d_rocm.comfy.patches.install import install_patches, installed
from hy3d_rocm.comfy.patches.upstream import find

# What install() asks, by object: another test may have loaded the package's modules anew.
GATE = install_patches.__globals__


@pytest.mark.parametrize("upstream_first", [True, False])
def test_patched_at_the_start_whatever_the_load_order(
    upstream_first: bool, core: Core, said: Callable[[], list[str]]
) -> None:
    table = core.load() if upstream_first else {}
    install(specs, ON)
    table = table or core.load()
    assert decoded(table) == ORIGINAL  # not before all packs are loaded
    core.server.start()
    assert decoded(table) == PATCHED
    assert core.pipeline().HunyuanPaintPipeline().__call__.__name__ == "__call__"
    core.server.prompt()
    assert decoded(table) == PATCHED
    assert said() == [SUMMARY]


def test_a_pack_that_is_loaded_after_the_start_is_patched_before_the_next_prompt(
    core: Core, said: Callable[[], list[str]]
) -> None:
    install(specs, ON)
    core.server.start()
    core.server.prompt()
    assert said() == []
    table = core.load()
    core.server.prompt()
    assert decoded(table) == PATCHED
    assert said() == [SUMMARY]


def test_installed_after_the_start_it_patches_at_once(core: Core) -> None:
    table = core.load()
    core.server.start()
    install(specs, ON)
    assert decoded(table) == PATCHED


def test_install_twice_hooks_once(core: Core) -> None:
    first = install(specs, ON)
    assert install(specs, ON) is first
    assert installed() is first
    assert len(core.server.on_prompt_handlers) == len(core.server.app.on_startup) == 1


def test_install_with_other_specs_takes_the_first_back(core: Core) -> None:
    table = core.load()
    core.server.start()
    install(specs, ON)
    install(lambda: specs()[:1], ON)
    assert decoded(table) == ORIGINAL
    assert len(core.server.on_prompt_handlers) == 1


def test_uninstall_leaves_every_attribute_and_the_server_as_they_were(core: Core) -> None:
    table = core.load()
    before = attributes_of(table, core.pipeline())
    install(specs, ON)
    core.server.start()
    assert uninstall() == ()
    assert_identical(before, attributes_of(table, core.pipeline()))
    assert core.server.on_prompt_handlers == []
    assert vars(core.server).keys() == vars(FakeServer()).keys()
    assert installed() is None
    core.server.start()  # the hook in the frozen list does nothing any more
    assert decoded(table) == ORIGINAL
    assert uninstall() == ()


def test_without_upstream_nothing_is_said(core: Core, said: Callable[[], list[str]]) -> None:
    install(specs, ON)
    core.server.start()
    core.server.prompt()
    assert said() == []


def test_without_a_server_nothing_happens_and_only_debug_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "server", raising=False)
    caplog.set_level(logging.DEBUG, logger="hy3d_rocm")
    assert install(specs, ON) is None
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert uninstall() == ()


def test_no_amd_gpu_means_untouched_and_one_line(
    core: Core, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        GATE,
        "amd_gpu",
        lambda: (False, "there is no AMD GPU here (NVIDIA X)"),
    )
    table = core.load()
    before = attributes_of(table, core.pipeline())
    install(specs, {})
    core.server.start()
    core.server.prompt()
    core.load("/srv/custom_nodes/second")
    core.server.prompt()
    assert_identical(before, attributes_of(table, core.pipeline()))
    assert said() == [
        "hy3d_rocm: ComfyUI-Hunyuan3DWrapper is left alone: there is no AMD GPU here (NVIDIA X); "
        "HY3D_ROCM_PATCH=on patches it all the same"
    ]


@pytest.mark.parametrize("environ", [{"HY3D_ROCM_PATCH": "off"}, {**ON, "HY3D_ROCM": "off"}])
def test_switched_off_means_untouched(core: Core, environ: dict[str, str]) -> None:
    table = core.load()
    before = attributes_of(table, core.pipeline())
    install(specs, environ)
    core.server.start()
    assert_identical(before, attributes_of(table, core.pipeline()))


def test_a_patch_named_in_the_variable_is_left_out_and_the_others_are_not(
    core: Core, said: Callable[[], list[str]]
) -> None:
    table = core.load()
    install(specs, {"HY3D_ROCM_PATCH": "on,-delight,-multiview"})
    core.server.start()
    assert not hasattr(table["Hy3DDelightImage"].process, "__wrapped__")
    assert decoded(table) == PATCHED
    name, value = "hy3d_rocm: ComfyUI-Hunyuan3DWrapper:", "HY3D_ROCM_PATCH=on,-delight,-multiview"
    assert said() == [
        f'{name} delight is left alone: switched off by "-delight" in {value}; take that out of '
        "the variable and restart ComfyUI to have it corrected",
        f'{name} multiview is left alone: switched off by "-multiview" in {value}; take that out '
        "of the variable and restart ComfyUI to have it corrected",
        f"{name} vae-decode run on the right device (HY3D_ROCM_PATCH=off leaves them alone)",
    ]


@pytest.mark.parametrize("text", ["ja,-multiview", "on,-mutliview", "banana"])
@pytest.mark.parametrize("is_amd", [True, False])
def test_a_variable_that_cannot_be_read_is_said_once_and_nothing_is_patched(
    core: Core, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, text: str,
    is_amd: bool,
) -> None:  # fmt: skip
    monkeypatch.setitem(GATE, "amd_gpu", lambda: (is_amd, "AMD GPU: X"))
    install(specs, {"HY3D_ROCM_PATCH": text})
    core.server.start()
    (line,) = said()  # with nothing loaded that could be patched
    assert line.startswith(f"hy3d_rocm: HY3D_ROCM_PATCH={text} is not understood (")
    table = core.load()
    for _ in range(2):
        core.server.prompt()
    assert decoded(table) == ORIGINAL
    name = "ComfyUI-Hunyuan3DWrapper"
    assert said()[1:] == [
        f"hy3d_rocm: {name} is left alone: HY3D_ROCM_PATCH={text} is not understood"
    ]


def test_install_patches_reads_the_pack_s_own_specs_when_upstream_is_there(
    core: Core, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("HY3D_ROCM_PATCH", "on")
    monkeypatch.setitem(sys.modules, "hy3d_rocm.comfy.patches.hunyuan3d", None)
    install_patches()
    core.server.start()
    assert said() == []  # not asked for without upstream
    own = type(sys)("hy3d_rocm.comfy.patches.hunyuan3d")
    own.__dict__["SPECS"] = specs()
    monkeypatch.setitem(sys.modules, "hy3d_rocm.comfy.patches.hunyuan3d", own)
    table = core.load()
    core.server.prompt()
    assert decoded(table) == PATCHED


def test_of_two_copies_each_is_patched_and_taken_back(
    core: Core, said: Callable[[], list[str]]
) -> None:
    tables = [core.load("/srv/custom_nodes/one"), core.load("/srv/custom_nodes/two")]
    pipelines = [core.pipeline("/srv/custom_nodes/one"), core.pipeline("/srv/custom_nodes/two")]
    before = [attributes_of(*pair) for pair in zip(tables, pipelines, strict=True)]
    assert [found.name for found in find("hunyuan3d", core.mappings)] == ["two", "one"]
    install(specs, ON)
    core.server.start()
    assert [decoded(table) for table in tables] == [PATCHED, PATCHED]
    assert [line.split(":")[1].strip() for line in said()] == ["two", "one"]
    uninstall()
    for state, pair in zip(before, zip(tables, pipelines, strict=True), strict=True):
        assert_identical(state, attributes_of(*pair))


def test_a_copy_that_is_loaded_anew_is_patched_again_and_the_old_one_let_go(core: Core) -> None:
    install(specs, ON)
    old = core.load()
    core.server.start()
    new = core.load()
    core.server.prompt()
    assert decoded(new) == PATCHED
    assert decoded(old) == ORIGINAL
