"""What is said about each node, in both languages: texts and help pages."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import pytest
from comfy_doubles import ROOT, Comfy, comfy, door, nodes_of

from hy3d_rocm.decoding.precision import PRECISIONS

__all__ = ["comfy", "door"]  # fixtures

HAN = re.compile(r"[\u4e00-\u9fff]")
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
