"""The tiers beside PyTorch's default call on the layers of real video VAEs.

    python tests/bench/bench_tiers.py [--device cuda] [--entries hunyuan... wan21...]
        [--tiers vendor gemm conv2d native] [--dtypes bf16 f16 f32] [--layouts plain last]
        [--min-gflop 1] [--max-gflop 1e9] [--rounds 7] [--limit-s 500] [--json FILE]
        [--by-product] [--piece-mib N]

One run: for each layer every tier and F.conv3d are called in turn, round after round, and medians
compared (CUDA events on a GPU). "default" is F.conv3d as PyTorch is set up. x is a tier's time over
the default's; MB is its peak beyond input, weight and output; error is the RMS difference from
float64 sums over all channels of 32 random positions, over that of the default. Rounds shrink where
a layer is slow, and what --limit-s did not leave time for is named. On a CPU use --max-gflop 20.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from hy3d_rocm.conv.tiers import (  # noqa: E402
    Tier,
    columns,
    columns_plan,
    make_call,
    make_tier,
    windows,
)

SHAPES = ROOT / "tests" / "shapes" / "video_vae_layers.json"
ENTRIES = ["hunyuan_video_33x640x608_framewise", "wan21_17x320x320"]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SECONDS_A_CALL_SERIES = 1.5
# The GPU waits about 2 ms first, so that launches are queued as they are within a decode, and the
# events count the kernels rather than Python.
_QUEUE_CYCLES = 4_000_000

Layer = dict[str, Any]


def layers(entries: list[str], smallest: float, largest: float) -> list[Layer]:
    """Those of at least `smallest` GFLOP, each once, largest first."""
    data = json.loads(SHAPES.read_text(encoding="utf-8"))
    found = {}
    for entry in entries:
        for layer in data[entry]["layers"]:
            if smallest <= layer["gflop"] <= largest:
                found[json.dumps({k: v for k, v in layer.items() if k != "count"})] = layer
    return sorted(found.values(), key=lambda layer: -layer["gflop"])


def tensors(layer: Layer, dtype: torch.dtype, device: str, layout: str) -> tuple[Any, ...]:
    kept = torch.channels_last if layer["op"] == "conv2d" else torch.channels_last_3d
    kept = kept if layout == "last" else torch.contiguous_format
    generator = torch.Generator(device).manual_seed(1)
    depth = math.prod(layer["weight"][1:])

    def values(shape: list[int], scale: float) -> torch.Tensor:
        data = torch.empty(shape, dtype=dtype, device=device, memory_format=torch.contiguous_format)
        return data.normal_(0, scale, generator=generator)

    x = values(layer["input"], 1.0).contiguous(memory_format=kept)
    weight = values(layer["weight"], depth**-0.5).contiguous(memory_format=kept)
    return x, weight, values(layer["weight"][:1], 0.1)


def sampled(call: Any, positions: int = 32) -> Callable[[torch.Tensor], float]:
    """RMS difference of a result from float64 sums over the channels of random positions."""
    shape = windows.geometry(call.spec)
    rng = random.Random(3)
    x, weight = windows.lifted(call.x), windows.lifted(call.weight)
    rows = weight.reshape(shape.groups, shape.cout // shape.groups, -1).double()
    places, exact = [], []
    for _ in range(positions):
        n, *point = (rng.randrange(size) for size in (shape.batch, *shape.out))
        t, h, w = ((p, p + 1) for p in point)
        taps = windows.window(x[n : n + 1], shape, (t, h, w))[0]
        for axis, spread in enumerate(shape.dilation):
            taps = taps[(slice(None),) * (axis + 1) + (slice(None, None, spread),)]
        columns = taps.reshape(shape.groups, -1, 1).double()
        exact.append((rows @ columns).flatten() + call.bias.double())
        places.append((n, *point))

    def error(out: torch.Tensor) -> float:
        out = windows.lifted(out)
        got = torch.stack([out[n, :, t, h, w] for n, t, h, w in places]).double()
        return float((got - torch.stack(exact)).square().mean().sqrt())

    return error


def timer(device: str) -> Callable[[Callable[[], Any]], float]:
    """Seconds of one call."""

    def on_cpu(function: Callable[[], Any]) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    def on_gpu(function: Callable[[], Any]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(_QUEUE_CYCLES)
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return on_gpu if device.startswith("cuda") else on_cpu


def first_call(function: Callable[[], Any], device: str) -> tuple[Any, float]:
    """The result, and the peak MB beyond what there was before and the result."""
    if not device.startswith("cuda"):
        return function(), math.nan
    function()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = function()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
    return out, peak / 1e6


def measure(layer: Layer, dtype: torch.dtype, layout: str, options: Any) -> dict[str, Any]:
    """One row: for "default" and each tier the seconds, MB and error, or why there is none."""
    x, weight, bias = tensors(layer, dtype, options.device, layout)
    call = make_call(x, weight, bias, *(layer[k] for k in ("stride", "padding", "dilation")),
                     layer["groups"])  # fmt: skip
    error = sampled(call)
    functions: dict[str, Callable[[], Any]] = {"default": call.run_current}
    row: dict[str, Any] = {"layer": layer, "dtype": str(dtype), "layout": layout, "tiers": {}}
    for name in options.tiers:
        tier: Tier = make_tier(name)
        refusal = tier.refusal(call, call.limits)
        if refusal is None:
            functions[name] = lambda tier=tier: tier.run(call)
            row["tiers"][name] = {"predicted_mb": tier.workspace_bytes(call.spec) / 1e6}
        else:
            row["tiers"][name] = {"refused": refusal}
    clock, times = timer(options.device), {}
    for name, function in list(functions.items()):
        record = row["tiers"].setdefault(name, {})
        try:
            out, record["mb"] = first_call(function, options.device)
        except (RuntimeError, NotImplementedError) as failure:
            record["refused"] = str(failure).splitlines()[0][:100]
            del functions[name]
            continue
        record["error"] = error(out)
        del out
        times[name] = [clock(function)]
    rounds = int(SECONDS_A_CALL_SERIES / max(sum(t[0] for t in times.values()), 1e-9))
    for _ in range(max(1, min(options.rounds, rounds))):
        for name, function in functions.items():
            times[name].append(clock(function))
    for name, values in times.items():
        row["tiers"][name]["seconds"] = statistics.median(values)
    return row


def _mb(record: dict[str, Any]) -> str:
    return "" if math.isnan(record["mb"]) else f"{record['mb']:6.0f} MB"


def text(row: dict[str, Any]) -> str:
    layer, tiers = row["layer"], row["tiers"]
    size = "x".join(map(str, layer["input"])) + f" -> {layer['weight'][0]}"
    kernel = "x".join(map(str, layer["weight"][2:]))
    base = tiers["default"]
    if "seconds" not in base:
        return f"{size:26} {kernel:6} default: {base['refused']}"
    line = f"{size:26} {kernel:6} {base['seconds'] * 1e3:8.3f} ms {_mb(base)}"
    for name, record in tiers.items():
        if name == "default":
            continue
        if "seconds" not in record:
            line += f" | {name}: {record['refused'][:40]}"
            continue
        worse = record["error"] / base["error"] if base["error"] else math.nan
        line += f" | {name} {record['seconds'] / base['seconds']:5.2f}x"
        line += f" {_mb(record)} err {worse:4.2f}x"
    return line


def summary(rows: list[dict[str, Any]], tiers: list[str]) -> list[str]:
    lines = []
    for dtype, layout in dict.fromkeys((r["dtype"], r["layout"]) for r in rows):
        for name in tiers:
            pairs = [
                (r["tiers"][name], r["tiers"]["default"])
                for r in rows
                if (r["dtype"], r["layout"]) == (dtype, layout)
                and "seconds" in r["tiers"][name] and "seconds" in r["tiers"]["default"]
            ]  # fmt: skip
            if pairs:
                ratios = [a["seconds"] / b["seconds"] for a, b in pairs]
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                errors = [a["error"] / b["error"] for a, b in pairs if b["error"]]
                over = [a["mb"] - a["predicted_mb"] for a, _ in pairs]
                lines.append(
                    f"{dtype} {layout:5} {name:7} {len(ratios)} layers: geometric mean {mean:.2f}x,"
                    f" worst {max(ratios):.2f}x; at most {max(a['mb'] for a, _ in pairs):.0f} MB,"
                    f" {max(over):+.0f} MB over its prediction; error at most"
                    f" {max(errors, default=math.nan):.2f}x"
                )
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--entries", nargs="+", default=ENTRIES)
    parser.add_argument("--tiers", nargs="+", default=["vendor", "gemm", "conv2d", "native"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16"])
    parser.add_argument("--layouts", nargs="+", choices=["plain", "last"], default=["plain"])
    parser.add_argument("--min-gflop", type=float, default=1.0)
    parser.add_argument("--max-gflop", type=float, default=1e9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit-s", type=float, default=500.0, help="then stop and sum up")
    parser.add_argument("--by-product", action="store_true",
                        help="gemm: channels-last order by products with the identity")  # fmt: skip
    parser.add_argument("--piece-mib", type=int, help="gemm: MiB of columns and sums at a time")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args(arguments)
    if options.by_product:
        columns.BY_PRODUCT = (torch.float16, torch.bfloat16)
    if options.piece_mib:
        columns_plan._PIECE_BYTES = options.piece_mib << 20
    start, rows, left = time.monotonic(), [], []
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{where}, torch {torch.__version__}", flush=True)
    for dtype in options.dtypes:
        for layout in options.layouts:
            print(f"{dtype}, {'channels-last' if layout == 'last' else 'NCDHW'}:")
            for layer in layers(options.entries, options.min_gflop, options.max_gflop):
                if time.monotonic() - start > options.limit_s:
                    left.append(f"{dtype} {layout} {layer['input']} -> {layer['weight'][0]}")
                    continue
                with torch.inference_mode():
                    rows.append(measure(layer, DTYPES[dtype], layout, options))
                print("  " + text(rows[-1]), flush=True)
    print(*summary(rows, options.tiers), sep="\n")
    if left:
        print(f"not measured, out of time ({options.limit_s:.0f} s): " + "; ".join(left))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
