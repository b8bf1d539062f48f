"""An upstream that has changed: the patch that no longer fits is left out, the others stay."""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.graphs import DELIGHT, PAINT, upstream_pipe
from comfy_harness.layout import copy_pack, replace_in
from comfy_harness.scenarios.loading import ALONE_LINE, PATCHED_LINE
from comfy_harness.server import Prompt

OLD, NEW = "delight_pipe", "delighting_pipe"


def run(context: Context) -> None:
    report = context.report
    changed = copy_pack(context.wrapper, context.work / f"{context.core.name}-changed")
    report.check(
        "a copy of upstream has a renamed parameter", replace_in(changed / "nodes.py", OLD, NEW) > 0
    )
    with context.server(packs={UPSTREAM: changed, OURS: context.pack}, environ=PATCHED) as server:
        result = server.run(_renamed(graphs.delight(upstream_pipe(DELIGHT), 3)))
        expected = context.baseline()["delight 3"]
        claim = "the changed node is untouched: upstream's bits in the default mode"
        report.equal(claim, result.items() or result.seen(), expected)
        result = server.run(graphs.multiview(upstream_pipe(PAINT), 3))
        expected = context.baseline()["multiview 3"]
        report.equal("the others are patched", result.items() or result.seen(), expected)
        lines = [line.message for line in context.our_lines(server)]
        alone = [line for line in lines if ALONE_LINE in line]
        report.check("one line says which and why", len(alone) == 1 and OLD in alone[0], alone)
        patched = [line for line in lines if PATCHED_LINE in line]
        report.check("one line says what is patched", len(patched) == 1, patched)
        for line in alone + patched:
            report.note(f"    {line}")
        context.quiet(server, allowed=ALONE_LINE)
    _left_out(context)


def _renamed(prompt: Prompt) -> Prompt:
    inputs = dict(prompt["delight"]["inputs"])
    inputs[NEW] = inputs.pop(OLD)
    return {**prompt, "delight": {**prompt["delight"], "inputs": inputs}}


def _left_out(context: Context) -> None:
    """The user leaves one out."""
    with context.server(context.pack, {"HY3D_ROCM_PATCH": "on,-delight"}) as server:
        result = server.run(graphs.delight(upstream_pipe(DELIGHT), 3))
        expected = context.baseline()["delight 3"]
        claim = "HY3D_ROCM_PATCH=on,-delight: delight is untouched, its loader is patched"
        context.report.equal(claim, result.items() or result.seen(), expected)
        context.quiet(server)
