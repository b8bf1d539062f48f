"""What PipelineProxy adds to a call, apart from the pipeline's own work.

    python tests/bench/bench_proxy.py [--rounds 300]

The pipelines compute nothing: a call draws four numbers, a multiview call encodes three times as
upstream's does. "diffusers" has the components of a tiny StableDiffusionInstructPix2PixPipeline
(350 modules) and diffusers' `_execution_device`, which walks them all; "plain" says where it
computes. Bare and proxied calls alternate in one run, in an order that changes each round, after a
warm-up, on one thread; a line has the median and the 99th percentile of each in microseconds and
the difference of the medians. A busy machine moves the 99th percentile more than anything here.

    single      the first call of a batch      batch       the second to eighth call
    legacy      generators as they are         multiview   three views, encodings redrawn

On two shared cores, 60 rounds, CPU: added to the median of a call of "diffusers" 2.5 ms (single,
batch), 2.4 (legacy), 3.0 ms (multiview), of which 2.2 ms are diffusers' own answer; of "plain" 338,
223, 89, 533 us. A walk of our own gave that answer in 0.1 to 0.3 ms where hooks were plain: it
copied rules of diffusers for two thousandths of a second in a call that takes seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SEED, BATCH = 7, 8


class _Idle:
    """Draws as a pipeline does, and does nothing else."""

    def __call__(
        self, image: Any = None, generator: Any = None, num_in_batch: int | None = None
    ) -> torch.Tensor:
        for _ in range(3 if num_in_batch else 0):
            self.encode_images(torch.zeros(1, num_in_batch or 1, 1, 1, 1))
        if isinstance(generator, list):
            return torch.cat([torch.randn(4, generator=one) for one in generator])
        return torch.randn(4, generator=generator)

    def encode_images(self, images: torch.Tensor) -> torch.Tensor:
        return torch.randn(images.shape)


class Plain(_Idle):
    _execution_device = torch.device("cpu")


def of_diffusers() -> Any:
    """The components and properties of a real pipeline, and the call of an idle one."""
    from diffusers import StableDiffusionInstructPix2PixPipeline

    from examples.demo.delight import tiny_pipeline

    made = tiny_pipeline()
    made.__class__ = type("Idle", (_Idle, StableDiffusionInstructPix2PixPipeline), {})
    return made


def calls(called: Any, count: int, **options: Any) -> Iterator[float]:
    """Seconds of each of `count` calls of one loop that reseeds, as Hy3DDelightImage's does."""
    image = torch.zeros(3, 8, 8)
    for _ in range(count):
        generator = torch.manual_seed(SEED)
        began = time.perf_counter()
        called(image=image, generator=generator, **options)
        yield time.perf_counter() - began


def measure(pipeline: Any, kind: str) -> list[float]:
    """Seconds of the calls that `kind` is about."""
    if kind == "batch":
        return list(calls(pipeline, BATCH))[1:]
    return list(calls(pipeline, 1, **({"num_in_batch": 3} if kind == "multiview" else {})))


def cases() -> dict[tuple[str, str, str], tuple[Any, str]]:
    """What is called, by (pipeline, kind, "bare" or "proxied")."""
    from hy3d_rocm.pipeline import PipelineProxy

    found: dict[tuple[str, str, str], tuple[Any, str]] = {}
    for name, pipeline in (("diffusers", of_diffusers()), ("plain", Plain())):
        for kind in ("single", "batch", "legacy", "multiview"):
            mode: Any = "legacy" if kind == "legacy" else "stream"
            found[name, kind, "bare"] = pipeline, kind
            found[name, kind, "proxied"] = PipelineProxy(pipeline, seed_mode=mode), kind
    return found


def run(rounds: int) -> dict[tuple[str, str, str], list[float]]:
    measured: dict[tuple[str, str, str], list[float]] = {}
    chosen, all_cases = random.Random(SEED), list(cases().items())
    for number in range(-10, rounds):
        chosen.shuffle(all_cases)
        for key, (pipeline, kind) in all_cases:
            seconds = measure(pipeline, kind)
            if number >= 0:
                measured.setdefault(key, []).extend(seconds)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    measured = run(rounds)
    print(f"{'pipeline':10} {'kind':10} {'bare':>16} {'proxied':>16} {'added':>8}  (us)")
    for name, kind, which in sorted(measured):
        if which == "proxied":
            continue
        columns, medians = [], []
        for one in ("bare", "proxied"):
            seconds = sorted(measured[name, kind, one])
            medians.append(statistics.median(seconds) * 1e6)
            last = seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)] * 1e6
            columns.append(f"{medians[-1]:8.0f}{last:8.0f}")
        print(f"{name:10} {kind:10} {columns[0]} {columns[1]} {medians[1] - medians[0]:8.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
