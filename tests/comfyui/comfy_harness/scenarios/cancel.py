"""A cancel in the middle of a decode: it ends within one grain, and the next prompt is right."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from comfy_harness import video_graphs as graphs
from comfy_harness.context import OURS, PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.listener import Listener
from comfy_harness.scenarios.vaes import MODE, near, seen
from comfy_harness.server import Prompt, Server

# 50 ms more for each convolution that protect() sees, so that there is a middle.
SLOW = node("HarnessFaults", faults="*:*:*:slow")
TICKS_BEFORE = 2
# Between the POST and the flag, and between the exception and what the websocket tells.
TICKS_AFTER = 1
SHARE = 0.5  # of the whole decode, within which one without a bar ends
STREAMED = {"budget": "auto", "precision": "auto", "strategy": "streamed"}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "our node, layer by layer": ("off", "hunyuan", node("Hy3DRocmVAEDecode", **STREAMED)),
    "our node, in chunks": ("off", "wan21", node("Hy3DRocmVAEDecode", **STREAMED)),
    "core, full": ("full", "hunyuan", graphs.CORE["decode"]),
    "core, protect": ("protect", "wan21", graphs.CORE["decode"]),
    "core tiled, protect": ("protect", "hunyuan", graphs.CORE["tiled"]),
}


def run(context: Context) -> None:
    context.video_packs()
    packs = {OURS: context.pack}
    with context.server(packs=packs, environ=PATCHED) as server, Listener(server.port) as heard:
        for name, (mode, kind, decoder) in CASES.items():
            server.set(MODE, mode)
            _one(context, server, heard, name, kind, decoder)
    context.report.note("    seconds are from POST /interrupt to the end of the prompt")


def _one(
    context: Context, server: Server, heard: Listener, name: str, kind: str, decoder: dict[str, Any]
) -> None:
    report, shelf = context.report, context.shelf()

    def prompt(first: Any = None, keep: bool = False) -> Prompt:
        return graphs.through_vae(kind, {"decode": decoder}, shelf, keep=keep, first=first)

    server.run(prompt(keep=True))
    started = time.monotonic()
    whole = server.run(prompt(SLOW))
    seconds = time.monotonic() - started
    report.check(f"{name}: the slow decode ends if nobody cancels", whole.ok, whole.seen())
    grain = _longest([when for when in heard.ticks("decode") if when > started])
    before = len(heard.ticks("decode"))
    identity = server.queue(prompt(SLOW))
    assert isinstance(identity, str), identity
    _wait_for_the_middle(heard, before, seconds)
    asked = time.monotonic()
    server.interrupt()
    answered = time.monotonic()
    result = server.finish(identity)
    took = time.monotonic() - asked
    report.equal(f"{name}: the prompt is interrupted", result.status, "interrupted")
    later = [when for when in heard.ticks("decode") if when > asked]
    after, has_bar = len(later), grain is not None
    if has_bar:
        # A busy machine may let a grain pass before the server has read the request.
        before_answer = sum(when < answered for when in later)
        saw = f"{after} grains more, {before_answer} of them before the POST was answered"
        report.check(f"{name}: within one grain", after <= TICKS_AFTER, saw)
    of = f"{took:.2f} s of {seconds:.2f} s"
    report.check(f"{name}: before half of the decode's time", took < SHARE * seconds, of)
    grains = f"{after} grains more (the longest takes {grain:.2f} s), " if has_bar else ""
    report.note(f"    {name}: {grains}{of}")
    again = server.run(prompt())
    found = seen(again, "decode")
    claim = f"{name}: the prompt after it is right"
    report.check(claim, near(found.get("far")), f"{again.seen()} {found}")


def _longest(ticks: list[float]) -> float | None:
    """The longest time between two movements of the bar; None without a bar."""
    gaps = [later - earlier for earlier, later in pairwise(ticks)]
    return max(gaps) if gaps else None


def _wait_for_the_middle(heard: Listener, before: int, seconds: float) -> None:
    """Until the bar has moved, or for a quarter of the time where there is none."""
    start = time.monotonic()
    heard.settle(lambda: len(heard.ticks("decode")) >= before + TICKS_BEFORE, seconds / 4)
    time.sleep(max(0.0, min(seconds / 10, start + seconds / 4 - time.monotonic())))
