"""Twenty prompts with FramePack and decodes in every way: the server's memory stays."""

from __future__ import annotations

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import prefixed
from comfy_harness.report import growth_per_prompt
from comfy_harness.scenarios.vaes import MODE
from comfy_harness.server import Prompt, Server

PROMPTS, SETTLED = 20, 5
MOST_GROWTH_BYTES = 1 << 20
MODES = ("protect", "full")
# glibc gives large blocks back at once. Without these its heap moves by tens of MB either way from
# prompt to prompt, once models are moved in each, and a leak of 1 MB could not be seen.
STEADY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def run(context: Context) -> None:
    packs = {**context.video_packs("framepack"), OURS: context.pack}
    for mode in MODES:
        with context.server(packs=packs, environ={**PATCHED, **STEADY}) as server:
            server.set(MODE, mode)
            resident = [_one(context, server, seed) for seed in range(PROMPTS)]
            growth = growth_per_prompt(resident, SETTLED)
            claim = f"{mode}: {PROMPTS} prompts: under 1 MB a prompt after {SETTLED}"
            context.report.check(claim, growth < MOST_GROWTH_BYTES, f"{growth / 1e6:.3f} MB")
            megabytes = " ".join(f"{size / 1e6:.1f}" for size in resident)
            context.report.note(f"    {growth / 1e6:+.3f} MB a prompt; resident MB: {megabytes}")
            context.quiet(server)


def _one(context: Context, server: Server, seed: int) -> int:
    """FramePack into the core's decode, a Wan latent into ours; the resident bytes after it."""
    shelf = context.shelf()
    prompt: Prompt = {
        **prefixed("f", graphs.framepack(shelf, keep=True, seed=seed)),
        **prefixed("w", graphs.through_vae("wan21", graphs.OURS, shelf, keep=True)),
    }
    result = server.run(prompt)
    if not result.ok or {"f-sampler", "f-decode", "w-decode"} & set(result.cached):
        raise RuntimeError(f"prompt {seed} did not run in full: {result.seen()} {result.cached}")
    return server.resident_bytes()
