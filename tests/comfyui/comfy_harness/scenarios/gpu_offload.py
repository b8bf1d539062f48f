"""On a GPU: the loaders under each offload policy, transfers as a browser sees them, memory."""

from __future__ import annotations

import re
from typing import Any

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import DELIGHT, PAINT, harness_pipe, node, upstream_pipe
from comfy_harness.listener import Listener
from comfy_harness.report import growth_per_prompt
from comfy_harness.server import Prompt, Server

LOADERS = (("delight", DELIGHT, graphs.delight), ("multiview", PAINT, graphs.multiview))
PROMPTS, SETTLED = 12, 5
MOST_GROWTH_BYTES = 1 << 20
LEAST_BYTES = 10_000  # more than any count of steps or images here
MOVED = re.compile(r"(\w+) to (\S+): (\S+ \S+) of (\S+ \S+)$")


def run(context: Context) -> None:
    with context.patched() as server:
        with Listener(server.port) as heard:
            _loaders(context, server)
            _bytes_seen(context, heard)
        _long_transfer(context, server)
        _automatic(context, server)
        _steady(context, server)


def _loaders(context: Context, server: Server) -> None:
    report = context.report
    for stage, model, make in LOADERS:
        for policy in ("on", "auto", "off"):
            pipe = upstream_pipe(model, offload=policy)
            result = server.run(graphs.with_kind(make(pipe, 3, seed_mode="legacy")))
            claim = f"{stage} loaded with offload {policy}: upstream's bits"
            expected = context.baseline()[f"{stage} 3"]
            if policy == "on":
                expected = context.alone.get(f"{stage} model offload", expected)
            report.equal(claim, result.items() or result.seen(), expected)
            kind = result.ui("kind", "kind")
            holds = kind is not None and is_offloaded(kind) == (policy == "on")
            words = "is offloaded" if policy == "on" else "stays on the GPU"
            report.check(f"{stage} loaded with offload {policy}: {words}", holds, kind)


def is_offloaded(kind: dict[str, Any]) -> bool | None:
    """Whether all networks have hooks and wait in main memory; None for anything in between."""
    places = {place for found in kind["places"].values() for place in found}
    if set(kind["hooks"]) == set(kind["places"]) and places == {"cpu"}:
        return True
    return False if not kind["hooks"] and "cpu" not in places else None


def _bytes_seen(context: Context, heard: Listener) -> None:
    report = context.report
    heard.settle(lambda: len(heard.of("execution_success")) >= 6)
    texts = [data for data in heard.of("text") if MOVED.search(data["text"])]
    for name, what in (("delight", "delight"), ("sample", "multiview")):
        seen = [data["text"] for data in texts if data["node"] == name]
        claim = f"offload on: the browser is told of the bytes that {what} moves"
        report.check(claim, bool(seen), heard.of("text")[-3:])
        report.note(f"    {seen[:1]} and {max(len(seen) - 1, 0)} more")
    bars = [data for data in heard.of("progress") if data.get("node") == "pipe"]
    whole = [data for data in bars if data["value"] == data["max"] >= LEAST_BYTES]
    report.check("the loaders' progress bar counts bytes to their end", bool(whole), bars[-2:])


def _long_transfer(context: Context, server: Server) -> None:
    """Gigabytes: bytes on their way, not only at the end."""
    prompt = _chosen(graphs.delight(harness_pipe("delight", "heavy"), 1), "on")
    with Listener(server.port) as heard:
        result = server.run(prompt)
        heard.settle(lambda: bool(heard.of("execution_success")))
        texts = [MOVED.search(data["text"]) for data in heard.of("text")]
    report = context.report
    report.check("a delight pipeline of 4 GiB runs with offload on", result.ok, result.seen())
    moved = [found for found in texts if found and found[1] == "unet"]
    between = [found for found in moved if found[3] != found[4]]
    claim = "the browser sees bytes of a long transfer on their way"
    report.check(claim, len(between) >= 2, [found[0] for found in moved])
    report.note(f"    {[found[0] for found in between[:3]]}")


def _automatic(context: Context, server: Server) -> None:
    result = server.run(_chosen(graphs.memory(0, harness_pipe("delight", "heavy")), "auto"))
    kind = result.ui("kind", "kind")
    holds = kind is not None and is_offloaded(kind) is False
    context.report.check("auto: 4 GiB of weights fit and stay on the GPU", holds, kind)
    server.run({"free": node("Hy3DRocmFreeMemory")})


def _chosen(prompt: Prompt, policy: str) -> Prompt:
    return graphs.behind(prompt, node("Hy3DRocmPipeline", seed_mode="setting", offload=policy))


def _steady(context: Context, server: Server) -> None:
    """Allocated GPU memory after prompts of both stages, offloaded."""
    allocated = []
    for seed in range(PROMPTS):
        prompt: Prompt = graphs.memory()
        for prefix, part in (
            ("d", graphs.delight(upstream_pipe(DELIGHT, offload="on"), 3, seed=seed)),
            ("m", graphs.multiview(upstream_pipe(PAINT, offload="on"), 3, seed=seed)),
        ):
            prompt.update(graphs.prefixed(prefix, part))
        prompt["memory"]["inputs"]["value"] = ["m-sample", 0]
        result = server.run(prompt)
        if not result.ok:
            raise RuntimeError(f"prompt {seed}: {result.seen()}")
        allocated.append(result.ui("memory", "memory")["allocated"])
    growth = growth_per_prompt(allocated, SETTLED)
    claim = f"{PROMPTS} prompts: GPU memory allocated grows under 1 MB a prompt after {SETTLED}"
    context.report.check(claim, growth < MOST_GROWTH_BYTES, allocated)
    context.report.note(f"    {growth:+.0f} bytes a prompt; {allocated}")
