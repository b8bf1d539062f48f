"""The pack is switched off, then deleted: the core's VAE and kijai's packs are as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.layout import copy_pack
from comfy_harness.scenarios.framepack import ANSWERS
from comfy_harness.scenarios.vaes import MODE, seen
from comfy_harness.server import Prompt, Server

SETTINGS = "user/default/comfy.settings.json"
PATCHES = (
    "core-vae", "wan-vae", "hunyuan-vae", "framepack-import", "framepack-unload",
    "framepack-memory", "framepack-preview",
)  # fmt: skip
KINDS = ("hunyuan", "wan21", "image")


def run(context: Context) -> None:
    """Called by the scenario `removal`; with the video packs that run.py was given."""
    packs = context.video_packs(*context.video)
    base = context.new_base(packs)
    with context.server(base=base, environ=ANSWERS) as server:
        for kind in KINDS:
            server.run(graphs.through_vae(kind, graphs.CORE, context.shelf(), keep=True))
        before = _attributes(server)
    copy_pack(context.pack, base / "custom_nodes" / OURS)
    with context.server(base=base, environ={**PATCHED, **ANSWERS}) as server:
        _used(context, server, before)
    shutil.rmtree(base / "custom_nodes" / OURS)
    with context.server(base=base, environ=ANSWERS) as server:
        _removed(context, server, base, before)
    shutil.rmtree(base)


def _used(context: Context, server: Server, before: dict[str, str]) -> None:
    report = context.report
    server.set(MODE, "full")
    for kind in KINDS:
        result = server.run(graphs.through_vae(kind, graphs.CORE, context.shelf()))
        report.check(f"corrected: {kind} runs", result.ok, result.seen())
    changed = sorted(name for name, home in _attributes(server).items() if home != before.get(name))
    report.check("corrected: the core's VAE is", "VAE.decode" in changed, changed)
    report.note(f"    corrected: {', '.join(changed)}")
    for name in PATCHES:
        server.set(f"hy3d_rocm.patch.{name}", False)
    _as_alone(context, server, "all switches off")
    context.quiet(server)


def _removed(context: Context, server: Server, base: Path, before: dict[str, str]) -> None:
    report = context.report
    report.equal("removed: no attribute is patched", _attributes(server), before)
    _as_alone(context, server, "removed")
    left = json.loads((base / SETTINGS).read_text())
    asked = server.ask("/settings")
    report.equal("removed: ComfyUI reads its settings file", asked, left)
    ours = {name: value for name, value in left.items() if name.startswith("hy3d_rocm.")}
    report.note(f"    settings that the user had chosen stay, as those of any pack: {ours}")
    bad = [line for line in server.lines() if line.is_bad and "hy3d" in line.message]
    report.check("removed: nothing in the log asks for the pack", not bad, bad)


def _as_alone(context: Context, server: Server, name: str) -> None:
    """The saved workflows, whose nodes are the core's."""
    for kind in KINDS:
        result = server.run(graphs.through_vae(kind, graphs.CORE, context.shelf()))
        same = all(seen(result, one).get("same") for one in graphs.CORE)
        claim = f"{name}: {kind} through the core's nodes, the bits of the core alone"
        context.report.check(claim, result.ok and same, result.seen())


def _attributes(server: Server) -> dict[str, str]:
    prompt: Prompt = {"seen": node("HarnessAttributes")}
    found: dict[str, str] = server.run(prompt).ui("seen", "attributes") or {}
    return found
