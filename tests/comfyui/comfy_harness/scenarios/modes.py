"""Patched: what each seed mode promises, the settings, the random states, our own nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import BATCHES, DELIGHT, PAINT, node, stand_in, upstream_pipe
from comfy_harness.report import differing
from comfy_harness.server import Prompt, Result, Server

Make = Callable[..., Prompt]
STAGES: dict[str, tuple[Make, str]] = {
    "delight": (graphs.delight, DELIGHT),
    "multiview": (graphs.multiview, PAINT),
}


def run(context: Context) -> None:
    with context.patched() as server:
        _legacy(context, server)
        _stream(context, server)
        _per_image(context, server)
        _shape(context, server)
        _states(context, server)
    with context.patched() as server:
        _settings(context, server)
        _own_nodes(context, server)


def _stage(name: str, count: int, **optional: Any) -> Prompt:
    """A workflow that begins with upstream's loader, as a user's does."""
    make, model = STAGES[name]
    return make(upstream_pipe(model), count, **optional)


def _legacy(context: Context, server: Server) -> None:
    for name in STAGES:
        for count in BATCHES:
            result = server.run(_stage(name, count, seed_mode="legacy"))
            expected = context.baseline()[f"{name} {count}"]
            claim = f"legacy: {name}, {count} of them, every bit as without the pack"
            context.report.equal(claim, result.items() or result.seen(), expected)


def _stream(context: Context, server: Server) -> None:
    report, baseline = context.report, context.baseline()
    for count in BATCHES:
        result = server.run(_stage("delight", count, seed_mode="stream"))
        _others_differ(context, f"stream: delight, {count} images", result, count)
        result = server.run(_stage("multiview", count, seed_mode="stream"))
        claim = f"stream: multiview, {count} views, every bit as upstream on a CPU"
        report.equal(claim, result.items() or result.seen(), baseline[f"multiview {count}"])
    alike = server.run(_stage("delight", 3, seed_mode="stream", alike=True)).items() or []
    report.check("stream: like images in a batch get noise of their own", len(set(alike)) == 3)
    chosen = server.run(_stage("delight", 8, seed_mode="stream"))
    default = server.run(_stage("delight", 8))
    claim = "stream is the default"
    report.equal(claim, default.items() or default.seen(), chosen.items())


def _others_differ(context: Context, label: str, result: Result, count: int) -> None:
    expected = context.baseline()[f"delight {count}"]
    items = result.items()
    seen = differing(items, expected) if items else result.seen()
    claim = f"{label}: image 1 as without the pack, the others with noise of their own"
    context.report.equal(claim, seen, list(range(1, count)))


def _per_image(context: Context, server: Server) -> None:
    whole = server.run(_stage("delight", 8, seed_mode="per_image"))
    _others_differ(context, "per_image: delight, 8 images", whole, 8)
    parts: list[str] = []
    for first, count in ((0, 3), (3, 5)):
        chosen = node("Hy3DRocmSeedMode", seed_mode="per_image", first_index=first)
        split = graphs.behind(_stage("delight", count, first=first), chosen)
        result = server.run(split)
        parts += result.items() or [result.seen()]
    claim = "per_image: delight, 3 + 5 images with first_index are the 8, bit for bit"
    context.report.equal(claim, parts, whole.items())
    views = server.run(_stage("multiview", 8, seed_mode="per_image"))
    distinct = len(set(views.items() or []))
    context.report.check(
        "per_image: multiview, 8 views, all different", distinct == 8, views.seen()
    )
    _split_noise(context, server)


def _split_noise(context: Context, server: Server) -> None:
    """Views look at each other, so a split changes pictures; a stand-in shows its noise alone."""
    pipe = stand_in("all properties raise")
    whole = server.run(graphs.multiview(pipe, 8, seed_mode="per_image"))
    parts: list[str] = []
    for first, count in ((0, 3), (3, 5)):
        chosen = node("Hy3DRocmSeedMode", seed_mode="per_image", first_index=first)
        result = server.run(graphs.behind(graphs.multiview(pipe, count), chosen))
        parts += result.items() or [result.seen()]
    claim = "per_image: multiview, the noise of 3 + 5 views with first_index is that of the 8"
    context.report.equal(claim, parts, whole.items() or whole.seen())


def _shape(context: Context, server: Server) -> None:
    for name, make in (("mesh", graphs.mesh), ("mesh multiview", graphs.mesh_multiview)):
        for mode in ("legacy", "stream", "per_image"):
            result = server.run(make(seed_mode=mode))
            claim = f"{mode}: {name}, one shape, every bit as without the pack"
            context.report.equal(claim, result.items() or result.seen(), context.baseline()[name])
    plain = server.run(graphs.mesh())
    claim = "Hy3DVAEDecode makes a mesh of it"
    context.report.check(claim, bool(plain.items("decoded")), plain.seen())


def _states(context: Context, server: Server) -> None:
    known = server.run(graphs.known_states()).ui("after", "states")
    prompts = {
        "delight": (_stage("delight", 3), "delight", "image"),
        "multiview": (_stage("multiview", 3), "sample", "ref_image"),
        "mesh": (graphs.mesh(), "mesh", "image"),
    }
    for name, (prompt, user, socket) in prompts.items():
        result = server.run(graphs.with_states(prompt, user, socket))
        seen = result.ui("after", "states") or result.seen()
        claim = f"stream: {name} leaves the global random states as they were"
        context.report.equal(claim, seen, known)


def _settings(context: Context, server: Server) -> None:
    report, prompt = context.report, _stage("delight", 3)
    legacy = context.baseline()["delight 3"]
    _write_settings(server, {"hy3d_rocm.seed_mode": "legacy"})
    first = server.run(prompt)
    report.equal("setting legacy is followed", first.items() or first.seen(), legacy)
    again = server.run(prompt)
    report.check("settings unchanged: nothing runs again", "delight" in again.cached, again.cached)
    _write_settings(server, {"hy3d_rocm.seed_mode": "legacy", "Comfy.Locale": "en"})
    again = server.run(prompt)
    report.check("another's setting changed: nothing runs", "delight" in again.cached, again.cached)
    _write_settings(server, {"hy3d_rocm.seed_mode": "stream"})
    switched = server.run(prompt)
    _ran_again(context, "seed_mode switched: delight runs again", switched, "delight")
    _others_differ(context, "setting stream is followed", switched, 3)
    chosen = server.run(_stage("delight", 3, seed_mode="legacy"))
    report.equal("the node's input counts more", chosen.items() or chosen.seen(), legacy)
    _write_settings(server, {"hy3d_rocm.seed_mode": "stream", "hy3d_rocm.offload": "on"})
    switched = server.run(prompt)
    _ran_again(context, "offload switched: the loader runs again", switched, "pipe")


def _ran_again(context: Context, claim: str, result: Result, name: str) -> None:
    holds = result.ok and name not in result.cached
    context.report.check(claim, holds, f"{result.seen()}, cached: {result.cached}")


def _write_settings(server: Server, values: dict[str, str]) -> None:
    (server.base / "user/default/comfy.settings.json").write_text(json.dumps(values))


def _own_nodes(context: Context, server: Server) -> None:
    report = context.report
    listed = set(server.ask("/object_info"))
    names = {"Pipeline", "SeedMode", "FreeMemory", "Status", "VAEDecode"}
    missing = {f"Hy3DRocm{name}" for name in names} - listed
    report.check("our nodes are listed", not missing, missing)
    pipeline = node("Hy3DRocmPipeline", seed_mode="legacy")
    result = server.run(graphs.behind(_stage("delight", 3), pipeline))
    expected = context.baseline()["delight 3"]
    report.equal("Hy3DRocmPipeline in a patched workflow", result.items(), expected)
    prompt = graphs.delight(graphs.harness_pipe("delight"), 1)
    prompt["free"] = node("Hy3DRocmFreeMemory", anything=["delight", 0])
    prompt["status"] = node("Hy3DRocmStatus", pipeline=["pipe", 0])
    result = server.run(prompt)
    report.check("Hy3DRocmFreeMemory and Hy3DRocmStatus run", result.ok, result.seen())
    shown = result.outputs.get("status", {})
    report.check("Hy3DRocmStatus shows something", bool(shown), shown)
