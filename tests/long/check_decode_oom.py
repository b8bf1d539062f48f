"""Memory runs out at each step of tiny decodes, at each pair of steps, at each retry and beyond.

    python tests/long/check_decode_oom.py [--count N] [--jobs N] [--seed 1] [--only TEXT]

For every family of VAE, every strategy and both backends of the CPU (torch's operators and the C
convolution): out of memory at each attempt at a step, at each pair of attempts (a step and its
retry among them), at three in a row (which ends a way of decoding), at all from one on; at random
operators of torch; at each allocation of the C core, once and for ever. Each
decode must give what an undisturbed one by the way that it ended with gives, bit for bit (where
protect() has let torch compute for want of memory in the C core: to rounding), or end with the
sentence that says what was tried; nothing that it took may be left, no file half-written.
Of a decode with more than 140 steps 10,000 pairs are drawn, each step with its retry among them.
Every third decode fills the caller's tensor, every third writes a file.

--count: that many at random (seeded) in place of all, which are some hundred thousand. A failure
prints the job and the number to replay it with: --only JOB --number N.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_oom import KINDS, OWN, Faults, Job, OomError, core

PART = 200  # trials that a process does with one preparation
MOST_PAIRS = 10_000  # of a job: where there are more, each step with its retry, the rest at random


def list_jobs() -> list[Job]:
    jobs = []
    backends = ("torch",) if core is None else ("torch", "native")
    for kind in KINDS:
        jobs.append(Job(kind, "decode", "whole", "torch"))
        if kind == OWN:
            jobs.append(Job(kind, "decode", "tiled", "torch", is_cut=True))
            continue
        for backend in backends:
            jobs += [Job(kind, "decode", name, backend) for name in ("streamed", "cpu", "tiled")]
            jobs.append(Job(kind, "decode", "tiled", backend, is_cut=True))
            jobs.append(Job(kind, "encode", "streamed", backend))
        jobs.append(Job(kind, "decode", "auto", backends[-1]))
    return jobs


def trials(job: Job, seed: int) -> list[Faults]:
    """Every place of a job's decode, in an order that follows from the seed."""
    n = job.steps
    found = [Faults(steps=(i,)) for i in range(n)]
    pairs = list(itertools.combinations(range(n + 1), 2))
    draw = random.Random(f"{seed}/{job.name}")
    if len(pairs) > MOST_PAIRS:
        near = [pair for pair in pairs if pair[1] - pair[0] == 1]
        pairs = near + draw.sample(pairs, MOST_PAIRS - len(near))
    found += [Faults(steps=pair) for pair in pairs]
    found += [Faults(steps=(i, i + 1, i + 2)) for i in range(n)]
    found += [Faults(onward=i) for i in range(n)]
    for k in range(1, job.allocations + 1):
        found += [Faults(core=k), Faults(core=k, forever=True)]
    for _ in range(min(job.operators, 200)):
        at = draw.randrange(job.operators)
        found.append(Faults(operators=(at, at + draw.choice((0, 1, 5)))))
    draw.shuffle(found)
    return found


def count_of(job: Job, seed: int) -> int:
    """How many trials a job has."""
    import torch

    torch.set_num_threads(1)
    job.prepare()
    return len(trials(job, seed))


def run_part(job: Job, seed: int, numbers: list[int]) -> tuple[Counter[str], list[str]]:
    """Trials of one job: how they ended, and what was wrong."""
    import logging

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    job.prepare()
    every = trials(job, seed)
    ends: Counter[str] = Counter()
    wrong = []
    for number in numbers:
        try:
            ends[job.trial(number, every[number])] += 1
        except Exception as error:  # noqa: BLE001  any other error is a decode that broke
            text = f"{type(error).__name__}: {error}"
            wrong.append(f"--only {job.name!r} --number {number}: {every[number]}: {text}")
    return ends, wrong


def parts(jobs: list[Job], counts: list[int], options: argparse.Namespace) -> list[tuple]:
    """(job, seed, numbers) of what is asked for."""
    if options.number is not None:
        return [(job, options.seed, [options.number]) for job in jobs]
    chosen = [list(range(n)) for n in counts]
    total = sum(counts)
    if options.count is not None and options.count < total:
        draw = random.Random(options.seed)
        drawn = sorted(draw.sample(range(total), options.count))
        ends = list(itertools.accumulate(counts))
        chosen = [
            [i - (end - n) for i in drawn if end - n <= i < end]
            for n, end in zip(counts, ends, strict=True)
        ]
    return [
        (job, options.seed, numbers[at : at + PART])
        for job, numbers in zip(jobs, chosen, strict=True)
        for at in range(0, len(numbers), PART)
    ]


def check(options: argparse.Namespace) -> tuple[Counter[str], list[str], int]:
    jobs = [job for job in list_jobs() if not options.only or options.only in job.name]
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        asked = [pool.submit(count_of, job, options.seed) for job in jobs]
        known = [future.result() for future in asked]
        every = [pool.submit(run_part, *part) for part in parts(jobs, known, options)]
        for done, future in enumerate(as_completed(every), 1):
            more, failed = future.result()
            ends += more
            wrong += failed
            for line in failed[:5]:
                print(line, flush=True)
            if done % 50 == 0:
                print(f"{sum(ends.values())} decodes, {len(wrong)} wrong", flush=True)
    return ends, wrong, len(jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, help="random decodes in place of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    parser.add_argument("--number", type=int, help="one trial of those jobs")
    options = parser.parse_args()
    began = time.perf_counter()
    try:
        ends, wrong, jobs = check(options)
    except OomError as error:
        print(f"FAILED: {error}")
        return 1
    if core is None:
        print("the C core is not there: nothing was tried with the C convolution")
    print(
        f"{sum(ends.values()) + len(wrong)} decodes of {jobs} kinds out of memory: "
        f"{ends['same way']} came through, {ends['another way']} by another way, "
        f"{ends['another tier']} with convolutions by torch, {ends['ended']} "
        f"ended with the sentence, {len(wrong)} wrong, {time.perf_counter() - began:.0f} s"
    )
    return 1 if wrong or not sum(ends.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
