"""The VAE nodes beside decode: encode, protect, plan, tune; and decode's options and timeline."""

from __future__ import annotations

from typing import Any

from comfy_harness.context import Context
from comfy_harness.graphs import node
from comfy_harness.server import Prompt, Server

# The project's promise for streamed decodes in float32; images are 0..1.
EXACT = 1e-4
AUTO: dict[str, Any] = {"budget": "auto", "strategy": "auto", "precision": "auto"}
SIZE = {"width": 64, "height": 48, "frames": 9}


def run(context: Context) -> None:
    with context.server(context.pack) as server:
        for kind in ("wan", "image", "hunyuan"):
            _protected(context, server, kind)
            _planned(context, server, kind)
        _encoded(context, server)
        _options(context, server)
        _tuned(context, server)
        _refused(context, server)
        context.quiet(server)


def _vae(kind: str) -> dict[str, Any]:
    return node("HarnessVae", kind=kind, frames=1 if kind == "image" else 3, patched=False)


def _protected(context: Context, server: Server, kind: str) -> None:
    """Core's own VAE Decode with a VAE of ours."""
    for mode in ("protect", "full"):
        prompt: Prompt = {
            "vae": _vae(kind),
            "protect": node("Hy3DRocmProtectVAE", vae=["vae", 0], mode=mode, **AUTO),
            "decode": node("VAEDecode", samples=["vae", 1], vae=["protect", 0]),
            "check": node(
                "HarnessVaeCheck", vae=["vae", 0], samples=["vae", 1], images=["decode", 0]
            ),
        }
        result = server.run(prompt)
        seen = result.ui("check", "check") or {}
        name = f"{kind}: core's decode of a protected VAE ({mode})"
        context.report.check(f"{name} runs", result.ok, result.seen())
        # Core's own code splits HunyuanVideo's frames in 0.33.
        if kind != "hunyuan" or mode == "full":
            error = seen.get("error")
            context.report.check(f"{name} is exact", (error or 0) <= EXACT, seen)


def _planned(context: Context, server: Server, kind: str) -> None:
    """The plan's budget makes decode take the way that the plan names; nothing is run twice."""
    prompt: Prompt = {
        "vae": _vae(kind),
        "plan": node("Hy3DRocmMemoryPlan", vae=["vae", 0], **SIZE, **{**AUTO, "budget": "900MB"}),
        "decode": node(
            "Hy3DRocmVAEDecode", vae=["vae", 0], samples=["vae", 1],
            **{**AUTO, "budget": ["plan", 2]},
        ),
        "told": node("HarnessText", value=["decode", 1]),
    }  # fmt: skip
    result = server.run(prompt)
    text = str(result.ui("plan", "text"))
    context.report.check(f"{kind}: a plan is made", result.ok and "taken: " in text, result.seen())
    if result.ok:
        way = text.split("taken: ")[1].split(".")[0]
        context.report.check(f"{kind}: {way}", way in str(result.ui("told", "text")), text)
        again = server.run(prompt)
        context.report.check(f"{kind}: a steady plan is cached", "plan" in again.cached, "")
    moving = {**prompt, "plan": node("Hy3DRocmMemoryPlan", vae=["vae", 0], **SIZE, **AUTO)}
    cached = [server.run(moving).cached for _ in range(2)][1]
    context.report.check(f"{kind}: a plan of what is free is not", "plan" not in cached, cached)


def _encoded(context: Context, server: Server) -> None:
    """Images that are no multiple of what the VAE encodes."""
    for kind, count in (("image", 2), ("wan", 6), ("wan22", 5), ("hunyuan", 5)):
        prompt: Prompt = {
            "vae": _vae(kind),
            "pixels": node("HarnessImages", count=count, size=67, seed=3, first=0),
            "ours": node("Hy3DRocmVAEEncode", pixels=["pixels", 0], vae=["vae", 0], **AUTO),
            "check": node(
                "HarnessVaeEncodeCheck", vae=["vae", 0], pixels=["pixels", 0], samples=["ours", 0]
            ),
            "told": node("HarnessText", value=["ours", 1]),
        }
        result = server.run(prompt)
        told = str(result.ui("told", "text"))
        context.report.check(f"{kind}: encode runs", result.ok, result.seen())
        context.report.check(f"{kind}: in parts", "cannot be cut" not in told, told[:300])
        seen = result.ui("check", "check") or {}
        error = seen.get("error")
        close = error is not None and error <= EXACT
        context.report.check(f"{kind}: as the core's unsplit encoder", close, seen)


def _options(context: Context, server: Server) -> None:
    prompt: Prompt = {
        "vae": _vae("wan"),
        "decode": node(
            "Hy3DRocmVAEDecode", vae=["vae", 0], samples=["vae", 1], budget="400MB",
            strategy="streamed", precision="fp32", chunk_size=2, memory_threshold=0.5,
            cleanup_frequency=1, synchronization=True, cpu_offload=False,
        ),
        "told": node("HarnessText", value=["decode", 1]),
        "shown": node("PreviewImage", images=["decode", 2]),
    }  # fmt: skip
    result = server.run(prompt)
    told = str(result.ui("told", "text"))
    context.report.check("options reach the decode", "chunks of 2 latent" in told, told[:300])
    context.report.check("a timeline is shown", bool(result.ui("shown", "images")), result.seen())


def _tuned(context: Context, server: Server) -> None:
    prompt: Prompt = {
        "vae": _vae("wan"),
        "tune": node("Hy3DRocmTuneVAE", vae=["vae", 0], **SIZE, seconds=10),
    }
    result = server.run(prompt)
    text = str(result.ui("tune", "text"))
    expected = "Nothing was measured" if context.device == "cpu" else "hy3d-rocm tune"
    context.report.check("tune says what it measured", expected in text, result.seen() + text[:300])


def _refused(context: Context, server: Server) -> None:
    """Sentences that say what to do."""
    wrong: Prompt = {
        "vae": _vae("wan"),
        "other": _vae("ltx"),
        "decode": node("Hy3DRocmVAEDecode", vae=["vae", 0], samples=["other", 1], **AUTO),
        "told": node("HarnessText", value=["decode", 1]),
    }
    result = server.run(wrong)
    fits = "connect the VAE that belongs to the model" in result.error
    context.report.check("latents of another model are named", fits, result.seen())
    small: Prompt = {
        "vae": _vae("wan"),
        "protect": node(
            "Hy3DRocmProtectVAE", vae=["vae", 0], mode="full", **{**AUTO, "budget": "1MB"}
        ),
        "decode": node("VAEDecode", samples=["vae", 1], vae=["protect", 0]),
        "shown": node("PreviewImage", images=["decode", 0]),
    }
    result = server.run(small)
    least = "Give a budget of at least" in result.error
    context.report.check("a protected VAE's budget that is too small", least, result.seen())
