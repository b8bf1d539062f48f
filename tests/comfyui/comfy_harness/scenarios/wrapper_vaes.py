"""VAE nodes of kijai's WanVideoWrapper and HunyuanVideoWrapper: alone, corrected, beside ours."""

from __future__ import annotations

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.scenarios.vaes import EXACT, MODE, near, seen
from comfy_harness.server import Prompt, Server

FAULTS = "current:*:*:no_algorithm,every=2"


def run(context: Context) -> None:
    report = context.report
    packs = context.video_packs(*graphs.WRAPPERS)
    with context.server(packs=packs) as server:
        for kind, (_loader, nodes) in graphs.WRAPPERS.items():
            for name in nodes:
                result = server.run(_prompt(context, kind, name, keep=True))
                again = server.run(_prompt(context, kind, name))
                same = bool(seen(again, name).get("same"))
                claim = f"without the pack: {kind}, {name} runs, the same bits twice"
                report.check(claim, result.ok and same, f"{result.seen()} {again.seen()}")
    with context.server(packs={**packs, OURS: context.pack}, environ=PATCHED) as server:
        for kind in graphs.WRAPPERS:
            _corrected(context, server, kind)
            _ours(context, server, kind)
        context.quiet(server)
        for kind in graphs.WRAPPERS:
            _failing(context, server, kind)


def _prompt(context: Context, kind: str, name: str, keep: bool = False, faults: str = "") -> Prompt:
    loader, nodes = graphs.WRAPPERS[kind]
    first = node("HarnessFaults", faults=faults) if faults else None
    one, shelf = {name: nodes[name]}, context.shelf()
    return graphs.through_vae(kind, one, shelf, keep=keep, first=first, loader=loader)


def _corrected(context: Context, server: Server, kind: str) -> None:
    report, names = context.report, graphs.WRAPPERS[kind][1]
    for mode in ("off", "protect", "full"):
        server.set(MODE, mode)
        for name in names:
            result = server.run(_prompt(context, kind, name))
            found = seen(result, name)
            holds = near(found.get("far")) if mode == "full" else bool(found.get("same"))
            what = "within 1e-4 of" if mode == "full" else "the bits of"
            claim = f"{mode}: {kind}, {name}: {what} the wrapper alone"
            report.check(claim, holds, f"{result.seen()} {found}")


def _failing(context: Context, server: Server, kind: str) -> None:
    report = context.report
    for mode in ("protect", "full"):
        server.set(MODE, mode)
        prompt = _prompt(context, kind, "decode", faults=FAULTS)
        result = server.run({**prompt, "fired": node("HarnessFired", value=["decode", 0])})
        found, fired = seen(result, "decode"), result.ui("fired", "fired")
        claim = f"{mode}: {kind}, MIOpen fails: the right frames"
        report.check(claim, near(found.get("far")), f"{result.seen()} {found}")
        report.check(f"{mode}: {kind}, MIOpen fails: it was met", bool(fired), f"{fired}")


def _ours(context: Context, server: Server, kind: str) -> None:
    """Our node on the wrapper's VAE: 0..1 of the frames -1..1, where WanVideoDecode stretches."""
    loader, _nodes = graphs.WRAPPERS[kind]
    told = node("HarnessText", value=["decode", 1])
    prompt = graphs.through_vae(kind, graphs.OURS, context.shelf(), loader=loader)
    result = server.run({**prompt, "told": told})
    far = seen(result, "decode").get("far")
    report = context.report
    if kind == "wan":
        holds = result.ok and bool(seen(result, "decode").get("finite"))
        report.check(f"our decode on {kind}: whole frames", holds, f"{result.seen()} {far}")
    else:
        claim = f"our decode on {kind}: within {EXACT} of the wrapper's node"
        report.check(claim, near(far), f"{result.seen()} {far}")
    text = str(result.ui("told", "text"))
    in_parts = "streamed" in text or "whole" in text
    report.check(f"our decode on {kind}: planned, not left to the VAE", in_parts, text[:300])
