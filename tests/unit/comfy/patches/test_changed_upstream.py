"""A changed upstream, or a patch that fails: one line, and the other patches go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from patch_doubles import (
    NODES,
    PIPELINE,
    Core,
    assert_identical,
    attributes_of,
    install,
    marking,
    specs,
)
from patch_fixtures import (  # noqa: F401
    ON,
    PATCHED,
    SUMMARY,
    clean_core,
    decoded,
    said_above_debug,
)

from hy3d_rocm.comfy.patches.engine import Change
from hy3d_rocm.comfy.patches.upstream import PatchSpec, Place

V3_DELIGHT = """
class Hy3DDelightImage:
    @classmethod
    def define_schema(cls):
        return None

    @property
    def FUNCTION(self):
        raise AssertionError("asked")

    @classmethod
    def execute(cls, delight_pipe, image, seed):
        return torch.manual_seed(seed), "delight"

class Hy3DVAEDecode"""


def v3_delight(source: str) -> str:
    return V3_DELIGHT + source.partition("class Hy3DVAEDecode")[2]


CHANGED = {
    "parameter renamed": (
        lambda s: s.replace("image, seed)", "image, the_seed)"),
        "Hy3DDelightImage.process has no parameter seed",
    ),
    "parameter gone": (
        lambda s: s.replace("delight_pipe, image, seed", "*args"),
        "Hy3DDelightImage.process has no parameter delight_pipe, image, seed",
    ),
    "call gone": (
        lambda s: s.replace("torch.manual_seed(seed)", "torch.Generator()"),
        "Hy3DDelightImage.process has no use of manual_seed",
    ),
    "method gone": (
        lambda s: s.replace("def process(self, delight_pipe", "def other(self, delight_pipe"),
        "Hy3DDelightImage has no method process",
    ),
    "runs another": (
        lambda s: s.replace('FUNCTION = "process"', 'FUNCTION = "run"', 1),
        "Hy3DDelightImage runs its method run, not process",
    ),
    "inputs gone": (
        lambda s: s.replace("INPUT_TYPES", "INPUTS"),
        "Hy3DDelightImage.INPUT_TYPES does not exist",
    ),
    "class gone": (
        lambda s: s.replace("class Hy3DDelightImage", "class Hy3DLight"),
        "it has no node Hy3DDelightImage",
    ),
    "V3": (v3_delight, "Hy3DDelightImage is no V1 node (it has no FUNCTION)"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_node_is_left_alone_with_one_line_and_the_others_are_patched(
    what: str, core: Core, said: Callable[[], list[str]]
) -> None:
    edit, reason = CHANGED[what]
    table = core.load(nodes=edit(NODES))
    before = attributes_of(table, core.pipeline())
    install(specs, ON)
    core.server.start()
    core.server.prompt()
    assert decoded(table) == PATCHED
    now = attributes_of(table, core.pipeline())
    for name in ("Hy3DVAEDecode", "HunyuanPaintPipeline"):  # these two are patched
        now[name] = before[name]
    assert_identical(before, now)
    name = "hy3d_rocm: ComfyUI-Hunyuan3DWrapper:"
    line, summary = said()
    assert line == f"{name} delight is left alone: {reason}"
    assert "delight" not in summary


def test_a_changed_module_leaves_its_patch_alone(core: Core, said: Callable[[], list[str]]) -> None:
    core.load(pipeline=PIPELINE.replace('.to("cuda")', ".cuda()"))
    install(specs, ON)
    core.server.start()
    expected = "multiview is left alone: HunyuanPaintPipeline.__call__ has no use of to"
    assert said()[0].endswith(expected)


def test_an_upstream_that_is_all_v3_is_left_alone_with_one_line(
    core: Core, said: Callable[[], list[str]]
) -> None:
    core.load(nodes=V3_DELIGHT.rpartition("class")[0])
    install(specs, ON)
    core.server.start()
    core.server.prompt()
    assert said() == [
        "hy3d_rocm: ComfyUI-Hunyuan3DWrapper is left alone: its nodes are no V1 classes"
    ]


def failing(_: Any) -> Any:
    raise ZeroDivisionError("deep")


@pytest.mark.parametrize("where", ["expects", "changes", "make"])
def test_a_patch_that_fails_is_one_line_and_the_others_go_on(
    where: str, core: Core, said: Callable[[], list[str]]
) -> None:
    def changes(upstream: Place) -> list[Change]:
        node = upstream.part("Hy3DVAEDecode")
        made = [Change(node, "process", marking("half")), Change(node, "FUNCTION", failing)]
        return made if where == "make" else failing(upstream)

    broken = PatchSpec("broken", failing if where == "expects" else lambda upstream: None, changes)
    table = core.load()
    install(lambda: (broken, *specs()), ON)
    core.server.start()
    assert decoded(table) == PATCHED
    assert "broken is left alone" in said()[0]
    assert "ZeroDivisionError: deep" in said()[0]
    assert said()[1] == SUMMARY


def test_specs_that_cannot_be_had_cost_one_line_and_no_prompt(
    core: Core, said: Callable[[], list[str]]
) -> None:
    core.load()
    install(lambda: failing(None), ON)
    core.server.start()
    core.server.prompt()
    assert said() == ["hy3d_rocm: not all is patched: ZeroDivisionError: deep"]


def test_a_look_that_fails_at_each_prompt_is_said_once(
    core: Core, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["nodes"], "NODE_CLASS_MAPPINGS", 3)
    install(specs, ON)
    core.server.start()
    core.server.prompt()
    assert len(said()) == 1
    monkeypatch.setattr(sys.modules["nodes"], "NODE_CLASS_MAPPINGS", core.mappings)
    table = core.load()
    core.server.prompt()  # it still looks
    assert decoded(table) == PATCHED
