"""Saved workflows: upstream's nodes take the same inputs as before, and ours at the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.graphs import SIZE, STEPS, node
from comfy_harness.saved import inputs_in_order, to_prompt
from comfy_harness.server import HARNESS, Prompt, Server

OUR_INPUTS = ("seed_mode", "offload")
SMALL = {
    "width": SIZE, "height": SIZE, "view_size": SIZE, "render_size": SIZE, "texture_size": SIZE,
    "steps": STEPS, "length": 5, "seconds": 5,
}  # fmt: skip
# VAELoader gives the demo's trained VAE under the name that the workflows have.
DEMO_VAE = HARNESS / "demo_vae"


def run(context: Context) -> None:
    base = context.new_base({UPSTREAM: context.wrapper, "demo-vae": DEMO_VAE})
    shutil.copytree(context.models / "inputs", base / "input", dirs_exist_ok=True)
    with context.server(base=base) as server:
        before = server.ask("/object_info")
    (base / "custom_nodes" / OURS).symlink_to(context.pack)
    with context.server(base=base, environ=PATCHED, rasterizer=True) as server:
        after = server.ask("/object_info")
        _same_inputs(context, before, after)
        for file in sorted((context.pack / "example_workflows").glob("*.json")):
            _saved(context, server, file, after)
            _thumbnail(context, server, file)
        context.quiet(server)
    shutil.rmtree(base)


def _same_inputs(context: Context, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed, moved = {}, []
    for name, info in before.items():
        old, new = inputs_in_order(info), inputs_in_order(after[name])
        if new[: len(old)] != old or set(new[len(old) :]) - set(OUR_INPUTS):
            moved.append((name, old, new))
        elif new != old:
            changed[name] = new[len(old) :]
        described = {key: info["input"].get(key) for key in ("required", "hidden")}
        if described != {key: after[name]["input"].get(key) for key in described}:
            moved.append((name, "its required inputs"))
    report = context.report
    report.check("all nodes keep their inputs and their order; ours come last", not moved, moved)
    report.check("some have inputs of ours", len(changed) >= 6, changed)
    report.note(f"    {changed}")


def _saved(context: Context, server: Server, file: Path, info: dict[str, Any]) -> None:
    report = context.report
    try:
        prompt = to_prompt(json.loads(file.read_text()), info)
    except (KeyError, ValueError) as error:
        report.failed(f"{file.name} fits the nodes", error)
        return
    report.check(f"{file.name} fits the nodes", True)
    result = server.run(_small(prompt))
    report.check(f"{file.name} runs, small", result.ok, result.seen())


def _thumbnail(context: Context, server: Server, file: Path) -> None:
    """Where the front end looks for it: the workflow's name with .jpg, whatever lies there."""
    address = f"/api/workflow_templates/{OURS}/{file.stem}.jpg"
    try:
        found = server.fetch(address)
    except OSError as error:
        context.report.failed(f"{file.stem} has a thumbnail", error)
    else:
        same = found == file.with_suffix(".jpg").read_bytes()
        context.report.check(f"{file.stem} has a thumbnail", same, len(found))


def _small(prompt: Prompt) -> Prompt:
    """`prompt` at the size of the tiny models, with a probe behind what a browser would preview."""
    changed = {}
    for name, one in prompt.items():
        inputs = {key: SMALL.get(key, value) for key, value in one["inputs"].items()}
        changed[name] = {**one, "inputs": inputs}
        if one["class_type"] == "PreviewImage":
            changed[name] = node("HarnessHash", value=inputs["images"])
    return changed
