"""One decode in a process of its own, so that its memory can be measured alone.

`python -m examples.demo.child JOB.json` loads the demo VAE and the latents, notes the memory it
holds, decodes, and writes the frames and a record. The parent reads JSON lines from stdout.

JOB.json: mode ("whole" or "protected"), work (folder with latents.safetensors), record (file to
write), budget_bytes (protected only).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hy3d_rocm.conv.stats import Event

# What one convolution of the C tier may take: a decode that is given 100 MB must not lend most of
# it to a single layer.
CONV_WORKSPACE_BYTES = 8 << 20


class LineKeeper(logging.Handler):
    """Keeps the library's log lines for the report."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def say(**fields: Any) -> None:
    """One JSON line to the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def report_progress(done: int, total: int, _step: object) -> None:
    say(done=done, total=total)


def protect_and_break(stack: ExitStack, events: list[Event]) -> Any:
    """Enter protect(), with the two GPU back-ends failing as MIOpen and HIP do; the guard."""
    import hy3d_rocm
    from hy3d_rocm.conv.faults import HIP_OOM, MIOPEN_NO_ALGORITHM, Fault, inject_faults

    faults = [Fault("current", "*", MIOPEN_NO_ALGORITHM), Fault("native", "*", HIP_OOM)]
    stack.enter_context(inject_faults(faults))
    return stack.enter_context(
        hy3d_rocm.protect(on_event=events.append, workspace_limit=CONV_WORKSPACE_BYTES)
    )


def call_record(event: Event, began: float) -> dict[str, Any]:
    return {
        "start": event.time - began,
        "seconds": event.seconds,
        "tier": event.tier,
        "outcome": event.outcome,
        "op": event.op,
        "shape": event.shape,
    }


def tier_totals(stats: Any) -> dict[str, dict[str, Any]]:
    """Calls, failures and seconds of each tier, summed over the shapes."""
    totals: dict[str, dict[str, Any]] = {}
    for row in stats.as_dict()["rows"]:
        entry = totals.setdefault(row["tier"], {"calls": 0, "failures": 0, "seconds": 0.0})
        for key in entry:
            entry[key] += row[key]
    return totals


def decode_job(job: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Decode as `job` says; pixels (1, 3, T, H, W) in -1..1 and the record."""
    from safetensors.torch import load_file

    from examples.demo_vae import load_demo_vae
    from hy3d_rocm.decoding import DecodeOptions, decode_with_report
    from hy3d_rocm.meter import PeakMeter, steady_malloc

    keeper = LineKeeper()
    logger = logging.getLogger("hy3d_rocm")
    logger.setLevel(logging.INFO)
    logger.addHandler(keeper)
    steady_malloc()
    vae = load_demo_vae()
    latents = load_file(Path(job["work"]) / "latents.safetensors")["latents"]
    events: list[Event] = []
    protected = job["mode"] == "protected"
    with ExitStack() as stack:
        guard = protect_and_break(stack, events) if protected else None
        meter = stack.enter_context(PeakMeter())
        began = time.perf_counter()
        pixels, report = decode_with_report(
            vae,
            latents,
            budget=job.get("budget_bytes"),
            strategy="auto" if protected else "whole",
            progress=report_progress,
            # The faults are those of torch's convolutions: the C one would never meet them.
            options=DecodeOptions(backend="torch"),
        )
    record = {
        "mode": job["mode"],
        "seconds": meter.seconds,
        "baseline_bytes": meter.baseline_bytes,
        "peak_bytes": meter.peak_bytes,
        "memory": meter.series,
        "decode": report.as_dict(),
        "log": keeper.lines,
        "calls": [call_record(event, began) for event in events],
        "tiers": tier_totals(guard.stats) if guard else {},
        "failures": guard.stats.failures if guard else 0,
        "table": guard.stats.table() if guard else "",
    }
    return pixels, record


def main(job_path: str) -> int:
    from safetensors.torch import save_file

    job = json.loads(Path(job_path).read_text())
    pixels, record = decode_job(job)
    shown = pixels.clamp(-1, 1).add(1).div(2).contiguous()
    save_file({"pixels": shown}, Path(job["work"]) / f"{job['mode']}.safetensors")
    Path(job["record"]).write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
