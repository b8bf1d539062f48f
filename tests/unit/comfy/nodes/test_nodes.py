"""The nodes for modes, memory and status, with stand-ins for ComfyUI; and what lies beside them."""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from comfy_doubles import ROOT, Comfy, comfy, door, execute, nodes_of, offload

__all__ = ["comfy", "door", "execute", "offload"]  # fixtures

Execute = Callable[..., Any]
GB = 2**30


class TinyPipeline:
    """Draws its picture as diffusers' pipelines do."""

    device = torch.device("cpu")

    def __call__(self, generator: Any = None) -> torch.Tensor:
        return torch.randn(4, generator=generator)


@pytest.fixture
def nodes(comfy: Comfy, door: ModuleType) -> dict[str, Any]:
    return {node.GET_SCHEMA().node_id: node for node in nodes_of(door)}


def inputs_of(node: Any) -> dict[str, Any]:
    return {given.id: given for given in node.GET_SCHEMA().inputs}


def test_every_node_input_and_output_explains_itself(nodes: dict[str, Any]) -> None:
    assert len(nodes) == 12
    for name, node in nodes.items():
        schema = node.GET_SCHEMA()
        assert schema.description, name
        assert schema.search_aliases, name
        for socket in [*schema.inputs, *schema.outputs]:
            assert socket.tooltip, (name, socket.id)


def test_the_pipeline_node_offloads_as_asked_and_gives_a_proxy(
    execute: Execute, offload: list[tuple[Any, ...]]
) -> None:
    pipeline = TinyPipeline()
    out = execute("Hy3DRocmPipeline", pipeline=pipeline, seed_mode="setting", offload="on").values
    again = execute("Hy3DRocmPipeline", pipeline=out[0], seed_mode="legacy").values[0]
    (real, policy, device, free, total), second = offload
    assert real is pipeline  # not the proxy
    assert second[0] is pipeline
    assert (policy, second[1]) == ("on", "auto")  # given, and the setting's default
    assert device == torch.device("cpu")
    assert free > 0
    assert total == 64 * GB
    assert "seed_mode='stream'" in repr(out[0])
    assert "seed_mode='legacy'" in repr(again)


def test_a_prompt_saved_before_the_offload_input_existed_still_runs(
    execute: Execute, nodes: dict[str, Any], offload: list[tuple[Any, ...]]
) -> None:
    assert inputs_of(nodes["Hy3DRocmPipeline"])["offload"].optional
    execute("Hy3DRocmPipeline", pipeline=TinyPipeline(), seed_mode="stream")


def test_a_changed_setting_runs_exactly_the_nodes_that_ask_for_it(
    nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes["Hy3DRocmPipeline"]
    cases = [{"seed_mode": "setting", "offload": "off"}, {"seed_mode": "legacy", "offload": "off"}]
    monkeypatch.setenv("HY3D_ROCM_SEED_MODE", "stream")
    before = [node.fingerprint_inputs(pipeline=None, **case) for case in cases]
    monkeypatch.setenv("HY3D_ROCM_SEED_MODE", "per_image")
    after = [node.fingerprint_inputs(pipeline=None, **case) for case in cases]
    assert before[0] != after[0]
    assert before[1] == after[1] == ""


@pytest.mark.parametrize("mode", ["stream", "legacy", "setting"])
def test_a_first_index_without_per_image_is_refused_in_a_sentence(
    execute: Execute, mode: str
) -> None:
    with pytest.raises(ValueError, match=r"first_index is 2 .* give 0, or"):
        execute("Hy3DRocmSeedMode", pipeline=TinyPipeline(), seed_mode=mode, first_index=2)


def test_the_seed_mode_node_numbers_the_first_image(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.nodes import machine

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(machine, "PipelineProxy", lambda p, **options: made.append(options))
    given = {"pipeline": TinyPipeline(), "seed_mode": "per_image"}
    execute("Hy3DRocmSeedMode", first_index=3, **given)
    assert made[0]["first_index"] == 3
    assert made[0]["seed_mode"] == "per_image"


def test_memory_is_freed_once_and_the_input_passes_through(
    execute: Execute, comfy: Comfy, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    calls: list[str] = []
    comfy.management.current_loaded_models += ["a", "b"]
    unload = comfy.management.unload_all_models
    comfy.management.unload_all_models = lambda: (calls.append("unload"), unload())
    comfy.management.soft_empty_cache = lambda: calls.append("empty")
    monkeypatch.setattr("gc.collect", lambda: calls.append("gc") or 7)
    value = object()
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        out = execute("Hy3DRocmFreeMemory", anything=value)
    assert out.values[0] is value
    assert calls == ["unload", "gc", "empty"]
    before, after, freed = out.values[1].splitlines()
    form = r"\[%s Free Memory\] Free: [0-9.]+ GB \| Allocated: [0-9.]+ GB \([0-9.]+%% of the host's"
    assert re.match(form % "Before", before)
    assert re.match(form % "After", after)
    assert "2 of 2 models unloaded, 7 unreachable objects collected" in freed
    assert out.ui.as_dict() == {"text": (out.values[1],)}
    assert [r.getMessage() for r in caplog.records][-3:] == [before, after, freed]


def test_the_free_memory_and_status_nodes_are_never_cached(nodes: dict[str, Any]) -> None:
    for name in ("Hy3DRocmFreeMemory", "Hy3DRocmStatus"):
        fingerprints = [(nodes[name].fingerprint_inputs(),) for _ in range(2)]
        assert fingerprints[0] != fingerprints[1]  # in a tuple, as the cache compares them
        assert math.isnan(fingerprints[0][0])
        assert nodes[name].GET_SCHEMA().is_output_node


def test_anything_may_go_into_the_free_memory_node_in_both_cores(nodes: dict[str, Any]) -> None:
    schema = nodes["Hy3DRocmFreeMemory"].GET_SCHEMA()
    for socket in (schema.inputs[0], schema.outputs[0]):
        kind = socket.kind
        assert kind == "*"
        assert json.dumps(kind) == '"*"'
        assert not kind != "IMAGE"  # noqa: SIM202  (what the core of 2025-10 asks)
        assert {kind} == {"*"}


def test_the_status_names_modes_patches_memory_and_pipelines(
    execute: Execute, offload: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.nodes import machine

    said = SimpleNamespace(lines=["hy3d_rocm: delight is patched", "hy3d_rocm: mesh: changed"])
    monkeypatch.setattr(machine, "installed", lambda: said)
    monkeypatch.setenv("HY3D_ROCM_SEED_MODE", "legacy")
    pipeline = TinyPipeline()
    execute("Hy3DRocmPipeline", pipeline=pipeline, seed_mode="setting")
    out = execute("Hy3DRocmStatus")
    text, image = out.values
    for part in (
        "ComfyUI computes on cpu", "[Now] Free: ", "of the host's 64GB)",
        "seed_mode: legacy (HY3D_ROCM_SEED_MODE in the environment)", "offload: auto (default)",
        "Patches:\ndelight is patched\nmesh: changed\n",
        "TinyPipeline computes on cpu (rule: device), offload: model", "none yet",
    ):  # fmt: skip
        assert part in text, part
    assert image.shape[0] == 1
    assert image.shape[3] == 3
    assert out.ui["images"]
    assert out.ui["text"] == (text,)
    del pipeline, out
    offload.clear()  # the double held it
    assert "Pipelines:\nnone seen yet" in execute("Hy3DRocmStatus").values[0]


def test_the_picture_is_an_image_of_bounded_height_with_something_on_it(execute: Execute) -> None:
    from hy3d_rocm.comfy import picture

    long = ["word " * 200, "x" * 3000, "", "  indented"] * 6
    sections = [picture.Section("One", long, 0.5), picture.Section("Two", long, 7.0)]
    image = picture.draw("Title", sections)
    assert image.dtype == torch.float32
    assert image.shape[2:] == (picture.WIDTH, 3)
    assert image.shape[1] <= picture.TALLEST <= picture.WIDTH
    assert float(image.min()) >= 0
    assert float(image.max()) <= 1
    colours = {tuple(c) for c in (image[0, ::3, ::3] * 255).round().int().reshape(-1, 3).tolist()}
    assert {picture.BACKGROUND, picture.CARD, picture.ACCENT, picture.BRIGHT} <= colours


@pytest.mark.parametrize("title", ["One", "a title that is too long to stand beside its lines"])
def test_long_sections_give_way_and_say_how_much_is_in_the_text(title: str) -> None:
    from hy3d_rocm.comfy import picture

    short, long = picture.Section(title, ["one", "two"]), picture.Section("Two", ["x"] * 90)
    for aside in (0, 100):
        room = 20 * picture.LINE
        kept = picture._shortened([short, long], room, aside)
        assert kept[0] == short
        assert sum(picture._height(s, aside) + picture.GAP for s in kept) <= room
        shown = kept[1].lines[:-1]
        assert set(shown) == {"x"}
        assert kept[1].lines[-1] == f"... {90 - len(shown)} lines more are in the text"
    many = [picture.Section(f"{title} {i}", ["a", "b"]) for i in range(60)]
    assert picture._shortened(many, 20 * picture.LINE, 0)[-1].lines == ["more is in the text"]
    for sections in ([short, long], many, []):
        assert picture.draw("Title", sections).shape[1] <= picture.TALLEST


def test_a_failing_part_at_the_start_costs_one_line_and_no_node(
    comfy: Comfy, door: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken() -> None:
        raise RuntimeError("no such upstream")

    install = importlib.import_module("hy3d_rocm.comfy.patches.install")
    monkeypatch.setattr(install, "install_patches", broken)
    with caplog.at_level(logging.DEBUG):
        assert len(nodes_of(door)) == 12
    ours = [r.getMessage() for r in caplog.records if r.name == "hy3d_rocm"]
    assert len(ours) == 1
    assert "the patches: not in place, the nodes are not affected: RuntimeError: no such" in ours[0]


@pytest.fixture
def card(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """ComfyUI on a card of 24 GB, 20 GB of it free, 1 GB allocated here; the fractions set."""
    made = SimpleNamespace(fractions=[], free=20 * GB, allocated=GB)
    monkeypatch.setattr(comfy.management, "get_torch_device", lambda: "cuda")
    for name, stand_in in {
        "mem_get_info": lambda device: (made.free, 24 * GB),
        "memory_allocated": lambda device: made.allocated,
        "memory_reserved": lambda device: made.allocated,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "set_per_process_memory_fraction": lambda f, d: made.fractions.append((f, str(d))),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made


def test_a_cap_reaches_the_allocator_and_comfyuis_reserve(
    comfy: Comfy, card: SimpleNamespace
) -> None:
    from hy3d_rocm.comfy import memory

    reserve = comfy.management.EXTRA_RESERVED_VRAM
    assert memory.usage().line("a") == (
        "[a] Free: 20.0 GB | Allocated: 1.0 GB (4.2% of the card's 24GB)"
    )
    for _ in range(2):  # the second call changes nothing
        assert memory.cap_at_start({"HY3D_ROCM_MAX_VRAM_GB": "18"}) == 18 * GB
    assert card.fractions == [(0.75, "cuda:0")]
    assert reserve + 6 * GB == comfy.management.EXTRA_RESERVED_VRAM
    assert memory.log_stage("Before VAE Load") == (
        "[Before VAE Load] Free: 17.0 GB | Allocated: 1.0 GB (5.6% of 18GB limit)"
    )
    assert memory.free_and_total() == (17 * GB, 18 * GB)
    card.free = 2 * GB  # others hold the rest: the cap is not what is free
    assert memory.usage().free == 2 * GB


def test_a_cap_may_be_a_share(comfy: Comfy, card: SimpleNamespace) -> None:
    from hy3d_rocm.comfy import memory

    assert memory.cap_at_start({"HY3D_ROCM_MAX_VRAM_SHARE": "50%"}) == 12 * GB


def test_a_senseless_cap_is_one_line_and_no_cap(
    comfy: Comfy, card: SimpleNamespace, caplog: Any
) -> None:
    from hy3d_rocm.comfy import memory

    reserve = comfy.management.EXTRA_RESERVED_VRAM
    for _ in range(2):
        assert memory.cap_at_start({"HY3D_ROCM_MAX_VRAM_GB": "much"}) is None
    assert len(caplog.records) == 1
    assert card.fractions == []
    assert reserve == comfy.management.EXTRA_RESERVED_VRAM


def test_on_the_cpu_a_cap_is_one_line_and_without_one_there_is_none(
    comfy: Comfy, caplog: Any
) -> None:
    from hy3d_rocm.comfy import memory

    assert memory.cap_at_start({}) is None
    assert not caplog.records
    assert memory.cap_at_start({"HY3D_ROCM_MAX_VRAM_SHARE": "0.5"}) is None
    assert "HY3D_ROCM_MAX_VRAM_SHARE: no effect, since ComfyUI computes on cpu" in caplog.text


def test_a_driver_that_fails_costs_the_stage_line_and_nothing_else(
    card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from hy3d_rocm.comfy import memory

    def fails(device: Any) -> Any:
        raise RuntimeError("HIP error")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        assert memory.log_stage("x") == ""
    assert not caplog.records


def settings_in_the_browser() -> str:
    return (ROOT / "web" / "settings.js").read_text(encoding="utf-8")


def test_the_browsers_settings_are_those_that_are_read(comfy: Comfy) -> None:
    from hy3d_rocm.comfy import settings

    script = settings_in_the_browser()
    patches = dict(re.findall(r'^  \["([a-z-]+)", "([^"]+)"\],?$', script, flags=re.M))
    assert tuple(patches) == settings.PATCHES
    for name, default in settings._DEFAULTS.items():
        found = re.search(
            rf'id: "{settings.PREFIX}{name}".*?defaultValue: "(\w+)",\s*(?:options: \[(.*?)\])?',
            script, flags=re.S,
        )  # fmt: skip
        assert found is not None, name
        assert found[1] == default
        options = tuple(re.findall(r'"(\w+)"', found[2] or ""))
        assert options == settings._CHOICES.get(name, ())


def locale(language: str, file: str) -> dict[str, Any]:
    path = ROOT / "locales" / language / file
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_word_on_screen_is_there_in_both_languages(
    nodes: dict[str, Any], language: str
) -> None:
    from hy3d_rocm.comfy import settings

    told = locale(language, "nodeDefs.json")
    assert set(told) == set(nodes)
    for name, node in nodes.items():
        schema = node.GET_SCHEMA()
        assert set(told[name]["inputs"]) == {given.id for given in schema.inputs}
        assert set(told[name]["outputs"]) == {str(i) for i in range(len(schema.outputs))}
        for texts in [*told[name]["inputs"].values(), *told[name]["outputs"].values()]:
            assert texts["name"], name
            assert texts["tooltip"], name
    ids = [*settings.VARIABLES, *(f"patch.{name}" for name in settings.PATCHES)]
    in_file = locale(language, "settings.json")
    assert set(in_file) == {(settings.PREFIX + name).replace(".", "_") for name in ids}
    assert all(texts["name"] and texts["tooltip"] for texts in in_file.values())


def test_the_english_locale_says_what_the_nodes_say(nodes: dict[str, Any]) -> None:
    told = locale("en", "nodeDefs.json")
    for name, node in nodes.items():
        schema = node.GET_SCHEMA()
        assert told[name]["display_name"] == schema.display_name
        assert told[name]["description"] == schema.description
        tips = {given.id: given.tooltip for given in schema.inputs}
        assert {k: v["tooltip"] for k, v in told[name]["inputs"].items()} == tips


def test_every_node_has_a_help_page_that_names_its_inputs(nodes: dict[str, Any]) -> None:
    for name, node in nodes.items():
        for page in (f"{name}.md", f"{name}/zh.md"):
            text = (ROOT / "web" / "docs" / page).read_text(encoding="utf-8")
            for socket in node.GET_SCHEMA().inputs:
                assert f"`{socket.id}`" in text, (page, socket.id)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_settings_categories_are_those_of_the_browser(language: str) -> None:
    script = settings_in_the_browser()
    pack = re.findall(r'^const PACK = "(.+)";$', script, flags=re.M)
    groups = re.findall(r'(?:category: \[PACK,|patchSwitches\(\s*\w+,)\s*"([^"]+)"', script)
    words = locale(language, "main.json")["settingsCategories"]
    assert set(words) == {*pack, *groups}
    assert words[pack[0]] == pack[0]  # a longer name is cut off in the side bar
    assert language != "en" or all(key == word for key, word in words.items())
