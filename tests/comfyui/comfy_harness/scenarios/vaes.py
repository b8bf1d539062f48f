"""The core's VAE nodes on its own VAE classes: alone, corrected in place, and beside ours."""

from __future__ import annotations

from typing import Any

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.server import Result, Server

MODE = "hy3d_rocm.vae"  # ComfyUI's setting
# The project's promise for streamed decodes in float32; images are 0..1.
EXACT = 1e-4
Nodes = dict[str, dict[str, Any]]


def run(context: Context) -> None:
    context.video_packs()
    with context.server(packs={}) as server:
        known = {kind: _alone(context, server, kind) for kind in graphs.SIZES}
    with context.server(packs={OURS: context.pack}, environ=PATCHED) as server:
        for kind, nodes in known.items():
            _as_before(context, server, kind, nodes)
            _in_parts(context, server, kind, nodes, "full")
            _in_parts(context, server, kind, nodes, "cpu")
            _ours(context, server, kind)
        _told(context, server)
        _theirs(context, server)
        context.quiet(server)


def _alone(context: Context, server: Server, kind: str) -> Nodes:
    """The core's nodes that this core can run with this VAE; the others are named."""
    report, shelf = context.report, context.shelf()
    if server.run(graphs.through_vae(kind, graphs.CORE, shelf, keep=True)).ok:
        report.check(f"without the pack: {kind} runs", True)
        return graphs.CORE
    able = {}
    for name, one in graphs.CORE.items():
        result = server.run(graphs.through_vae(kind, {name: one}, shelf, keep=True))
        if result.ok:
            able[name] = one
        else:
            report.note(f"NOT COMPARED: {kind}, {name}: the core alone: {result.seen()}"[:300])
    claim = f"without the pack: {kind} decodes and encodes"
    report.check(claim, {"decode", "encode"} <= set(able), sorted(able))
    return able


def _as_before(context: Context, server: Server, kind: str, nodes: Nodes) -> None:
    """Nothing fails, so failing convolutions being caught changes no bit."""
    for mode in ("off", "protect"):
        server.set(MODE, mode)
        result = server.run(graphs.through_vae(kind, nodes, context.shelf()))
        for name in nodes:
            found = seen(result, name)
            claim = f"{mode}: {kind}, core's {name} gives the bits of the core alone"
            context.report.check(claim, bool(found.get("same")), found or result.seen())


def _in_parts(context: Context, server: Server, kind: str, nodes: Nodes, mode: str) -> None:
    server.set(MODE, mode)
    prompt = graphs.with_check(graphs.through_vae(kind, nodes, context.shelf()), "decode")
    result = server.run(graphs.with_encode_check(prompt, "encode"))
    for name, what in (("check", "decode"), ("encode-check", "encode")):
        error = (result.ui(name, "check") or {}).get("error")
        claim = f"{mode}: {kind}, core's {what} is that of the unsplit model"
        context.report.check(claim, near(error), f"{result.seen()} {error}")
    for name in nodes:
        found = seen(result, name)
        finite = found.get("finite") and found.get("shape") == found.get("wanted")
        claim = f"{mode}: {kind}, core's {name} gives a whole result"
        context.report.check(claim, bool(finite), found or result.seen())
        context.report.note(f"    {name}: {found.get('far')} from the core alone")
    server.set(MODE, "protect")


def _ours(context: Context, server: Server, kind: str) -> None:
    prompt = graphs.through_vae(kind, graphs.OURS, context.shelf())
    result = server.run(graphs.with_check(prompt, "decode"))
    error = (result.ui("check", "check") or {}).get("error")
    claim = f"our decode: {kind}, as the unsplit decoder"
    context.report.check(claim, near(error), f"{result.seen()} {error}")


def _told(context: Context, server: Server) -> None:
    """Each stage's lines, in each mode: one start and one end for each attempt, in order."""
    said = [line.message for line in context.our_lines(server) if line.message.startswith("[")]
    for what in ("decode", "encode"):
        stage = f"[VAE {what.capitalize()}]"
        own = [line for line in said if line.startswith(stage)]
        attempts = [line for line in own if "Attempting" in line or "SUCCESS" in line]
        order = [f"Attempting CPU {what} on cpu", f"CPU {what} SUCCESS"] * (len(attempts) // 2)
        right = all(f"{stage} {text}" in line for line, text in zip(attempts, order, strict=True))
        context.report.check(f"the log says of each {what} that it begins and ends", right, own)
        other = "encode" if what == "decode" else "decode"
        wrong = [line for line in own if other in line]
        context.report.equal(f"no line of a {what} is about the other", wrong, [])
    loads = [line for line in said if line.startswith("[Before VAE Load] Free: ")]
    context.report.check("the log tells the memory before a VAE is loaded", bool(loads), said[:3])


def _theirs(context: Context, server: Server) -> None:
    """An error of ComfyUI's own code, through all that is patched."""
    for mode, prompts in (("protect", False), ("protect", True)):
        server.set(MODE, mode)
        server.set("hy3d_rocm.protect_prompts", prompts)
        result = server.run({
            "vae": graphs.vae("hunyuan"),
            "latent": node("EmptyLatentImage", width=64, height=64, batch_size=1),
            "decode": node("VAEDecode", samples=["latent", 0], vae=["vae", 0]),
            "show": node("PreviewImage", images=["decode", 0]),
        })  # fmt: skip
        ours = [frame for frame in result.frames if "hy3d_rocm" in frame]
        label = f"{mode}, every node {'on' if prompts else 'off'}"
        context.report.check(f"{label}: wrong latents fail", bool(result.frames), result.seen())
        context.report.equal(f"{label}: the traceback does not name the pack", ours, [])
    server.set("hy3d_rocm.protect_prompts", False)


def near(error: float | None) -> bool:
    return error is not None and error <= EXACT


def seen(result: Result, name: str) -> dict[str, Any]:
    """What the shelf says of node `name`."""
    return result.ui(f"{name}-seen", "seen") or {}
