"""kijai's FramePackWrapper: FramePackSampler into the core's VAE Decode."""

from __future__ import annotations

from comfy_harness import video_graphs as graphs
from comfy_harness.context import Context

# torch's CUDA queries are answered, as on a machine with a card.
ANSWERS = {"HY3D_HARNESS_CUDA": "answers"}
FRAMES = 17


def run(context: Context) -> None:
    report = context.report
    packs = context.video_packs("framepack")
    with context.server(packs=packs, environ=ANSWERS) as server:
        alone = server.run(graphs.framepack())
        report.check(
            "without the pack: FramePackSampler -> VAE Decode runs", alone.ok, alone.seen()
        )
        report.equal("without the pack: 17 frames", len(alone.items() or ()), FRAMES)
