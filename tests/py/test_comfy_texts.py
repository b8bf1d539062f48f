"""What is said about each node, in both languages: texts, help pages, workflows, pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from comfy_doubles import ROOT, Comfy, comfy, door, nodes_of

from hy3d_rocm.decode.precision import PRECISIONS

__all__ = ["comfy", "door"]  # fixtures

WORKFLOWS = sorted((ROOT / "example_workflows").glob("*.json"))
PICTURES = ROOT / "docs" / "images" / "workflows"
HAN = re.compile(r"[\u4e00-\u9fff]")
# Shows upstream's nodes, which are corrected in place.
WITHOUT_OURS = {"delight_and_multiview"}
# Words that Chinese texts leave as they are: names of things, of strategies and of types.
AS_IT_IS = {"VAE", "Latent", "whole", "streamed", "tiled", "cpu"}


@pytest.fixture
def schemas(comfy: Comfy, door: ModuleType) -> dict[str, Any]:
    found = (node.GET_SCHEMA() for node in nodes_of(door))
    return {schema.node_id: schema for schema in found}


def told(language: str) -> dict[str, Any]:
    path = ROOT / "locales" / language / "nodeDefs.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def page(name: str, language: str) -> str:
    file = f"{name}.md" if language == "en" else f"{name}/{language}.md"
    return (ROOT / "web" / "docs" / file).read_text(encoding="utf-8")


def flow(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_choice_is_explained_where_it_is_made(schemas: dict[str, Any], language: str) -> None:
    """The front end shows a combo's options as they are: what they mean is in the tooltip."""
    texts = told(language)
    for name, schema in schemas.items():
        for given in schema.inputs:
            if given.kind not in ("Combo",) or set(given.options) == set(PRECISIONS):
                continue
            tooltip = texts[name]["inputs"][given.id]["tooltip"]
            for option in given.options:
                assert re.search(rf"\b{option}[:：]", tooltip), (name, given.id, option)


def test_chinese_texts_are_chinese(schemas: dict[str, Any]) -> None:
    texts = told("zh")
    for name in schemas:
        entry = texts[name]
        sockets = [*entry["inputs"].values(), *entry["outputs"].values()]
        said = [entry["description"], entry["display_name"], *(s["tooltip"] for s in sockets)]
        assert all(HAN.search(text) for text in said), name
        names = {socket["name"] for socket in sockets} - AS_IT_IS
        assert all(HAN.search(text) for text in names), (name, names)
        assert len(HAN.findall(page(name, "zh"))) > 80, name


def test_english_names_are_those_of_the_nodes(schemas: dict[str, Any]) -> None:
    texts = told("en")
    for name, schema in schemas.items():
        inputs = {given.id: given.id for given in schema.inputs}
        assert {k: v["name"] for k, v in texts[name]["inputs"].items()} == inputs
        outputs = [(out.display_name, out.tooltip) for out in schema.outputs]
        numbered = texts[name]["outputs"]
        found = [numbered[str(i)] for i in range(len(outputs))]
        assert [(o["name"], o["tooltip"]) for o in found] == outputs


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_help_page_names_every_input_and_no_other(schemas: dict[str, Any], language: str) -> None:
    for name, schema in schemas.items():
        text = page(name, language)
        heading = told(language)[name]["display_name"]
        assert text.startswith(f"# {heading}\n"), name
        rows = re.findall(r"^\| (`.+?`) \|", text, flags=re.M)
        listed = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
        inputs = {given.id for given in schema.inputs}
        modes = {"stream", "per_image", "legacy"} if "seed_mode" in inputs else set()
        assert inputs <= listed <= inputs | modes, (name, inputs ^ listed)


def test_every_node_is_in_a_workflow_and_every_workflow_shows_one(
    schemas: dict[str, Any],
) -> None:
    used = {path.stem: {node["type"] for node in flow(path)["nodes"]} for path in WORKFLOWS}
    assert set(schemas) <= set().union(*used.values())
    assert {stem for stem, types in used.items() if not types & set(schemas)} == WITHOUT_OURS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_its_sockets_and_leaves_nothing_required_open(
    path: Path, schemas: dict[str, Any]
) -> None:
    for node in flow(path)["nodes"]:
        schema = schemas.get(node["type"])
        if schema is None:
            continue
        inputs = {given.id: given for given in schema.inputs}
        linked = {given["name"]: given for given in node["inputs"]}
        assert set(linked) <= set(inputs)
        sockets = {name for name, given in inputs.items() if not hasattr(given, "default")}
        assert sockets <= set(linked)
        for name in sockets:
            is_open = linked[name]["link"] is None
            assert not is_open or getattr(inputs[name], "optional", False), (path.stem, name)
        for given in linked.values():
            assert ("widget" in given) == (given["name"] not in sockets)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nodes_of_a_workflow_do_not_overlap(path: Path) -> None:
    title = 30  # pixels above a node's position
    boxes = [
        (n["pos"][0], n["pos"][1] - title, n["pos"][0] + n["size"][0], n["pos"][1] + n["size"][1])
        for n in flow(path)["nodes"]
    ]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, (path.stem, a, b)


def test_every_workflow_has_a_picture_small_enough_to_be_read_online() -> None:
    sizes = {path.stem: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert set(sizes) == {path.stem for path in WORKFLOWS}
    assert max(sizes.values()) < 150_000
    assert sum(sizes.values()) < 2_000_000
