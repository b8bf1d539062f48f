"""What protect() costs a decode on a healthy GPU, and what it gives with the library off.

    python tests/bench/bench_protect_gpu.py [--shapes wan21_17x320x320] [--dtype bf16] [--rounds 7]

The convolutions of a video VAE's decode (tests/shapes/video_vae_layers.json), as often as it makes
them, each followed by the norm and activation that stand between them, on random numbers. Rounds
of the plain decode and of the same under protect() alternate; a scope is entered anew for each, as
a second decode does, and medians are compared. Then the same with the vendor library switched off
for the process (torch.backends.cudnn.enabled = False), as ComfyUI has it on RDNA3 and newer, under
protect() only: PyTorch alone would build im2col buffers of 27 times the input there.

    --limit 2  ends with 1 where the first comparison is over 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from hy3d_rocm.conv import forget
from hy3d_rocm.conv.protection import protect

SHAPES = Path(__file__).resolve().parents[1] / "shapes" / "video_vae_layers.json"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
GPU = torch.device("cuda")


class Layer:
    """One convolution of a decode with its norm and activation; run `count` times."""

    def __init__(self, row: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> None:
        def draw(size: list[int]) -> torch.Tensor:
            return torch.randn(size, generator=generator, device=GPU).to(dtype)

        self.function: Any = F.conv3d if row["op"] == "conv3d" else F.conv2d
        self.x, self.weight = draw(row["input"]), draw(row["weight"]) * 0.02
        self.bias = draw(row["weight"][:1])
        self.options = (row["stride"], row["padding"], row["dilation"], row["groups"])
        self.count = int(row["count"])

    def run(self) -> None:
        for _ in range(self.count):
            y = self.function(self.x, self.weight, self.bias, *self.options)
            F.silu(F.normalize(y, dim=1))


def seconds(layers: list[Layer], scope: Callable[[], Any]) -> tuple[float, int, Any]:
    """Of one decode: seconds, peak bytes beyond what was there, and the guard."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with scope() as guard:
        for layer in layers:
            layer.run()
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    return took, torch.cuda.max_memory_allocated() - before, guard


def measure(layers: list[Layer], rounds: int) -> dict[str, Any]:
    plain, within, first = [], [], {}
    seconds(layers, nullcontext)
    first["protected"] = seconds(layers, protect)[0]
    for _ in range(rounds):
        plain.append(seconds(layers, nullcontext)[0])
        within.append(seconds(layers, protect)[0])
    before, after = statistics.median(plain), statistics.median(within)
    report: dict[str, Any] = {
        "plain_s": before, "protected_s": after, "overhead_percent": 100 * (after / before - 1),
        "first_protected_s": first["protected"],
    }  # fmt: skip
    forget()
    with torch.backends.cudnn.flags(enabled=False):
        report["off_first_s"] = seconds(layers, protect)[0]
        runs = [seconds(layers, protect) for _ in range(rounds)]
    report["off_s"] = statistics.median(run[0] for run in runs)
    report["off_peak_bytes"] = max(run[1] for run in runs)
    report["off_against_plain"] = report["off_s"] / before
    report["off_tiers"] = {k: round(v, 3) for k, v in runs[-1][2].stats.tier_seconds().items()}
    report["off_lines"] = runs[-1][2].stats.lines
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="wan21_17x320x320")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=None, help="percent")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA or HIP device here: nothing to measure\n")
        return 2
    rows = json.loads(SHAPES.read_text())[options.shapes]["layers"]
    generator = torch.Generator(GPU).manual_seed(0)
    layers = [Layer(row, DTYPES[options.dtype], generator) for row in rows]
    with torch.inference_mode():
        report = measure(layers, options.rounds)
    name = torch.cuda.get_device_name()
    sys.stdout.write(json.dumps({"device": name, "shapes": options.shapes, **report}) + "\n")
    return int(options.limit is not None and report["overhead_percent"] > options.limit)


if __name__ == "__main__":
    raise SystemExit(main())
