"""Convolutions that fail, lack memory, give NaN or hang: frames come all the same."""

from __future__ import annotations

import time
from typing import Any

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.scenarios.vaes import MODE, near, seen
from comfy_harness.server import Prompt, Result, Server

# HY3D_FAULTS, as hy3d_rocm/conv/faults.py reads it.
FAULTS = {
    "MIOpen finds no algorithm, each third time": "current:*:*:no_algorithm,every=3",
    "out of memory, each fourth time": "current:*:*:hip_oom,every=4",
    "out of memory twice whatever is tried": "*:*:*:hip_oom,first=5,count=2",
    "NaN from each layer's first call on": "current:*:*:nan",
}
NO_ALGORITHM = "current:*:*:no_algorithm"
PROMPTS = "hy3d_rocm.protect_prompts"  # ComfyUI's setting
# Only what looks at all frames sees this one; a tier's later results are not looked at.
LATE_NAN = "current:*:*:nan,first=7,count=1"
BROKEN = "MIOpen Error: No suitable algorithm was found"
# Two probes of two seconds each, and what a child needs to start on a busy machine.
HANG_S = 90.0
ALL = ("hunyuan", "wan21", "image")
# The setting, the node, and the VAEs.
WAYS = {
    "core, protect": ("protect", graphs.CORE["decode"], ALL),
    "core tiled, protect": ("protect", graphs.CORE["tiled"], ("hunyuan",)),
    "core, full": ("full", graphs.CORE["decode"], ("hunyuan", "wan21")),
    "our node": ("off", graphs.OURS["decode"], ALL),
}


def run(context: Context) -> None:
    report, shelf = context.report, context.shelf()
    context.video_packs()
    with context.server(packs={}) as server:
        for kind in ALL:
            server.run(graphs.through_vae(kind, graphs.CORE, shelf, keep=True))
            decoder = graphs.CORE["decode"]
            broken = server.run(_prompt(context, kind, "decode", decoder, _refusing(1)))
            holds = broken.status == "error" and BROKEN in broken.error
            report.check(f"without the pack: {kind} fails as MIOpen does", holds, broken.seen())
            server.run(_prompt(context, kind, "decode", decoder, _refusing(0)))
        server.run(graphs.upscale(shelf, keep=True))
    with context.server(packs={OURS: context.pack}, environ=PATCHED) as server:
        for way, (mode, decoder, kinds) in WAYS.items():
            server.set(MODE, mode)
            for kind in kinds:
                _all_faults(context, server, f"{way}, {kind}", kind, decoder)
            _hang(context, server, way, kinds[0], decoder)
        _whole_prompts(context, server)


def _whole_prompts(context: Context, server: Server) -> None:
    """A convolution in a node that is no VAE's: an up-scaler."""
    report, shelf = context.report, context.shelf()
    server.set(PROMPTS, False)
    broken = server.run(graphs.upscale(shelf, first=_refusing(2)))
    claim = "an up-scaler, protect_prompts off: fails as MIOpen does"
    report.check(claim, BROKEN in broken.error, broken.seen())
    server.set(PROMPTS, True)
    for what, first in (
        ("PyTorch's convolutions raise", _refusing(2)),
        ("MIOpen finds no algorithm", node("HarnessFaults", faults=NO_ALGORITHM)),
    ):
        result = server.run(graphs.upscale(shelf, first=first))
        found = seen(result, "upscale")
        claim = f"an up-scaler, protect_prompts on: {what}: the right picture"
        report.check(claim, near(found.get("far")), f"{result.seen()} {found}")
    fired = result.ui("fired", "fired")
    report.check("an up-scaler: it was met", bool(fired), f"{result.seen()} {fired}")
    server.set(PROMPTS, False)


def _all_faults(
    context: Context, server: Server, name: str, kind: str, decoder: dict[str, Any]
) -> None:
    key = _key(decoder)
    firsts = {what: node("HarnessFaults", faults=text) for what, text in FAULTS.items()}
    if kind == ALL[0]:
        firsts["PyTorch's convolutions raise, each third"] = _refusing(3)
    if "protect" not in name:
        firsts["one NaN late"] = node("HarnessFaults", faults=LATE_NAN)
    for what, first in firsts.items():
        result = server.run(_prompt(context, kind, key, decoder, first))
        _is_right(context, f"{name}: {what}", result, key, first)


def _is_right(
    context: Context, claim: str, result: Result, key: str, first: dict[str, Any]
) -> None:
    found = seen(result, key)
    # What the core alone made has other norms where it splits frames, and the unsplit one is right.
    far = [found.get("far"), (result.ui("check", "check") or {}).get("error")]
    holds = any(map(near, far)) and bool(found.get("finite"))
    context.report.check(f"{claim}: the right frames", holds, f"{result.seen()} {far} {found}")
    if first["class_type"] == "HarnessFaults":
        fired = result.ui("fired", "fired")
        context.report.check(f"{claim}: it was met", bool(fired), f"{result.seen()} {fired}")


def _hang(context: Context, server: Server, way: str, kind: str, decoder: dict[str, Any]) -> None:
    report, key, first = context.report, _key(decoder), node("HarnessHang", on=True)
    prompt = _prompt(context, kind, key, decoder, first)
    prompt["hung"] = node("HarnessHangSeen", value=[key, 0])
    started = time.monotonic()
    result = server.run(prompt)
    seconds = time.monotonic() - started
    verdicts = result.ui("hung", "verdicts") or []
    _is_right(context, f"{way}, {kind}: MIOpen hangs", result, key, first)
    claim = f"{way}, {kind}: what hung was a child process, once"
    report.check(claim, verdicts.count("hang") == 1, f"{result.seen()} {verdicts}")
    report.check(f"{way}, {kind}: within {HANG_S:.0f} s", seconds < HANG_S, f"{seconds:.0f} s")
    report.note(f"    {seconds:.1f} s")


def _key(decoder: dict[str, Any]) -> str:
    return "tiled" if decoder["class_type"] == "VAEDecodeTiled" else "decode"


def _prompt(
    context: Context, kind: str, key: str, decoder: dict[str, Any], first: dict[str, Any]
) -> Prompt:
    prompt = graphs.through_vae(kind, {key: decoder}, context.shelf(), first=first)
    if key == "decode":
        prompt = graphs.with_check(prompt, key)
    return {**prompt, "fired": node("HarnessFired", value=[key, 0])}


def _refusing(every: int) -> dict[str, Any]:
    return node("HarnessBroken", every=every)
