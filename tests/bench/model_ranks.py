"""A model of a decode by several consumer cards: what each holds, what goes over the links, and how
much faster that could be. Nothing is run: memory and bytes are the programs' own, time is a model.

    python tests/bench/model_ranks.py [--arch gfx1100] [--ranks 1,2,4,8]

Time of N ranks = seconds of one card * largest rank's share of the multiply-accumulates
                + the most that a rank sends or gets / link + exchanges * latency
                + the others' rows of the frames, to rank 0 / link,
with nothing of it hidden. `alone` is given, not measured: seconds of one such card.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget
from hy3d_rocm.decoding.planning.compiled import Compiled
from hy3d_rocm.decoding.planning.jobs import Job, MakeBackend
from hy3d_rocm.decoding.run import OPS, ProgramStep
from hy3d_rocm.units import size_text

# Name, diffusers' class, latents (C, T, H, W).
DECODES = (
    ("HunyuanVideo 33x640x608", "AutoencoderKLHunyuanVideo", (16, 9, 80, 76)),
    ("HunyuanVideo 129x544x960", "AutoencoderKLHunyuanVideo", (16, 33, 68, 120)),
    ("Wan 2.1 81x720x1280", "AutoencoderKLWan", (16, 21, 90, 160)),
)
# Between two cards, by way of host memory: bytes a second in each direction; PCIe 4.0 x16, x8, x4.
LINKS = {"x16": 12e9, "x8": 6e9, "x4": 3e9}
LATENCY = 100e-6  # seconds of an exchange, and of a meeting
ALONE = (10.0, 30.0)


def job_of(kind: str, latent: tuple[int, ...], arch: str) -> Job:
    """A decode in bfloat16 by the fused kernels of a GPU that is not here."""
    import diffusers

    with torch.device("meta"):
        vae = getattr(diffusers, kind)()
    vae = torch.nn.Module.to(vae, torch.bfloat16)
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    return Job(family_for(vae), (1, *latent), device, dtype, dtype, MakeBackend(arch))


class Counted:
    """What one rank's program does."""

    def __init__(self, job: Job, rank: int, ranks: int) -> None:
        budget = Budget(NO_LIMIT, NO_LIMIT, False, "no limit")
        self.compiled = compiled = Compiled(
            replace(job, rank=rank, ranks=ranks), budget, "streamed"
        )
        steps = [ProgramStep._make(step) for step in compiled.program.steps(0)]
        slices = compiled.program.slices(0)
        self.macs = sum(step.macs for step in steps)
        self.moved: Counter[str] = Counter()
        self.exchanges, before = 0, ""
        for step in steps:
            op = OPS[step.op]
            if op in ("send", "recv"):
                _, _, frames, rows, nbytes, _ = slices[step.slice]
                each = nbytes // ((frames[1] - frames[0]) * (rows[1] - rows[0]))
                lines = (step.frames[1] - step.frames[0]) * (step.rows[1] - step.rows[0])
                self.moved[op] += each * lines
            begins = op in ("send", "recv") and before not in ("send", "recv")
            self.exchanges += begins or op in ("reduce", "emit")
            before = op
        candidate = compiled.program.candidate
        self.peak_bytes = candidate["device_bytes"] + candidate["margin_bytes"]


def model(alone: float, one: Counted, each: list[Counted], link: float, job: Job) -> float:
    """Seconds of all ranks together."""
    share = max(rank.macs for rank in each) / one.macs
    sent = max(max(rank.moved["send"], rank.moved["recv"]) for rank in each)
    sent += math.prod(job.out_shape) * job.dtype.itemsize * (len(each) - 1) // len(each)
    return alone * share + sent / link + max(rank.exchanges for rank in each) * LATENCY


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--arch", default="gfx1100")
    parser.add_argument("--ranks", default="1,2,4,8")
    arguments = parser.parse_args()
    counts = [int(n) for n in arguments.ranks.split(",")]
    heads = [f"{link} {alone:g} s" for alone in ALONE for link in LINKS]
    print(f"{arguments.arch}, bf16; times as fast, by link and seconds of one card alone")
    print(
        "| decode | cards | memory of each | sent by each | exchanges | " + " | ".join(heads) + " |"
    )
    print("|---" * (5 + len(heads)) + "|")
    for name, kind, latent in DECODES:
        job = job_of(kind, latent, arguments.arch)
        one = Counted(job, 0, 1)
        for count in counts:
            each = [one] if count == 1 else [Counted(job, rank, count) for rank in range(count)]
            sent = max(rank.moved["send"] for rank in each)
            row: list[Any] = [name, count, size_text(each[0].peak_bytes, 2), size_text(sent, 2)]
            row.append(max(rank.exchanges for rank in each) if count > 1 else 0)
            for alone in ALONE:
                for link in LINKS.values():
                    seconds = model(alone, one, each, link, job) if count > 1 else alone
                    row.append(f"{alone / seconds:.2f}")
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
