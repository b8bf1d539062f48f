"""The core's VAE nodes on its own VAE classes: alone, corrected in place, and beside ours."""

from __future__ import annotations

from typing import Any

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
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
            _in_full(context, server, kind, nodes)
            _ours(context, server, kind)
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


def _in_full(context: Context, server: Server, kind: str, nodes: Nodes) -> None:
    server.set(MODE, "full")
    prompt = graphs.with_check(graphs.through_vae(kind, nodes, context.shelf()), "decode")
    result = server.run(graphs.with_encode_check(prompt, "encode"))
    for name, what in (("check", "decode"), ("encode-check", "encode")):
        error = (result.ui(name, "check") or {}).get("error")
        claim = f"full: {kind}, core's {what} is that of the unsplit model"
        context.report.check(claim, near(error), f"{result.seen()} {error}")
    for name in nodes:
        found = seen(result, name)
        finite = found.get("finite") and found.get("shape") == found.get("wanted")
        claim = f"full: {kind}, core's {name} gives a whole result"
        context.report.check(claim, bool(finite), found or result.seen())
        context.report.note(f"    {name}: {found.get('far')} from the core alone")
    server.set(MODE, "protect")


def _ours(context: Context, server: Server, kind: str) -> None:
    prompt = graphs.through_vae(kind, graphs.OURS, context.shelf())
    result = server.run(graphs.with_check(prompt, "decode"))
    error = (result.ui("check", "check") or {}).get("error")
    claim = f"our decode: {kind}, as the unsplit decoder"
    context.report.check(claim, near(error), f"{result.seen()} {error}")


def near(error: float | None) -> bool:
    return error is not None and error <= EXACT


def seen(result: Result, name: str) -> dict[str, Any]:
    """What the shelf says of node `name`."""
    return result.ui(f"{name}-seen", "seen") or {}
