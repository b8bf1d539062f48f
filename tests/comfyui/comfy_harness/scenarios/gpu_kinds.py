"""On a GPU: every way to place a pipeline, against the pictures of upstream alone."""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import harness_pipe
from comfy_harness.scenarios import endurance
from comfy_harness.scenarios.gpu_errors import noise, pictures_made
from comfy_harness.server import Server

KINDS = (
    "plain", "model offload", "sequential offload", "compiled", "device says cpu",
    "device says meta", "device raises",
)  # fmt: skip
STAGES = (("delight", "delight", graphs.delight), ("multiview", "paint", graphs.multiview))


def run(context: Context) -> None:
    _alone(context)
    if context.cpu_noise is None:
        with context.patched(cpu=True) as server:
            context.cpu_noise = noise(server)
    with context.patched() as server:
        context.report.equal(
            "stream, per_image: the noise is that of ComfyUI on the CPU", noise(server),
            context.cpu_noise,
        )  # fmt: skip
        _modes(context, server)
        _states(context, server)
        for stage, model, kind in endurance.CASES:
            endurance._failed(context, server, stage, harness_pipe(model, kind), kind)
            endurance._cancelled(context, server, stage, harness_pipe(model, kind), kind)


def _alone(context: Context) -> None:
    """What upstream does without the pack: recorded, not judged, but for the plain pipelines."""
    context.baseline()
    with context.server() as server:
        for stage, model, make in STAGES:
            for kind in KINDS[1:]:
                result = server.run(make(harness_pipe(model, kind), 3))
                if result.ok and result.items():
                    context.alone[f"{stage} {kind}"] = result.items() or []
                same = result.items() == context.baseline()[f"{stage} 3"]
                seen = "the same pictures as plain" if same else result.seen()
                context.report.note(f"    without the pack, {stage}, {kind}: {seen}"[:240])


def _modes(context: Context, server: Server) -> None:
    report = context.report
    for stage, model, make in STAGES:
        for count in graphs.BATCHES:
            result = server.run(make(harness_pipe(model), count, seed_mode="legacy"))
            expected = context.baseline()[f"{stage} {count}"]
            claim = f"legacy: {stage} of {count}, plain: upstream's bits"
            report.equal(claim, result.items() or result.seen(), expected)
        plain = {}
        for mode in ("stream", "per_image"):
            result = server.run(make(harness_pipe(model), 3, seed_mode=mode))
            made = pictures_made(result, 3) and len(set(result.items() or [])) == 3
            report.check(f"{mode}: {stage}, plain: 3 different pictures", made, result.seen())
            plain[mode] = result.items() or [result.seen()]
        plain["legacy"] = context.baseline()[f"{stage} 3"]
        if stage == "delight":
            claim = "stream, per_image: image 1 of delight is upstream's, bit for bit"
            first = [plain[mode][0] for mode in ("stream", "per_image", "legacy")]
            report.equal(claim, first, [first[-1]] * 3)
        for kind in KINDS[1:]:
            for mode, expected in plain.items():
                result = server.run(make(harness_pipe(model, kind), 3, seed_mode=mode))
                whose = "the plain one"
                if mode == "legacy" and f"{stage} {kind}" in context.alone:
                    # Under offload upstream's generator may be on another device than without.
                    whose, expected = "upstream there", context.alone[f"{stage} {kind}"]
                claim = f"{mode}: {stage}, {kind}: the bits of {whose}"
                report.equal(claim, result.items() or result.seen(), expected)


def _states(context: Context, server: Server) -> None:
    known = server.run(graphs.known_states()).ui("after", "states")
    for stage, prompt, user, socket in (
        ("delight", graphs.delight(harness_pipe("delight"), 3), "delight", "image"),
        ("multiview", graphs.multiview(harness_pipe("paint"), 3), "sample", "ref_image"),
    ):
        result = server.run(graphs.with_states(prompt, user, socket))
        claim = f"stream: {stage} leaves the global random states as they were, the GPU's too"
        context.report.equal(claim, result.ui("after", "states") or result.seen(), known)
