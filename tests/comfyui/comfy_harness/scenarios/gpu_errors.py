"""On a GPU: the texts of a device mismatch, provoked without the pack and gone with it.

ComfyUI computes on the CPU (`--cpu`) and the pipelines, with diffusers' own model offload, on the
GPU: so upstream's nodes hand a picture on the CPU to weights on the GPU.
"""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import harness_pipe, stand_in
from comfy_harness.server import Prompt, Result, Server

SLOW_CONVOLUTION = (
    "Expected all tensors to be on the same device, but got weight is on cuda:0, different from "
    "other tensors on cpu (when checking argument in method wrapper_CUDA___slow_conv2d_forward)"
)
INPUT_TYPE = (
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
)
# Which of the two comes is PyTorch's affair: it depends on the back-end that it takes there.
# tests/gpu/test_hunyuan3d.py provokes each of them.
TEXTS = {
    "float32 offload": (INPUT_TYPE, SLOW_CONVOLUTION),
    "float32 offload, slow convolution": (SLOW_CONVOLUTION,),
}


def run(context: Context) -> None:
    report = context.report
    prompts = {
        (stage, kind): make(harness_pipe(model, kind), 2)
        for kind in TEXTS
        for stage, model, make in (
            ("delight", "delight", graphs.delight), ("multiview", "paint", graphs.multiview),
        )
    }  # fmt: skip
    with context.server(cpu=True) as server:
        for (stage, kind), prompt in prompts.items():
            result = server.run(prompt)
            failed = result.status == "error" and any(t in result.error for t in TEXTS[kind])
            report.check(f"without the pack, {stage}, {kind}: its text", failed, result.seen())
            report.note(f"    {result.error}"[:240])
    with context.patched(cpu=True) as server:
        for (stage, kind), prompt in prompts.items():
            result = server.run(prompt)
            claim = f"with the pack, {stage}, {kind}: runs"
            report.check(claim, pictures_made(result, 2), result.seen())
        context.cpu_noise = noise(server)


def pictures_made(result: Result, count: int) -> bool:
    """Whether a HarnessHash saw `count` pictures of finite numbers that are not all the same."""
    digest = result.ui("hash", "digest")
    if not result.ok or digest is None:
        return False
    return len(digest["items"]) == count and digest["finite"] and digest["spread"] > 0


def noise(server: Server) -> list[str]:
    """The noise that upstream's nodes are made to draw in both modes, as a stand-in shows it."""
    pipe, seen = stand_in("all properties raise"), []
    for mode in ("stream", "per_image"):
        prompts: list[Prompt] = [
            graphs.delight(pipe, 3, seed_mode=mode), graphs.multiview(pipe, 3, seed_mode=mode),
        ]  # fmt: skip
        for prompt in prompts:
            result = server.run(prompt)
            seen += result.items() or [result.seen()]
    return seen
