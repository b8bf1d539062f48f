"""Our decode and encode nodes with a second process that takes a part of each layer: frames and
latents as without it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from comfy_harness.context import Context
from comfy_harness.graphs import node
from comfy_harness.server import Prompt, Server
from comfy_harness.video_graphs import shelved

KINDS = ("wan", "hunyuan", "hunyuan15", "wan22", "ltx", "image")
# The project's promise for streamed decodes in float32; images are 0..1.
EXACT = 1e-4
STARTED, ALONE = "cpu decodes with cpu", "decoding on cpu alone"


def run(context: Context) -> None:
    report = context.report
    with context.server(context.pack) as server:
        for kind in KINDS:
            _compared(context, server, kind)
        first = workers_of(server)
        report.check("one process was started", len(first) == 1, first)
        for kind in KINDS[:2]:  # the VAEs of both are loaded anew, the process is the same
            _compared(context, server, kind)
        report.equal("it stays", workers_of(server), first)
        report.equal("one line says that it started", _said(context, server, STARTED), 1)
        context.quiet(server)

        for pid in first:
            os.kill(pid, signal.SIGKILL)
        _compared(context, server, "wan")
        second = workers_of(server)
        report.check("a killed process is replaced", second and second != first, (first, second))

        server.run({"free": node("Hy3DRocmFreeMemory", anything=["text", 0]),
                    "text": node("HarnessFresh", value="x")})  # fmt: skip
        server.ask("/free", {"unload_models": True, "free_memory": True})
        _compared(context, server, "wan")
        report.check("after memory was freed a decode runs", bool(workers_of(server)), "")

        result = server.run(_prompt(context, "wan", "cpu,cpu", patched=True))
        report.check("a VAE that can't be sent is decoded", result.ok, result.seen())
        report.equal("one line says why it is decoded alone", _said(context, server, ALONE), 1)
        result = server.run(_prompt(context, "wan", "cuda:7"))
        wrong = "can't decode with cpu" in result.error or "can't decode with cpu" in server.text()
        report.check("a device of another kind is a sentence", wrong, result.seen())
        last = workers_of(server)
        server.process.kill()
        server.process.wait()
        until = time.monotonic() + 10
        while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in last):
            time.sleep(0.1)
        left = [pid for pid in last if Path(f"/proc/{pid}").exists()]
        report.equal("no process is left when ComfyUI is killed", left, [])


def workers_of(server: Server) -> list[int]:
    """Process numbers of the decode's workers."""
    found = []
    for at in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((at / "stat").read_text().rpartition(")")[2].split()[1])
            command = (at / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == server.process.pid and b"decoding.worker" in command:
            found.append(int(at.name))
    return sorted(found)


def _compared(context: Context, server: Server, kind: str) -> None:
    report = context.report
    alone = server.run(_prompt(context, kind, "one", keep=True))
    report.check(f"{kind} alone", alone.ok, alone.seen())
    both = server.run(_prompt(context, kind, "cpu,cpu"))
    report.check(f"{kind} with two devices", both.ok, both.seen())
    for name, what in (("seen", "frames"), ("seen-encode", "latents")):
        seen = both.ui(name, "seen") or {}
        far = seen.get("far")
        report.check(f"{kind}: the {what} are the same", far is not None and far <= EXACT, seen)
    shared = "of 2 ranks" in str(both.ui("told", "text")) or bool(workers_of(server))
    report.check(f"{kind}: a second process took part", shared, both.ui("told", "text"))


def _prompt(
    context: Context, kind: str, devices: str, keep: bool = False, patched: bool = False
) -> Prompt:
    frames = 1 if kind == "image" else 3
    return {
        "vae": node("HarnessVae", kind=kind, frames=frames, patched=patched),
        "fresh": node("HarnessFresh", value=["vae", 1]),
        "decode": node(
            "Hy3DRocmVAEDecode", vae=["vae", 0], samples=["fresh", 0], budget="auto",
            strategy="auto", precision="auto", devices=devices,
        ),
        "seen": shelved(["decode", 0], context.shelf() / f"workers-{kind}.pt", keep),
        "encode": node(
            "Hy3DRocmVAEEncode", vae=["vae", 0], pixels=["decode", 0], budget="auto",
            strategy="auto", precision="auto", devices=devices,
        ),
        "seen-encode": shelved(["encode", 0], context.shelf() / f"workers-{kind}-encode.pt", keep),
        "told": node("HarnessText", value=["decode", 1]),
    }  # fmt: skip


def _said(context: Context, server: Server, text: str) -> int:
    return sum(text in line.message for line in context.our_lines(server))
