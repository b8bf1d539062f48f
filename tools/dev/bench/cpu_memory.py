"""Memory of one convolution beyond its result, measured in a process of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from tools.dev.bench import children
from tools.dev.bench.gpu_layers import Layer

SLACK_BYTES = 1 << 20  # the plan, whole pages, the stacks of the pool's threads


def memory_job(layer: Layer, which: str, dtype: str, accuracy: str, threads: int) -> dict[str, Any]:
    """For a child: measures "ours" or "torch"."""
    return {
        "run": children.named(run_memory), "layer": dataclasses.asdict(layer), "which": which,
        "dtype": dtype, "accuracy": accuracy, "threads": threads,
    }  # fmt: skip


def run_memory(job: dict[str, Any]) -> dict[str, int]:
    """bytes: what the second call takes at its peak beyond its result: what a first one loads or
    keeps (code, prepared weights) is there before the count begins."""
    import torch

    from hy3d_rocm.meter import PeakMeter, steady_malloc
    from tools.dev.bench.cpu_layers import make_operands, our_call, torch_call

    steady_malloc()
    torch.set_num_threads(job["threads"])
    fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in job["layer"].items()}
    layer = Layer(**fields)
    operands = make_operands(layer, job["dtype"])
    is_ours = job["which"] == "ours"
    call = our_call(operands, job["accuracy"]) if is_ours else torch_call(operands)
    with torch.inference_mode():
        call()
        with PeakMeter(interval=0) as meter:
            result = call()
    return {"bytes": max(0, meter.peak_bytes - result.numel() * result.element_size())}
