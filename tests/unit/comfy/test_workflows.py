"""The example workflows: what they are made of, where their nodes lie, what the front end reads.

tests/comfyui/screenshots.py opens and runs each of them in the real front ends.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from comfy_doubles import ROOT, Comfy, comfy, door, nodes_of

from hy3d_rocm.comfy import picture
from hy3d_rocm.conv.stats import Stats

__all__ = ["comfy", "door"]  # fixtures

FOLDER = ROOT / "example_workflows"
WORKFLOWS = sorted(FOLDER.glob("*.json"))
PICTURES = ROOT / "docs" / "images" / "workflows"
# Shows upstream's nodes, which are corrected in place.
WITHOUT_OURS = {"delight_and_multiview"}
WIDGETS = ("Combo", "Int", "Float", "Boolean", "String")

# Their picture lies below their inputs.
SHOW_PICTURES = (
    "Hy3DRocmMemoryPlan",
    "Hy3DRocmStatus",
    "Hy3DRocmDoctor",
    "Hy3DRocmValidateDecode",
)

# Files that ComfyUI's own templates name at these addresses, under this folder of models/.
HOST = "https://huggingface.co/"
MODELS = {
    "hunyuan_video_vae_bf16.safetensors": (
        "Comfy-Org/HunyuanVideo_repackaged/resolve/main/split_files/vae/",
        "vae",
    ),
}
IS_MODEL = re.compile(r"\.(safetensors|sft|ckpt|pt|pth|bin|gguf|onnx)$")  # the front end's list

# The classic canvas in pixels at 100 %: litegraph's constants, and the letters of a text's box.
TITLE, SLOT, WIDGET, REST = 30, 20, 24, 14
BADGE = 24  # the pack's name above a title
LETTER, BOX = 6.05, 50
LEAST_LETTERS = 12  # of pictures, in a node as it is saved


@pytest.fixture
def schemas(comfy: Comfy, door: ModuleType) -> dict[str, Any]:
    found = (node.GET_SCHEMA() for node in nodes_of(door))
    return {schema.node_id: schema for schema in found}


def flow(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def saved(kind: str) -> list[dict[str, Any]]:
    """All nodes of a type, of all workflows."""
    return [node for path in WORKFLOWS for node in flow(path)["nodes"] if node["type"] == kind]


def is_advanced(given: Any) -> bool:
    return bool((getattr(given, "extra_dict", None) or {}).get("advanced"))


def height(schema: Any, folded: bool) -> int:
    """Of a node of ours without a picture on the classic canvas; folded: with the button that
    web/advanced.js puts in the place of advanced inputs."""
    widgets = [given for given in schema.inputs if given.kind in WIDGETS]
    advanced = [given for given in widgets if is_advanced(given)]
    rows = max(len(schema.inputs) - len(widgets), len(schema.outputs), 1)
    count = len(widgets) + bool(advanced) - (len(advanced) if folded else 0)
    return rows * SLOT + count * WIDGET + REST


each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


@each_workflow
def test_an_example_workflow_is_sound(path: Path, schemas: dict[str, Any]) -> None:
    read = flow(path)
    by_id = {node["id"]: node for node in read["nodes"]}
    assert read["last_node_id"] == max(by_id)
    assert read["last_link_id"] == max(link[0] for link in read["links"])
    for number, source, slot, target, place, kind in read["links"]:
        assert number in by_id[source]["outputs"][slot]["links"]
        given = by_id[target]["inputs"][place]
        assert given["link"] == number
        kinds = set(kind.split(",")) & set(given["type"].split(","))
        assert kinds or "*" in (kind, given["type"])
    for node in read["nodes"]:
        if node["type"] not in schemas:
            continue
        schema = schemas[node["type"]]
        kinds = [str(output.kind).upper() for output in schema.outputs]
        assert [output["type"] for output in node["outputs"]] == kinds
        widgets = [given for given in schema.inputs if given.kind in WIDGETS]
        assert len(node["widgets_values"]) == len(widgets)
        for value, given in zip(node["widgets_values"], widgets, strict=True):
            assert given.kind != "Combo" or value in given.options


# What a saved workflow's values mean, by position, since version 0.1.0. New inputs come behind
# these; the browser gives them their defaults.
SAVED = {
    "Hy3DRocmCaptureLatent": "folder",
    "Hy3DRocmDoctor": "self_test seconds",
    "Hy3DRocmFreeMemory": "",
    "Hy3DRocmMemoryPlan": "width height frames budget strategy precision memory_threshold "
    "memory_fraction cpu_offload chunk_size slice_mb statistic_passes halo_pixels overlap_pixels "
    "min_tile_pixels",
    "Hy3DRocmPipeline": "seed_mode offload",
    "Hy3DRocmProtectVAE": "mode budget strategy precision",
    "Hy3DRocmSeedMode": "seed_mode first_index",
    "Hy3DRocmStatus": "",
    "Hy3DRocmTuneVAE": "width height frames seconds again retry_hung",
    "Hy3DRocmVAEDecode": "budget strategy precision memory_threshold memory_fraction cpu_offload "
    "chunk_size cleanup_frequency synchronization fallback_precision slice_mb statistic_passes "
    "halo_pixels overlap_pixels min_tile_pixels",
    "Hy3DRocmVAEEncode": "budget strategy precision memory_threshold memory_fraction cpu_offload "
    "chunk_size",
    "Hy3DRocmValidateDecode": "whole streamed tiled cpu budget share statistic_passes",
}


@pytest.mark.parametrize("node", SAVED)
def test_a_workflow_saved_by_an_earlier_version_means_the_same(
    node: str, schemas: dict[str, Any]
) -> None:
    names = SAVED[node].split()
    widgets = [given for given in schemas[node].inputs if given.kind in WIDGETS]
    assert [given.id for given in widgets[: len(names)]] == names
    # An API prompt has only the names that it was saved with.
    assert all(given.optional for given in widgets[len(names) :])


def test_every_node_is_in_a_workflow_and_every_workflow_shows_one(
    schemas: dict[str, Any],
) -> None:
    used = {path.stem: {node["type"] for node in flow(path)["nodes"]} for path in WORKFLOWS}
    assert set(schemas) <= set().union(*used.values())
    assert {stem for stem, types in used.items() if not types & set(schemas)} == WITHOUT_OURS


@each_workflow
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


@each_workflow
def test_no_node_overlaps_another_or_its_badge(path: Path) -> None:
    boxes = [
        (x, y - TITLE - BADGE, x + width, y + tall)
        for (x, y), (width, tall) in ((n["pos"], n["size"]) for n in flow(path)["nodes"])
    ]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, (path.stem, a, b)
    left, top, width, tall = flow(path)["groups"][0]["bounding"]
    assert all(left < a[0] and a[2] < left + width for a in boxes)
    assert all(top < a[1] + BADGE and a[3] < top + tall for a in boxes)


def slot(node: dict[str, Any], is_output: bool, index: int) -> tuple[float, float]:
    """Where a link begins or ends on the classic canvas: sockets first, then widgets."""
    (x, y), (width, _) = node["pos"], node["size"]
    if is_output:
        return x + width, y + (index + 0.7) * SLOT
    given = node["inputs"][index]
    sockets = [one["name"] for one in node["inputs"] if "widget" not in one]
    if given["name"] in sockets:
        return x, y + (sockets.index(given["name"]) + 0.7) * SLOT
    return x, y + max(len(sockets), len(node["outputs"])) * SLOT + WIDGET / 2


def dot(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True))


def spline(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """Points of a link as litegraph draws it: it leaves and arrives level, with a quarter of the
    distance as the length of both handles."""
    handle = math.dist(start, end) / 4
    xs = (start[0], start[0] + handle, end[0] - handle, end[0])
    ys = (start[1], start[1], end[1], end[1])
    weights = [
        ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
        for t in (i / 200 for i in range(201))
    ]
    return [(dot(w, xs), dot(w, ys)) for w in weights]


@each_workflow
def test_no_link_passes_behind_a_node(path: Path) -> None:
    nodes = {node["id"]: node for node in flow(path)["nodes"]}
    hidden = set()
    for _, source, out, target, into, kind in flow(path)["links"]:
        points = spline(slot(nodes[source], True, out), slot(nodes[target], False, into))
        for node in nodes.values():
            (x, y), (width, tall) = node["pos"], node["size"]
            # Its own ends lie on the border, and their badges beside it.
            top = TITLE if node["id"] in (source, target) else TITLE + BADGE
            if any(x < px < x + width and y - top < py < y + tall for px, py in points):
                hidden.add(f"{kind} from {source} to {target} behind {node['id']}")
    assert not hidden


@each_workflow
def test_our_nodes_have_room_for_their_folded_inputs(path: Path, schemas: dict[str, Any]) -> None:
    """A node that is saved smaller is made larger by the front end, over what lies below it."""
    for node in flow(path)["nodes"]:
        if (schema := schemas.get(node["type"])) is None:
            continue
        assert height(schema, folded=True) <= node["size"][1], node["type"]
        if any(map(is_advanced, schema.inputs)) and node["type"] not in SHOW_PICTURES:
            assert node["size"][1] < height(schema, folded=False), node["type"]


def test_pictures_can_be_read_in_the_nodes_that_show_them() -> None:
    shown = [node for kind in SHOW_PICTURES for node in saved(kind)]
    shown += [node for node in saved("PreviewImage") if node.get("title") == "Memory over time"]
    assert len(shown) == len(SHOW_PICTURES) + 1
    for node in shown:
        assert node["size"][0] / picture.WIDTH * picture.TEXT >= LEAST_LETTERS, node["type"]


def test_tables_of_reports_are_not_wrapped() -> None:
    stats = Stats()
    row = stats.row("conv3d", "1x512x129x720x1280 -> 512", "bf16", "current")
    row.calls, row.seconds = 9999, 999.999
    table = max(map(len, stats.table().splitlines()[1:]))
    head = "          time     peak  planned     PSNR     SSIM  largest   seams  flicker"
    wanted = {
        "Hy3DRocmVAEDecode": table,
        "Hy3DRocmVAEEncode": table,
        "Hy3DRocmStatus": table,
        "Hy3DRocmValidateDecode": len(head),
    }
    seen = set()
    for path in WORKFLOWS:
        by_id = {node["id"]: node for node in flow(path)["nodes"]}
        for _, source, _, target, _, _ in flow(path)["links"]:
            kind = by_id[source]["type"]
            if by_id[target]["type"] == "PreviewAny" and kind in wanted:
                assert by_id[target]["size"][0] >= wanted[kind] * LETTER + BOX, (path.stem, kind)
                seen.add(kind)
    assert seen == set(wanted)


def test_a_table_has_no_columns_of_zeros() -> None:
    stats = Stats()
    assert stats.table().count("\n") == 0
    stats.row("conv3d", "1x2x3", "f32", "current").calls = 2
    assert stats.table().splitlines()[1].split() == "op shape dtype tier calls seconds".split()
    stats.row("conv3d", "1x2x3", "f32", "cpu").failures = 1
    head, *rows = (line.split() for line in stats.table().splitlines()[1:])
    assert head == "op shape dtype tier calls failed seconds".split()
    assert [row[4:6] for row in rows] == [["2", "0"], ["0", "1"]]


def test_the_plan_is_shown_as_text_too() -> None:
    read = flow(FOLDER / "plan_memory_before_a_decode.json")
    by_id = {node["id"]: node["type"] for node in read["nodes"]}
    ends = [(by_id[link[1]], link[2], by_id[link[3]]) for link in read["links"]]
    assert ("Hy3DRocmMemoryPlan", 0, "PreviewAny") in ends


@each_workflow
def test_models_that_are_named_can_be_fetched(path: Path) -> None:
    """As the front end reads it: a name that is a widget's value, an address and a folder."""
    for node in flow(path)["nodes"]:
        named = [v for v in node["widgets_values"] if isinstance(v, str) and IS_MODEL.search(v)]
        models = node["properties"].get("models", [])
        assert [model["name"] for model in models] == named
        for model in models:
            assert set(model) == {"name", "url", "directory"}
            place, folder = MODELS[model["name"]]
            assert (model["url"], model["directory"]) == (HOST + place + model["name"], folder)


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Width and height, from the frame's header."""
    place = 2
    while data[place + 1] not in (0xC0, 0xC1, 0xC2):
        place += 2 + struct.unpack(">H", data[place + 2 : place + 4])[0]
    tall, wide = struct.unpack(">HH", data[place + 5 : place + 9])
    return wide, tall


def test_every_workflow_has_a_thumbnail_of_its_own() -> None:
    """The template browser asks for the workflow's name with .jpg, and shows it as a square."""
    files = sorted(FOLDER.glob("*.jpg"))
    assert [file.stem for file in files] == [path.stem for path in WORKFLOWS]
    assert {file.suffix for file in FOLDER.iterdir()} == {".json", ".jpg"}
    for file in files:
        data = file.read_bytes()
        assert data[:2] == b"\xff\xd8", file.name
        assert jpeg_size(data) == (400, 400), file.name
        assert len(data) < 40_000, file.name
    assert len({hashlib.sha256(file.read_bytes()).digest() for file in files}) == len(files)


FOLDING = """
import { app } from "./scripts/app.js";
const settings = { "Comfy.Locale": "en" };
app.extensionManager = { setting: { get: (id) => settings[id] } };
await import("./extensions/pack/advanced.js");

// A node of the canvas: 20 pixels a row of sockets, 24 a widget that shows.
const make = (comfyClass, knowsHidden) => ({
  comfyClass, size: [300, 500], inputs: [{ name: "b", widget: { name: "b" }, link: null }],
  widgets: ["a", "b", "c"].map((name) => ({ name, options: { advanced: name !== "a" } })),
  ...(knowsHidden ? { getLayoutWidgets() { return this.widgets.filter((w) => !w.hidden); } } : {}),
  addWidget(type, name, value, callback, options) {
    const widget = { type, name, value, callback, options };
    this.widgets.push(widget);
    return widget;
  },
  computeSize() { return [300, 34 + 24 * this.widgets.filter((w) => !w.hidden).length]; },
  setSize(size) { this.size = size; },
  setDirtyCanvas() {},
});
const seen = (node) => node.widgets.filter((w) => !w.hidden).map((w) => w.label ?? w.name);
const told = [];
for (const knowsHidden of [true, false]) {
  const node = make("Hy3DRocmVAEDecode", knowsHidden);
  app.extension.nodeCreated(node);
  told.push(seen(node), node.size[1]);
  node.inputs[0].link = 7;
  told.push(seen(node));
  node.inputs[0].link = null;
  node.setSize([300, 200]);
  const button = node.widgets.at(-1);
  button.callback();
  told.push(seen(node), node.size[1], button.serialize);
  button.callback();
  told.push(seen(node), node.size[1]);
  told.push(node.widgets.map((w) => w.computeSize?.()[1] ?? null));
  settings["Comfy.VueNodes.Enabled"] = true;
  told.push(seen(node));
  settings["Comfy.VueNodes.Enabled"] = false;
  node.widgets[0].hidden = true; // by somebody else
  told.push(seen(node));
}
const other = make("KSampler", true);
app.extension.nodeCreated(other);
told.push(seen(other), other.size[1]);
console.log(JSON.stringify(told));
"""


def test_advanced_inputs_are_folded_until_asked_for_or_linked(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to run web/advanced.js")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "extensions" / "pack").mkdir(parents=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    stand_in = "export const app = { registerExtension(e) { this.extension = e; } };"
    (tmp_path / "scripts" / "app.js").write_text(stand_in)
    shutil.copy(ROOT / "web" / "advanced.js", tmp_path / "extensions" / "pack")
    (tmp_path / "main.js").write_text(FOLDING)
    ran = subprocess.run(
        [node, "main.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    show, hide = "Show advanced inputs", "Hide advanced inputs"
    told = json.loads(ran.stdout)
    for heights in ([None] * 4, [None, -4, -4, 20]):
        assert told[:2] == [["a", show], 34 + 48]
        assert told[2] == ["a", "b", show]  # a linked one stays
        assert told[3:6] == [["a", "b", "c", hide], 248, False]
        assert told[6:8] == [["a", show], 200]
        assert told[8] == heights
        assert told[9] == ["a", "b", "c"]  # Nodes 2.0 folds by itself
        assert told[10] == [show]
        told = told[11:]
    assert told == [["a", "b", "c"], 500]


def test_every_workflow_has_a_picture_small_enough_to_be_read_online() -> None:
    sizes = {path.stem: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert set(sizes) == {path.stem for path in WORKFLOWS}
    assert max(sizes.values()) < 150_000
    assert sum(sizes.values()) < 2_000_000
