"""The pack's folder is deleted: nothing of it stays, and its workflows run on upstream alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from comfy_harness import graphs
from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.graphs import DELIGHT, PAINT, harness_pipe, node, upstream_pipe
from comfy_harness.layout import copy_pack, new_files, snapshot
from comfy_harness.scenarios import video_removal
from comfy_harness.server import Prompt

INSIDE = f"custom_nodes/{OURS}/"
PREVIEWS = "temp/"  # ComfyUI empties it at its start, and at its end if it is not killed


def run(context: Context) -> None:
    report = context.report
    plain = files_without(context)
    base, made = _use_the_pack(context)
    left = sorted(set(made) - set(plain))
    report.check("no file of ours outside the pack's folder", not left, left)
    report.note(f"    files that ComfyUI itself leaves: {len(plain)}")
    shutil.rmtree(base / "custom_nodes" / OURS)
    with context.server(base=base) as server:
        for stage, model, kind, make in (
            ("delight", "delight", "plain", graphs.delight),
            ("multiview", "paint", "cuda means cpu", graphs.multiview),
        ):
            result = server.run(make(harness_pipe(model, kind), 3, seed_mode="per_image"))
            expected = context.baseline()[f"{stage} 3"]
            claim = f"removed: {stage} with our input in the workflow is upstream's"
            report.equal(claim, result.items() or result.seen(), expected)
        bad = [line for line in server.lines() if line.is_bad and "hy3d_rocm" in line.message]
        report.check("removed: nothing in the log asks for the pack", not bad, bad)
    shutil.rmtree(base)
    video_removal.run(context)


def files_without(context: Context) -> list[str]:
    """What ComfyUI and upstream leave in their base directory, home included."""
    base = context.new_base({UPSTREAM: context.wrapper})
    before = snapshot(base)
    with context.server(base=base) as server:
        server.run(graphs.delight(harness_pipe("delight"), 1))
    made = new_files(before, snapshot(base))
    shutil.rmtree(base)
    return made


def _use_the_pack(context: Context) -> tuple[Path, list[str]]:
    """A base directory in which the pack was used, and the new files outside its folder."""
    base = context.new_base({UPSTREAM: context.wrapper})
    copy_pack(context.pack, base / "custom_nodes" / OURS)
    before = snapshot(base)
    with context.server(base=base, environ=PATCHED) as server:
        for prompt in _prompts():
            result = server.run(prompt)
            context.report.check("a workflow runs with the pack", result.ok, result.seen())
        context.quiet(server)
    made = new_files(before, snapshot(base))
    return base, [name for name in made if not name.startswith((INSIDE, PREVIEWS))]


def _prompts() -> list[Prompt]:
    status = graphs.delight(upstream_pipe(DELIGHT, offload="auto"), 3, seed_mode="stream")
    status["free"] = node("Hy3DRocmFreeMemory", anything=["delight", 0])
    status["status"] = node("Hy3DRocmStatus", pipeline=["pipe", 0])
    views = graphs.multiview(upstream_pipe(PAINT, offload="on"), 3, seed_mode="per_image")
    return [status, views, graphs.mesh()]
