"""How long compiling a decode of HunyuanVideo takes, on shapes alone: no GPU is needed.

    python tests/bench/bench_planning.py

A line a decode, backend and budget: milliseconds of recording the graph and of compiling it, of
which those of the workspace function; the program that was taken. The first line of a backend has
its caches empty.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanVideo

from hy3d_rocm import _core
from hy3d_rocm.decode.families.hunyuan import HunyuanFamily
from hy3d_rocm.decode.fused.backend import FusedBackend
from hy3d_rocm.decode.fused.work import Machine
from hy3d_rocm.decode.graph import record
from hy3d_rocm.decode.memory.predict import MetaWeights
from hy3d_rocm.decode.memory.steps import StepWorkspace
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.decode.torch_backend import TorchBackend

GPU, BF16 = torch.device("cuda"), torch.bfloat16
MACHINE = ((512 << 20, 128 << 20), (1, 0, 0), 50e12, 500e9, 20e-6, 2.0)
DECODES = {"33 frames 640x608": (9, 80, 76), "129 frames 720x1280": (33, 90, 160)}
BUDGETS = (1000 << 30, 16 << 30, 8 << 30, 4 << 30)


def line(family: Any, name: str, size: tuple[int, int, int], budget: int) -> str:
    began = time.perf_counter()
    graph = record(family)
    recorded = time.perf_counter()
    weights = MetaWeights(BF16, GPU)
    fused = FusedBackend(weights, "meta", machine=Machine("gfx1100", 48, False))
    backend = TorchBackend(weights) if name == "torch" else fused
    workspace = StepWorkspace(graph, backend, OperatorWorkspace(GPU), BF16)
    inside = [0.0, 0]

    def timed(*question: Any) -> tuple[int, int]:
        start = time.perf_counter()
        answer = workspace(*question)
        inside[0] += time.perf_counter() - start
        inside[1] += 1
        return answer

    schedule = _core.compile_schedule(
        graph.nodes, workspace=timed, size=size, element_bytes=2, input_bytes=2,
        device_budget=budget, host_budget=96 << 30, may_spill=1, pins_powers=1, strategies=0b110,
        device=MACHINE, host=MACHINE, copy_bytes_per_second=12e9,
        halos=((32, 16, 32), (-1, 16, 32)), statistic_passes=1,
    )  # fmt: skip
    compiled = time.perf_counter()
    program = schedule.program
    found = {} if program is None else program.candidate
    return (
        f"{name:6} {budget >> 30:5} GiB: {1e3 * (recorded - began):5.1f} + "
        f"{1e3 * (compiled - recorded):7.1f} ms, {int(inside[1])} questions "
        f"{1e3 * inside[0]:.1f} ms; {found.get('order', 'nothing fits')}, "
        f"{found.get('steps', 0)} steps, {found.get('device_bytes', 0) / 1e9:.2f} GB"
    )


def main() -> None:
    with torch.device("meta"):
        vae = AutoencoderKLHunyuanVideo().to(BF16)
    family = HunyuanFamily(vae)
    for title, size in DECODES.items():
        print(title)
        for name in ("torch", "fused"):
            for budget in BUDGETS:
                print(line(family, name, size, budget))


if __name__ == "__main__":
    main()
