"""Our decode node on the core's own VAE classes, tiny, under a small budget."""

from __future__ import annotations

from comfy_harness.context import Context
from comfy_harness.graphs import node
from comfy_harness.server import Prompt

KINDS = ("hunyuan", "hunyuan15", "wan", "wan22", "ltx", "image")
# The project's promise for streamed decodes in float32; images are 0..1.
EXACT = 1e-4


def run(context: Context) -> None:
    report = context.report
    with context.server(context.pack) as server:
        states = {}
        for kind in KINDS:
            for patched in (False, True):
                name = f"{kind}{', patched at the cast' if patched else ''}"
                result = server.run(make_prompt(kind, patched))
                report.check(f"{name}: the node runs", result.ok, result.seen())
                seen = result.ui("check", "check") or {}
                error = seen.get("error")
                close = error is not None and error <= EXACT
                report.check(f"{name}: images as of the unsplit decoder", close, seen)
                told = str(result.ui("told", "text"))
                cut = "streamed" in told or "whole needs" in told
                report.check(f"{name}: decoded under the budget", cut, told[:300])
                states[name] = seen.get("state")
        refused = server.run(make_prompt("hunyuan", False, budget="1MB", strategy="streamed"))
        least = "Give a budget of at least" in refused.error
        report.check("a budget that is too small is refused with the least", least, refused.seen())
        again = server.run(make_prompt("hunyuan", False, budget="150MB"))
        after = (again.ui("check", "check") or {}).get("state")
        report.equal("the VAE is as before after that", after, states["hunyuan"])
        context.quiet(server)


def make_prompt(kind: str, patched: bool, budget: str = "200MB", strategy: str = "auto") -> Prompt:
    frames = 1 if kind == "image" else 4
    return {
        "vae": node("HarnessVae", kind=kind, frames=frames, patched=patched),
        "decode": node(
            "Hy3DRocmVAEDecode", vae=["vae", 0], samples=["vae", 1], budget=budget,
            strategy=strategy, precision="auto",
        ),
        "check": node(
            "HarnessVaeCheck", vae=["vae", 0], samples=["vae", 1], images=["decode", 0]
        ),
        "told": node("HarnessText", value=["decode", 1]),
    }  # fmt: skip
