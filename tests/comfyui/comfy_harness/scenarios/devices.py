"""Patched: everything that fails without the pack runs, from disk and with strange pipelines."""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import DELIGHT, PAINT, harness_pipe, upstream_pipe
from comfy_harness.scenarios.baseline import FAILURES
from comfy_harness.server import Server

KINDS = (
    "plain", "device says cuda", "device says meta", "device raises", "sequential offload",
    "model offload", "compiled",
)  # fmt: skip
POLICIES = ("off", "auto", "on")


def run(context: Context) -> None:
    with context.patched(rasterizer=True) as server:
        for name, (prompt, text) in FAILURES.items():
            result = server.run(prompt)
            gone = result.ok and text not in result.error
            context.report.check(f"with the pack, {name} runs", gone, result.seen())
        _kinds(context, server)
        _loaders(context, server)


def _kinds(context: Context, server: Server) -> None:
    """Where a pipeline computes is the CPU here, whatever it says: so are upstream's bits."""
    for kind in KINDS:
        for model, make in (("delight", graphs.delight), ("paint", graphs.multiview)):
            stage = "delight" if model == "delight" else "multiview"
            result = server.run(make(harness_pipe(model, kind), 3, seed_mode="legacy"))
            expected = context.baseline()[f"{stage} 3"]
            claim = f"{stage}, {kind}: upstream's bits"
            context.report.equal(claim, result.items() or result.seen(), expected)


def _loaders(context: Context, server: Server) -> None:
    for stage, model, make in (
        ("delight", DELIGHT, graphs.delight), ("multiview", PAINT, graphs.multiview),
    ):  # fmt: skip
        for policy in POLICIES:
            pipe = upstream_pipe(model, offload=policy)
            result = server.run(graphs.with_kind(make(pipe, 1)))
            expected = context.baseline()[f"{stage} 1"]
            claim = f"{stage} loaded from disk with offload {policy}: upstream's bits"
            context.report.equal(claim, result.items() or result.seen(), expected)
            context.report.note(f"    {result.ui('kind', 'kind')}")
