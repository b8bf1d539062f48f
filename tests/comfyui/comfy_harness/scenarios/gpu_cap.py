"""On a GPU: the cap on this process' memory, with both of torch's allocators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comfy_harness import graphs
from comfy_harness.context import PATCHED, Context
from comfy_harness.graphs import harness_pipe
from comfy_harness.scenarios.gpu_errors import pictures_made
from comfy_harness.scenarios.gpu_offload import _chosen, is_offloaded
from comfy_harness.server import Server

GIB = 1 << 30
CAP_BYTES = 3 * GIB
OWN_RESERVE_BYTES = GIB  # ComfyUI's own is 400 to 700 MiB
OUT_OF_MEMORY = "out of memory"


def run(context: Context) -> None:
    with context.patched() as server:
        memory = server.run(graphs.memory()).ui("memory", "memory")
    total = int(memory["total"])
    context.report.note(f"    without a cap: {memory}")
    share = f"{CAP_BYTES / total:.6f}"
    _capped(context, {"HY3D_ROCM_MAX_VRAM_GB": "3"}, (), total)
    _capped(context, {"HY3D_ROCM_MAX_VRAM_SHARE": share}, ("--disable-cuda-malloc",), total)


def _capped(
    context: Context, variables: Mapping[str, str], flags: Sequence[str], total: int
) -> None:
    name = " ".join([*(f"{key}={value}" for key, value in variables.items()), *flags])
    with context.server(context.pack, {**PATCHED, **variables}, flags=flags) as server:
        _refused(context, server, name)
        _planned(context, server, name, total)
        result = server.run(graphs.delight(harness_pipe("delight"), 2))
        context.report.check(f"{name}: delight runs", pictures_made(result, 2), result.seen())
        lines = [line.message for line in context.our_lines(server)]
        stage = [line for line in lines if "of 3GB limit" in line]
        context.report.check(f"{name}: the memory lines name the limit", bool(stage), lines[-5:])
        context.report.note(f"    {stage[-1:]}")
        context.quiet(server)


def _refused(context: Context, server: Server, name: str) -> None:
    report = context.report
    for grab, fits in ((2 * GIB, True), (4 * GIB, False), (2 * GIB, True)):
        result = server.run(graphs.memory(grab))
        seen = result.ui("memory", "memory")
        refusal = seen["grabbed"] if seen else result.seen()
        holds = seen is not None and (not refusal if fits else OUT_OF_MEMORY in refusal)
        words = "can be had" if fits else "are refused as out of memory"
        report.check(f"{name}: {grab // GIB} GiB {words}", holds, refusal)
    report.note(f"    {refusal}"[:200])


def _planned(context: Context, server: Server, name: str, total: int) -> None:
    report = context.report
    memory = server.run(graphs.memory()).ui("memory", "memory")
    kept = memory["reserved_by_comfyui"] - (total - CAP_BYTES)
    claim = f"{name}: ComfyUI leaves what is beyond the cap"
    report.check(claim, abs(kept) <= OWN_RESERVE_BYTES, memory)
    result = server.run(_chosen(graphs.memory(0, harness_pipe("delight", "heavy")), "auto"))
    kind = result.ui("kind", "kind")
    holds = kind is not None and is_offloaded(kind) is True
    report.check(f"{name}: auto: 4 GiB of weights are offloaded", holds, kind or result.seen())
