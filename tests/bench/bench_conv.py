"""Speed and memory of the C convolution beside torch on the layers of real video VAEs.

    python tests/bench/bench_conv.py [--shapes FILE] [--threads N] [--entries NAME ...]
        [--min-channels 64] [--kernel 3x3x3] [--repeats 5] [--clock wall|cpu] [--no-memory]

Calls of both are interleaved and medians compared; a call of ours includes making the plan. A
ratio above 1 means faster than torch. --clock cpu counts the calling thread's CPU time instead of
the wall's (one thread only): on a machine that others use, too, it is the steadier figure. The
memory column is measured in a fresh child process: its peak RSS during one call, less the RSS
before it with input, weight and output in place.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SHAPES = ROOT / "tests" / "shapes" / "video_vae_layers.json"
ENTRIES = ["hunyuan_video_9x160x160", "wan21_9x160x160"]
# What a call may take beside its workspace: the plan, the stacks of the pool's threads and whole
# pages of each; see own_bytes in conv3d.h.
SLACK_BYTES = 1 << 20

Layer = dict[str, Any]


def three(values: list[int], fill: int) -> tuple[int, ...]:
    return (fill, *values) if len(values) == 2 else tuple(values)


def tensors(layer: Layer) -> tuple[Any, Any, Any, Any]:
    """x, weight, bias, out of a layer, every page of them touched."""
    import torch

    flat = len(layer["weight"]) == 4
    generator = torch.Generator().manual_seed(0)
    shapes = [layer["input"], layer["weight"]]
    if flat:
        shapes = [[*s[:2], 1, *s[2:]] for s in shapes]
    x, weight = (torch.empty(s).uniform_(-1, 1, generator=generator) for s in shapes)
    pads, stride = three(layer["padding"], 0), three(layer["stride"], 1)
    size = [
        (n + 2 * p - k) // s + 1
        for n, p, k, s in zip(x.shape[2:], pads, weight.shape[2:], stride, strict=True)
    ]
    out = torch.full((x.shape[0], weight.shape[0], *size), math.nan)
    return x, weight, torch.zeros(weight.shape[0]), out


def our_call(layer: Layer, threads: int, limit: int) -> Callable[[], tuple[str, int, int]]:
    from hy3d_rocm import _core

    x, weight, bias, out = tensors(layer)
    pads, stride = three(layer["padding"], 0), three(layer["stride"], 1)
    dilation, groups = three(layer["dilation"], 1), layer["groups"]

    def call() -> tuple[str, int, int]:
        return _core.conv3d(x, weight, bias, out, stride, dilation, pads, pads, "zeros", groups,
                            threads, limit)  # fmt: skip

    return call


def torch_call(layer: Layer) -> Callable[[], Any]:
    import torch.nn.functional as functional

    x, weight, bias, _ = tensors(layer)
    if len(layer["weight"]) == 4:
        x, weight = x.squeeze(2), weight.squeeze(2)
    conv = functional.conv2d if x.dim() == 4 else functional.conv3d

    def call() -> Any:
        return conv(x, weight, bias, layer["stride"], layer["padding"], layer["dilation"],
                    layer["groups"])  # fmt: skip

    return call


def compare(layer: Layer, options: argparse.Namespace) -> tuple[float, float, tuple[str, int, int]]:
    """Median seconds of ours and torch's, interleaved, and what ours said about itself."""
    import torch

    clock = time.thread_time if options.clock == "cpu" else time.perf_counter
    torch.set_num_threads(options.threads)
    ours, theirs = our_call(layer, options.threads, options.limit), torch_call(layer)
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        about = ours()
        theirs()
        for _ in range(options.repeats):
            for call, spent in zip((ours, theirs), times, strict=True):
                start = clock()
                call()
                spent.append(clock() - start)
    return statistics.median(times[0]), statistics.median(times[1]), about


def status_bytes(field: str) -> int:
    """VmRSS or VmHWM (its highest value) of this process; getrusage's includes the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def peak_of_child(layer: Layer, which: str, threads: int, limit: int) -> None:
    """In the child: prints the peak RSS of one call less the RSS before it, output in place."""
    import torch

    torch.set_num_threads(threads)
    warm = {**layer, "input": [1, 1, 1, 20, 20], "weight": [1, 1, 1, 3, 3], "op": "conv3d",
            "groups": 1, "padding": [0, 0, 0], "stride": [1, 1, 1],
            "dilation": [1, 1, 1]}  # fmt: skip
    (our_call(warm, threads, 0) if which == "ours" else torch_call(warm))()
    call = our_call(layer, threads, limit) if which == "ours" else torch_call(layer)
    before = status_bytes("VmRSS")
    result = call()
    peak = status_bytes("VmHWM")
    # torch makes its output itself; ours was there before.
    output = 0 if which == "ours" else result.numel() * result.element_size()
    print(max(0, peak - before - output))


def extra_memory(layer: Layer, which: str, options: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--child", which, "--layer", json.dumps(layer),
               "--threads", str(options.threads), "--limit", str(options.limit)]  # fmt: skip
    # Else glibc keeps an arena a thread, which is not the convolution's memory.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(child.stdout.split()[-1])


def chosen_layers(options: argparse.Namespace) -> list[tuple[str, Layer]]:
    entries = json.loads(options.shapes.read_text(encoding="utf-8"))
    kernel = None if options.kernel == "any" else [int(k) for k in options.kernel.split("x")]
    return [
        (name, layer)
        for name in options.entries
        for layer in entries[name]["layers"]
        if min(layer["weight"][0], layer["input"][1]) >= options.min_channels
        and (kernel is None or layer["weight"][2:] == kernel)
        and layer["gflop"] <= options.max_gflop
    ]


def report(options: argparse.Namespace) -> int:
    ratios, weighted, over = [], [0.0, 0.0], 0
    print(f"{options.threads} thread(s), {options.clock} clock, median of {options.repeats}")
    for name, layer in chosen_layers(options):
        ours, theirs, (strategy, threads, workspace) = compare(layer, options)
        ratios.append(theirs / ours)
        weighted[0] += ours * layer["count"]
        weighted[1] += theirs * layer["count"]
        gflop = layer["gflop"]
        line = (
            f"{name:24} {'x'.join(map(str, layer['input'])):>19} -> {layer['weight'][0]:4} "
            f"k {'x'.join(map(str, layer['weight'][2:])):5} {ours * 1e3:8.1f} ms "
            f"torch {theirs * 1e3:8.1f} ms ratio {ratios[-1]:5.2f}  {gflop / ours:5.0f} GFLOP/s "
            f"torch {gflop / theirs:5.0f}  {strategy} x{threads} workspace {workspace >> 10} kB"
        )
        if not options.no_memory:
            extra = extra_memory(layer, "ours", options)
            exceeded = extra > workspace + SLACK_BYTES
            over += exceeded
            line += (
                f"  extra {extra >> 10} kB{' OVER THE BOUND' if exceeded else ''} "
                f"torch {extra_memory(layer, 'torch', options) >> 10} kB"
            )
        print(line, flush=True)
    if not ratios:
        print("no layer matches")
        return 2
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
    print(f"geometric mean of {len(ratios)} ratios: {mean:.3f} (1 is torch's speed)")
    print(f"all calls of these layers: {weighted[0]:.1f} s, torch {weighted[1]:.1f} s")
    if not options.no_memory:
        print(f"layers whose extra memory exceeds workspace + {SLACK_BYTES >> 10} kB: {over}")
    return 1 if over else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=Path, default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--entries", nargs="+", default=ENTRIES)
    parser.add_argument("--min-channels", type=int, default=64)
    parser.add_argument("--kernel", default="3x3x3", help="such as 3x3x3 or 3x3, or any")
    parser.add_argument("--max-gflop", type=float, default=math.inf, help="skip larger layers")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, default=0, help="workspace limit in bytes")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--child", choices=("ours", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--layer", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        peak_of_child(options.layer, options.child, options.threads, options.limit)
        return 0
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu measures one thread")
    return report(options)


if __name__ == "__main__":
    sys.exit(main())
