"""Many prompts, a failed one, a cancelled one: memory stays, and the next picture is right."""

from __future__ import annotations

import re
import time

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import DELIGHT, PAINT, harness_pipe, upstream_pipe
from comfy_harness.report import growth_per_prompt
from comfy_harness.server import Prompt, Server

PROMPTS, SETTLED = 20, 5
MOST_GROWTH_BYTES = 1 << 20
LONG_STEPS = 200
CASES = (
    ("delight", "delight", "plain"),
    ("delight", "delight", "model offload"),
    ("delight", "delight", "sequential offload"),
    ("multiview", "paint", "plain"),
    ("multiview", "paint", "model offload"),
)


def run(context: Context) -> None:
    with context.patched() as server:
        resident = [_one(server, seed) for seed in range(PROMPTS)]
        growth = growth_per_prompt(resident, SETTLED)
        claim = f"{PROMPTS} prompts, delight 3 + multiview 3: under 1 MB a prompt after {SETTLED}"
        context.report.check(claim, growth < MOST_GROWTH_BYTES, f"{growth / 1e6:.3f} MB")
        megabytes = " ".join(f"{size / 1e6:.1f}" for size in resident)
        context.report.note(f"    {growth / 1e6:+.3f} MB a prompt; resident MB: {megabytes}")
    with context.patched() as server:
        for stage, model, kind in CASES:
            _failed(context, server, stage, harness_pipe(model, kind), kind)
            _cancelled(context, server, stage, harness_pipe(model, kind), kind)


def _one(server: Server, seed: int) -> int:
    """One prompt with both stages; the server's resident bytes after it."""
    prompt: Prompt = {}
    for prefix, part in (
        ("d", graphs.delight(upstream_pipe(DELIGHT), 3, seed=seed)),
        ("m", graphs.multiview(upstream_pipe(PAINT), 3, seed=seed)),
    ):
        prompt.update(graphs.prefixed(prefix, part))
    result = server.run(prompt)
    if not result.ok or {"d-delight", "m-sample"} & set(result.cached):
        raise RuntimeError(f"prompt {seed} did not run in full: {result.seen()} {result.cached}")
    return server.resident_bytes()


def _prompt(stage: str, pipe: dict[str, object], **optional: object) -> Prompt:
    make = graphs.delight if stage == "delight" else graphs.multiview
    return make(pipe, 3, seed_mode="legacy", **optional)


def _failed(
    context: Context, server: Server, stage: str, pipe: dict[str, object], kind: str
) -> None:
    signal = server.base / "signals/fail"
    signal.touch()
    result = server.run(_prompt(stage, pipe))
    signal.unlink(missing_ok=True)
    wanted = "the harness wanted this step to fail" in result.error
    context.report.check(f"{stage}, {kind}: a step fails", wanted, result.seen())
    _right(context, server, stage, pipe, kind, "failed")


def _cancelled(
    context: Context, server: Server, stage: str, pipe: dict[str, object], kind: str
) -> None:
    signal, report = server.base / "signals/slow", context.report
    signal.touch()
    told = len(server.text())
    identity = server.queue(_prompt(stage, pipe, steps=LONG_STEPS, seed=1))
    assert isinstance(identity, str), identity

    def under_way() -> bool:
        ended = identity in server.ask(f"/history/{identity}")
        return ended or steps_made(server.text()[told:]) >= 3

    server.wait(under_way, 120, "to make three steps")
    started = time.monotonic()
    server.interrupt()
    result = server.finish(identity)
    seconds = time.monotonic() - started
    signal.unlink()
    report.equal(f"{stage}, {kind}: a prompt is cancelled", result.status, "interrupted")
    steps = steps_made(server.text()[told:])
    claim = f"{stage}, {kind}: within its steps, not at their end"
    report.check(claim, steps < LONG_STEPS, f"{steps} steps")
    report.note(f"    {seconds:.2f} s after the request, at step {steps} of {LONG_STEPS}")
    _right(context, server, stage, pipe, kind, "cancelled")


def steps_made(log: str, total: int = LONG_STEPS) -> int:
    """The highest step that diffusers' progress bar shows in a piece of the server's log."""
    return max(map(int, re.findall(rf"\b(\d+)/{total} \[", log)), default=0)


def _right(
    context: Context, server: Server, stage: str, pipe: dict[str, object], kind: str, which: str
) -> None:
    """Runs with another seed in between, so that the right picture is not one from the cache."""
    server.run(_prompt(stage, pipe, seed=int(time.monotonic() * 1000) % 2**31))
    result = server.run(_prompt(stage, pipe))
    expected = context.alone.get(f"{stage} {kind}") or context.baseline()[f"{stage} 3"]
    claim = f"{stage}, {kind}: the prompt after a {which} one is right"
    context.report.equal(claim, result.items() or result.seen(), expected)
