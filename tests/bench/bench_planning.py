"""How long the first plan of a decode takes, on shapes alone: no GPU and no weights are needed.

    python tests/bench/bench_planning.py [--vae NAME] [--device NAME] [--json]

A line a decode and budget, each in a process of its own whose caches are empty (it is forked, with
all modules imported): the seconds of one core for the plan, of which those of recording the graph
and of the workspace function, and how often that was asked; then what was taken, and its peaks as
the core states them. Budgets: none; two thirds of what the decode takes without a limit, and a
fifth of it; one byte, so that it goes to the host (on the CPU, nothing fits); there the smallest
that does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hy3d_rocm.decoding import graph
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget
from hy3d_rocm.decoding.memory.steps import StepWorkspace
from hy3d_rocm.decoding.planning import compiled, jobs
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.planning.planner import smallest_budget
from hy3d_rocm.tools.loading import bare_vae, latent_shape

# Frames, rows and columns of what is decoded.
DECODES = {
    "hunyuan": ((33, 608, 640), (129, 720, 1280)),
    "wan21": ((33, 480, 832), (161, 720, 1280)),
    "ltx": ((97, 512, 768), (257, 1024, 1536)),
    "image": ((1, 1024, 1024), (1, 4096, 4096)),
}
DEVICES = ("gfx1100", "gpu", "cpu")
SHARES = {"none": 0.0, "2/3": 2 / 3, "1/5": 1 / 5}


@dataclass
class Found:
    """One plan. seconds: all of it. taken: the candidate's fields, None where nothing fits."""

    seconds: float
    recording: float
    asking: float
    questions: int
    candidates: int
    smallest: int
    taken: dict[str, Any] | None

    def line(self) -> str:
        what = "nothing fits"
        if self.taken is not None:
            c = self.taken
            host = " on the host" if c["on_host"] else ""
            tiles = f" {c['tiles']} of level {c['level']}" if c["order"] == "tiles" else ""
            less = f", {c['resident_bytes'] / 1e9:.2f} resident" if c["resident_bytes"] >= 0 else ""
            what = (
                f"{c['order']}{tiles}{host}, {c['steps']} steps, {c['device_bytes'] / 1e9:.3f} + "
                f"{c['host_bytes'] / 1e9:.3f} GB{less}"
            )
        return (
            f"{self.seconds:6.3f} s ({self.recording:.3f} recording, {self.asking:.3f} for "
            f"{self.questions} questions), {self.candidates} candidates; {what}"
        )


def job_of(vae: str, size: tuple[int, int, int], device: str) -> Job:
    on_cpu = device == "cpu"
    dtype = torch.float32 if on_cpu else torch.bfloat16
    place = torch.device("cpu" if on_cpu else "cuda")
    backend: Any = jobs.host_backend
    if device.startswith("gfx"):
        backend = jobs.MakeBackend(device)
    family = family_for(torch.nn.Module.to(bare_vae(vae), dtype))
    shape = latent_shape(family, *size)
    return Job(family, shape, place, dtype, dtype, backend)


def measure(job: Job, budget: int) -> Found:
    """The plan under so many bytes, with the time of its parts."""
    spent = {"recording": 0.0, "asking": 0.0, "questions": 0}
    record, ask = graph.record, StepWorkspace.__call__

    def timed(name: str, run: Any, *given: Any) -> Any:
        start = time.process_time()
        try:
            return run(*given)
        finally:
            spent[name] += time.process_time() - start

    def counted(*given: Any) -> Any:
        spent["questions"] += 1
        return timed("asking", ask, *given)

    vars(jobs)["record"] = lambda *given: timed("recording", record, *given)
    StepWorkspace.__call__ = counted  # type: ignore[method-assign,assignment]
    on_cpu = job.device.type == "cpu"
    room = Budget(budget, budget if on_cpu else NO_LIMIT, on_cpu, "given")
    start = time.process_time()
    found = compiled.Compiled(job, room)
    program = found.schedule.program
    if program is not None:
        found.plan()
    seconds = time.process_time() - start
    vars(jobs)["record"] = record  # else the next plan would be watched twice
    StepWorkspace.__call__ = ask  # type: ignore[method-assign]
    needs = [c.need for c in found.candidates() if c.need is not None]
    smallest = min((smallest_budget(need, room) for need in needs), default=0)
    return Found(
        seconds, spent["recording"], spent["asking"], int(spent["questions"]),
        len(found.schedule.candidates), smallest,
        None if program is None else program.candidate,
    )  # fmt: skip


def forked(job: Job, budget: int) -> Found:
    """The same in a child, whose caches are as they are here: empty."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(writing, "w") as file:
                file.write(json.dumps(asdict(measure(job, budget))))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the child failed")
    return Found(**json.loads(text))


def plans(job: Job) -> Iterator[tuple[str, Found]]:
    full = forked(job, NO_LIMIT)
    yield "none", full
    assert full.taken is not None
    everything = full.taken["device_bytes"] + full.taken["margin_bytes"]
    for name in ("2/3", "1/5"):
        yield name, forked(job, int(everything * SHARES[name]))
    least = forked(job, 1)
    yield "1 B", least
    if least.smallest > 1 and least.taken is None:
        yield "least", forked(job, least.smallest)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vae", choices=tuple(DECODES), action="append")
    parser.add_argument("--device", choices=DEVICES, action="append")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    asked = parser.parse_args()
    worst = 0.0
    for device in DEVICES:  # imports what they import
        measure(job_of("image", (1, 64, 64), device), NO_LIMIT)
    gc.collect()
    gc.freeze()  # else a collection of all that torch made is copied into a child, and counts there
    for device in asked.device or DEVICES:
        for vae in asked.vae or DECODES:
            for size in DECODES[vae]:
                title = f"{vae} {size[0]} x {size[2]}x{size[1]} {device}"
                for budget, found in plans(job_of(vae, size, device)):
                    worst = max(worst, found.seconds)
                    if asked.json:
                        print(json.dumps({"decode": title, "budget": budget, **asdict(found)}))
                    else:
                        print(f"{title:28} {budget:>5}: {found.line()}", flush=True)
    sys.stderr.write(f"slowest: {worst:.3f} s\n")


if __name__ == "__main__":
    main()
