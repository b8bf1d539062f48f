"""Upstream alone: what works on a CPU, and the real error text of what does not."""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import DELIGHT, PAINT, harness_pipe, stand_in, upstream_pipe
from comfy_harness.server import Prompt

# What fails without the pack, and a piece of the text that it fails with.
NO_ACCELERATOR = "requires accelerator, but not found"
NO_CUDA = "not compiled with CUDA"
# Weights on the "lazy" device, the input on the CPU. With a GPU as the other device the same
# mistake reads "Expected all tensors to be on the same device" or "Input type
# (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same".
TWO_DEVICES = "Input tensor is not a lazy tensor: torch.FloatTensor"
FAILURES: dict[str, tuple[Prompt, str]] = {
    "delight loader": (graphs.delight(upstream_pipe(DELIGHT), 1), NO_ACCELERATOR),
    "paint loader": (graphs.multiview(upstream_pipe(PAINT), 1), NO_ACCELERATOR),
    'multiview, .to("cuda")': (graphs.multiview(harness_pipe("paint"), 3), NO_CUDA),
    "multiview, model offload": (
        graphs.multiview(harness_pipe("paint", "model offload"), 3), NO_CUDA,
    ),
    "multiview, sequential offload": (
        graphs.multiview(harness_pipe("paint", "sequential offload"), 3),
        "META device type not an accelerator",
    ),
    "multiview, .device says cuda": (
        graphs.multiview(harness_pipe("paint", "device says cuda"), 3),
        "Cannot get CUDA generator",
    ),
    "multiview, .device says meta": (
        graphs.multiview(harness_pipe("paint", "device says meta"), 3),
        "META device type not an accelerator",
    ),
    "multiview, .device raises": (
        graphs.multiview(harness_pipe("paint", "device raises"), 3),
        "does not say its device",
    ),
    "delight, executes elsewhere": (
        graphs.delight(stand_in("executes elsewhere"), 2),
        TWO_DEVICES,
    ),
    "multiview, executes elsewhere": (
        graphs.multiview(stand_in("executes elsewhere"), 2),
        TWO_DEVICES,
    ),
    "multiview, all properties raise": (
        graphs.multiview(stand_in("all properties raise"), 2), "no .device here",
    ),
    "render": (graphs.render(), NO_CUDA),
}  # fmt: skip


def run(context: Context) -> None:
    """Records hashes and error texts; the other scenarios compare with both."""
    report = context.report
    with context.server(rasterizer=True) as server:
        for name, (prompt, text) in FAILURES.items():
            result = server.run(prompt)
            failed = result.status == "error" and text in result.error
            report.check(f"without the pack, {name} fails", failed, result.seen())
            report.note(f"    {result.error}"[:200])
    first = context.baseline()
    batch, alike = first["delight 8"], first["delight alike"]
    report.check("delight: 8 images, 8 results", len(set(batch)) == 8, batch)
    report.check("delight: a batch has one noise: like images stay alike", len(set(alike)) == 1)
    for count in (1, 3):
        name = f"delight: images 1 to {count} are the same in batches of {count} and 8"
        report.equal(name, first[f"delight {count}"], batch[:count])
    for count in graphs.BATCHES:
        views = first[f"multiview {count}"]
        report.check(f"multiview: {count} views, all different", len(set(views)) == count, views)
    context._baseline = None
    report.equal("upstream gives the same bits in a second server", context.baseline(), first)
    for name, items in sorted(first.items()):
        report.note(f"{name}: {' '.join(items)}")
