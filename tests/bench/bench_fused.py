"""Each distinct layer of the HunyuanVideo decoder (33 frames of 640x608, full width) on a GPU:
the fused backend against the vendor library's separate operators.

    python tests/bench/bench_fused.py [--dtype bfloat16] [--sweep] [--only NAME ...] [--json FILE]

A layer is run as an engine runs it: over slices of at most 256 MiB, the norm given as factor and
summand, moments of the result taken. "apart" is what a plain decode does: group_norm, silu,
interpolate, pad, conv3d, add, on whole NCDHW tensors. "conv" is the conv3d alone. GB/s counts
source, residual and result once each; TFLOP/s the products of the layer as it is written (done: of
those that are left where up-sampling is done by sums of weights). error: the largest difference
from apart in float32 over its largest value, and that of apart in the dtype. --sweep: tiles and box
sizes on the heaviest layers. A layer that fails is a line that says so.

Without a GPU, to see that it runs: TRITON_INTERPRET=1 ... --device cpu --divide 16
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from fused_layers import LAYERS, Bench, Clock, Shape, divided, moved, operations  # noqa: E402

TILES = (
    "256x128x64w8s4g8", "256x128x64w8s3g8", "128x256x64w8s4g8", "128x256x64w8s3g8",
    "128x128x64w8s4g8", "128x128x64w8s3g8", "128x128x64w4s3g8", "256x128x32w8s4g8",
)  # fmt: skip
ROWS_MIB = (12, 20, 28, 40, 56)
SWEPT = ("128>128 +", "256>256 +", "256>256 up")


def parts_of(bench: Bench, backend: Any, affine: Any, clock: Clock) -> dict[str, float]:
    """Milliseconds of each kind of kernel alone."""
    from hy3d_rocm.decoding.backends.triton import backend as module

    run, found = module.run_launches, {}
    for kernel in ("load_rows", "conv_rows", "combine_moments"):
        parts: dict[int, Any] = {}

        def chosen(part: Any, *rest: Any, kernel: str = kernel, parts: Any = parts) -> None:
            if id(part) not in parts:
                kept = tuple(item for item in part.work.launches if item.kernel == kernel)
                only = copy(part.work)
                only.launches, only.calls = kept, {}
                parts[id(part)] = part, replace(part, work=only)  # the part keeps its id
            run(parts[id(part)][1], *rest)

        module.run_launches = chosen
        try:
            found[kernel] = clock(lambda: bench.fused(backend, affine))[0]
        finally:
            module.run_launches = run
    return found


def errors(bench: Bench, backend: Any, affine: Any) -> tuple[float, float]:
    """Largest differences from float32 over its largest value: fused, apart in the dtype. On the
    first slice's frames, for float32's memory."""
    import torch

    source, (a, b) = next(iter(bench.calls()))
    add = bench.added[a].clone(memory_format=torch.preserve_format) if bench.added else None
    out, _ = backend.convolve(
        bench.layer, source, (a, b), affine=affine, add=add, moments=bench.shape.moments
    )
    x = torch.cat([t.float() for t in source.tensors], 2)
    p, s = bench.shape.kernel // 2, bench.shape
    if affine is not None:
        factor, summand = (v.view(1, -1, 1, 1, 1) for v in affine)
        x = torch.nn.functional.silu(x * factor + summand)
    weight, bias = bench.module.weight, bench.module.bias

    def rest(y: Any, dtype: Any) -> Any:
        plain = Bench.__new__(Bench)
        plain.shape = Shape(**(asdict(s) | {"norm": False}))
        made = plain.apart(y.to(dtype), weight.to(dtype), bias.to(dtype), None)[:, :, a:b]
        kept = bench.residual[:, :, a:b].to(dtype) if bench.residual is not None else 0
        return made + kept

    del p
    exact = rest(x, torch.float32)
    most = exact.abs().amax()
    plain = rest(x, bench.dtype).float()
    return float((out.float() - exact).abs().amax() / most), float(
        (plain - exact).abs().amax() / most
    )


def measure(shape: Shape, options: Any, machine: Any) -> dict[str, Any]:
    """One line's figures."""
    import torch

    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    clock = Clock(device, options.times)
    bench = Bench(shape, dtype, device)
    backend = make_backend(device, machine)
    affine = bench.affine()
    bench.make_residuals()
    wrong = errors(bench, backend, affine)
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    fused, host = clock(lambda: bench.fused(backend, affine))
    peak = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else 0
    found: dict[str, Any] = {
        "name": shape.name, "count": shape.count, "fused": fused, "host": host, "peak": peak,
        "error": wrong[0], "error_apart": wrong[1], "delegated": backend.delegated,
        "parts": parts_of(bench, backend, affine, clock),
    }  # fmt: skip
    if not options.no_apart:
        x = torch.cat(bench.source, 2).contiguous()
        bench.source, bench.added = [], {}
        weight, bias = bench.module.weight, bench.module.bias
        found["apart"] = clock(lambda: bench.apart(x, weight, bias, bench.residual))[0]
        del x
        t, h, w = shape.out
        p = shape.kernel // 2
        padded = bench.random(1, shape.channels, t + 2 * p, h + 2 * p, w + 2 * p)
        found["conv"] = clock(lambda: torch.nn.functional.conv3d(padded, weight, bias))[0]
    return found


def machine_of(options: Any, **fields: Any) -> Any:
    """The Machine of the device, its settings replaced."""
    import torch

    from hy3d_rocm.conv.triton import launch as tier
    from hy3d_rocm.conv.triton.work import Target

    if options.device == "cpu":
        return Target("gfx1100", 4, **fields)
    target = tier.target_of(torch.device("cuda", torch.cuda.current_device()))
    return Target(target.arch, target.units, target.tf32, **fields)


def make_backend(device: Any, machine: Any) -> Any:
    from hy3d_rocm.decoding.backends.triton.backend import TritonBackend

    class Plain:
        def of(self, module: Any, name: str) -> Any:
            return getattr(module, name, None)

    return TritonBackend(Plain(), device, machine)


def line(found: dict[str, Any], shape: Shape, itemsize: int) -> str:
    written, done = operations(shape)
    ms, parts = found["fused"], found["parts"]
    shown = (
        f"{shape.name:12} x{shape.count} {ms:8.3f} ms fused "
        f"(load {parts['load_rows']:.3f} conv {parts['conv_rows']:.3f} "
        f"moments {parts['combine_moments']:.3f}; host {found['host']:.2f})"
    )
    if "apart" in found:
        shown += (
            f" apart {found['apart']:.2f} ({ms / found['apart']:.2f}x) conv {found['conv']:.2f}"
            f" ({parts['conv_rows'] / found['conv']:.2f}x)"
        )
    return shown + (
        f" {moved(shape, itemsize) / ms / 1e6:.0f} GB/s {written / ms / 1e9:.0f} TFLOP/s"
        f" (kernel, done {done / parts['conv_rows'] / 1e9:.0f})"
        f" error {found['error']:.1e} ({found['error_apart']:.1e})"
        f" peak {found['peak'] / 2**20:.0f} MiB {found['delegated'] or ''}"
    )


def free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def sweep(shape: Shape, options: Any) -> None:
    """Tiles, then box sizes with the best tile, on one layer."""
    import torch

    from hy3d_rocm.conv.triton.configs import Config
    from hy3d_rocm.conv.triton.work import ROWS_BYTES

    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    bench, clock = Bench(shape, dtype, device), Clock(device, 2)
    affine = bench.affine()
    bench.make_residuals()
    best: tuple[float, str] = (float("inf"), TILES[0])

    def tried(tile: str, rows: int) -> float:
        try:
            machine = machine_of(options, rows_bytes=rows, tile=Config.parse(tile))
            backend = make_backend(device, machine)
            ms = clock(lambda: bench.fused(backend, affine))[0]
            parts = parts_of(bench, backend, affine, clock)
        except Exception as error:  # noqa: BLE001 - told, and the next one is tried
            words = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"  {shape.name} {tile} FAILED {words}", flush=True)
            return float("inf")
        words = " ".join(f"{kernel} {part:.3f}" for kernel, part in parts.items())
        print(
            f"  {shape.name} {tile} rows {rows >> 20} MiB: {ms:.3f} ms {words}",
            flush=True,
        )
        return ms

    for tile in TILES:
        best = min(best, (tried(tile, ROWS_BYTES), tile))
    for mib in ROWS_MIB:
        tried(best[1], mib << 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--divide", type=int, default=1, help="smaller layers, to try it")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="names of layers")
    parser.add_argument("--no-apart", action="store_true", help="only the fused backend")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    if options.device == "cpu":
        from triton_device import Watch

        Watch("cpu")
    machine = machine_of(options)
    shapes = [s for s in LAYERS if not options.only or s.name in options.only]
    if options.divide > 1:
        shapes = [divided(shape, options.divide) for shape in shapes]
    rows, itemsize = [], getattr(torch, options.dtype).itemsize
    start = time.perf_counter()
    with torch.inference_mode():
        for shape in shapes:
            try:
                found = measure(shape, options, machine)
                print(line(found, shape, itemsize), flush=True)
                rows.append(found)
            except Exception as error:  # noqa: BLE001 - told, and the next layer is measured
                print(f"{shape.name:12} FAILED {type(error).__name__}: {error}", flush=True)
            free()
        total = {key: sum(r[key] * r["count"] for r in rows if key in r)
                 for key in ("fused", "host", "apart", "conv")}  # fmt: skip
        for kernel in ("load_rows", "conv_rows", "combine_moments"):
            total[kernel] = sum(r["parts"][kernel] * r["count"] for r in rows)
        words = ", ".join(f"{key} {ms:.1f} ms" for key, ms in total.items())
        print(f"all layers as often as they occur: {words}; {len(shapes) - len(rows)} failed;"
              f" {time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
        for shape in shapes if options.sweep else ():
            if shape.name in SWEPT:
                sweep(shape, options)
                free()
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "total": total}, indent=1))
    return 0 if len(rows) == len(shapes) else 1


if __name__ == "__main__":
    sys.exit(main())
