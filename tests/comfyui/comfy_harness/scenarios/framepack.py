"""kijai's FramePackWrapper: FramePackSampler into VAE Decode, alone and corrected in place."""

from __future__ import annotations

import re
from pathlib import Path

from tiny_video import small_config

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, VIDEO_PACKS, Context
from comfy_harness.layout import copy_pack
from comfy_harness.scenarios.vaes import MODE, near, seen
from comfy_harness.server import Result, Server

# torch's CUDA queries are answered, as on a machine with a card; without it they raise.
ANSWERS = {"HY3D_HARNESS_CUDA": "answers"}
FRAMES = 17
SAMPLER = "FramePackSampler"
# In this order the kinds of models leave, each whole (hy3d_rocm.comfy.patches.framepack).
UNLOADED = re.compile(r"Unloading (\w+) completely")
PARTIAL = ("loaded partially", "Unloaded partially", "partially unloaded")


def run(context: Context) -> None:
    report, shelf = context.report, context.shelf()
    packs = context.video_packs("framepack")
    with context.server(packs=packs, environ=ANSWERS) as server:
        alone = server.run(graphs.framepack(shelf, keep=True))
        frames = seen(alone, "decode").get("shape", [0])[0]
        claim = f"without the pack: {SAMPLER} -> VAE Decode gives {FRAMES} frames"
        report.check(claim, frames == FRAMES, f"{alone.seen()} {frames}")
        again = server.run(graphs.framepack(shelf))
        same = bool(seen(again, "decode").get("same"))
        report.check("without the pack: the same bits twice", same, again.seen())
        server.run(graphs.framepack(shelf, keep=True, precision="bf16"))
    with context.server(packs=packs) as server:
        absent = SAMPLER not in server.ask("/object_info")
        report.check("without the pack and a CUDA device: the wrapper does not load", absent)
        words = [line for line in server.text().splitlines() if "FramePackWrapper module" in line]
        report.note(f"    {' '.join(words)[-200:]}")
    ours = {**packs, OURS: context.pack}
    with context.server(packs=ours, environ=PATCHED) as server:
        _corrected(context, server, "no CUDA device")
        context.quiet(server)
    with context.server(packs=_small(context, ours), environ={**PATCHED, **ANSWERS}) as server:
        _corrected(context, server, "CUDA queries answered")
        result = server.run(graphs.framepack(shelf, from_file=True))
        _same(context, "LoadFramePackModel, from one file", result)
        context.quiet(server)


def _small(context: Context, packs: dict[str, Path]) -> dict[str, Path]:
    """With a copy of the wrapper that says the tiny transformer's sizes in its .json file."""
    name, copy = VIDEO_PACKS["framepack"], context.work / f"framepack-{context.core.name}"
    copy_pack(packs[name], copy)
    small_config(packs[name], copy)
    return {**packs, name: copy}


def _corrected(context: Context, server: Server, where: str) -> None:
    report, shelf = context.report, context.shelf()
    loaded = SAMPLER in server.ask("/object_info")
    if not report.check(f"{where}: the wrapper loads", loaded, server.tail()):
        return
    for mode in ("off", "protect"):
        server.set(MODE, mode)
        told = len(server.text())
        result = server.run(graphs.framepack(shelf))
        _same(context, f"{where}, {mode}", result)
        _left_in_order(context, f"{where}, {mode}", server.text()[told:])
    result = server.run(graphs.framepack(shelf, precision="bf16", preservation=2.5))
    _same(context, f"{where}, bf16, another preservation", result)
    server.set(MODE, "full")
    full = server.run(graphs.with_check(graphs.framepack(shelf), "decode"))
    far = seen(full, "latents").get("far")
    claim = f"{where}, full: the latents that follow from the encoder in parts"
    report.check(claim, near(far), f"{full.seen()} {far}")
    _near(context, f"{where}, full", full)
    server.set(MODE, "protect")
    decode = graphs.OURS["decode"]
    result = server.run(graphs.with_check(graphs.framepack(shelf, decode=decode), "decode"))
    _latents(context, f"{where}, our decode", result)
    _near(context, f"{where}, our decode", result)


def _same(context: Context, name: str, result: Result) -> None:
    _latents(context, name, result)
    found = seen(result, "decode")
    claim = f"{name}: the core's VAE Decode gives the bits of the core alone"
    context.report.check(claim, bool(found.get("same")), f"{result.seen()} {found}")


def _latents(context: Context, name: str, result: Result) -> None:
    found = seen(result, "latents")
    claim = f"{name}: upstream's latents, bit for bit"
    context.report.check(claim, bool(found.get("same")), f"{result.seen()} {found}")


def _near(context: Context, name: str, result: Result) -> None:
    error = (result.ui("check", "check") or {}).get("error")
    claim = f"{name}: the frames of the unsplit decoder"
    context.report.check(claim, near(error), f"{result.seen()} {error}")


def _left_in_order(context: Context, where: str, log: str) -> None:
    """log: of one prompt that ran in full. Upstream moves its transformer away by itself."""
    report = context.report
    before, _, after = log.partition("total_latent_sections")
    first = [kind_of(name) for name in UNLOADED.findall(before)]
    first += [kind_of(name) for name in UNLOADED.findall(after.partition("latent_padding")[0])]
    last = [kind_of(name) for name in UNLOADED.findall(after.partition("latent_padding")[2])]
    claim = f"{where}: text encoders, VAE and image encoder leave whole before the sampler"
    report.check(claim, sorted(set(first)) == ["VAE", "image", "text"], f"{first} {last}")
    claim = f"{where}: the VAE leaves whole after the decode"
    report.check(claim, last[-1:] == ["VAE"], f"{first} {last}")
    partial = [word for word in PARTIAL if word in log]
    report.check(f"{where}: nothing is left behind in part", not partial, partial)


def kind_of(name: str) -> str:
    """What a class is, as the log names it."""
    kinds = {"TinyTextEncoder": "text", "AutoencoderKL": "VAE"}
    if "Vision" in name:
        return "image"
    return kinds.get(name, "transformer" if "Transformer" in name else name)
