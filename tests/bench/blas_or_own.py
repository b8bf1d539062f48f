"""Own code beside the BLAS library's, side by side: layers, and Winograd's products.

    python tests/bench/blas_or_own.py [--level avx512] [--types f32 f64] [--kernel thin|3x3|any]
        [--threads 1] [--seconds 2] [--max-gflop 16]
    python tests/bench/blas_or_own.py --winograd [--level avx512]

Layers of tests/shapes, accuracy "exact", each once; of one beyond --max-gflop, fewer frames (the
same rows, columns and channels). The strategy that the library chooses, then, over its time in the
same round (above 1: faster than the choice):

    panel   the `panel` strategy in its place: BLAS on x and y where they lie, else packed panels
    whole   cblas on all of x at once, a call for each tap of time, whose weights lie apart
            already: more than a strategy can do, as it is one grain. 1x1x1 and 3x1x1 in f32, f64
    again   the choice once more: what is noise

`--winograd`: a point's product with the blocks that the cost model chooses, own kernel and operands
against one cblas_sgemm of plain matrices (`one`), and against calls small enough for OpenBLAS's
path without packing (`small`, 10^6 products at most).

Medians over the rounds, in which all take turns; in brackets the middle half of the ratios. The
peak is what chains of f32 multiply-adds in registers reach in the same rounds, half of that for
f64.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "bench")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from c_program import build  # noqa: E402

LAYERS = ROOT / "tests" / "shapes" / "video_vae_layers.json"
VENDORED = ROOT / "hy3d_rocm" / "_vendor" / "libhy3d_openblas.so"
CORE_TYPES = {"avx512": None, "avx2": "Haswell", "ref": "Prescott"}
Layer = tuple[int, ...]  # in, out, kT, kH, kW, stride, T, H, W, padding included


def layers(kernel: str, most: float) -> list[Layer]:
    found = set()
    for entry in json.loads(LAYERS.read_text(encoding="utf-8")).values():
        for layer in entry["layers"]:
            weight, x = layer["weight"], layer["input"]
            if len(weight) == 4:
                weight, x = [*weight[:2], 1, *weight[2:]], [*x[:2], 1, *x[2:]]
            padding, stride = ([0] * 3 + list(layer["padding"]))[-3:], layer["stride"][-1]
            is_thin = weight[3:] == [1, 1]
            plain = set(layer["dilation"]) == {1} and layer["groups"] == 1
            if not plain or kernel not in ("any", "thin" if is_thin else "3x3"):
                continue
            size = [n + 2 * p for n, p in zip(x[2:], padding, strict=True)]
            rows, columns = ((n - k) // stride + 1
                             for n, k in zip(size[1:], weight[3:], strict=True))  # fmt: skip
            a_frame = 2e-9 * math.prod(weight) * rows * columns
            frames = min(size[0] - weight[2] + 1, max(1, int(most / a_frame)))
            found.add(
                (weight[1], weight[0], *weight[2:], stride, frames + weight[2] - 1, *size[1:])
            )
    return sorted(found, key=lambda n: (n[2:5], n[:2], n[5:]))


def run(program: Path, level: str, words: list[str]) -> dict[str, tuple[float, np.ndarray]]:
    """Operations and nanoseconds of each round by contender, the choice first."""
    environment = dict(os.environ)
    core = CORE_TYPES[level]
    if core:
        environment["OPENBLAS_CORETYPE"] = core
    if VENDORED.exists():
        environment.setdefault("HY3D_BLAS_LIBRARY", str(VENDORED))
    out = subprocess.run([str(program), *words], check=True, capture_output=True, text=True,
                         env=environment).stdout  # fmt: skip
    rows = [line.split() for line in out.splitlines()]
    return {row[0]: (float(row[1]), np.array(row[2:], dtype=float)) for row in rows}


def ratio(above: np.ndarray, below: np.ndarray) -> str:
    low, middle, high = np.quantile(above / below, (0.25, 0.5, 0.75))
    return f"{middle:.2f} [{low:.2f} {high:.2f}]"


def cells(found: dict[str, tuple[float, np.ndarray]], columns: list[str], peak: float) -> list[str]:
    """GFLOP/s and share of the peak of the choice, then the others' ratios."""
    first = next(iter(found))
    operations, ns = found[first]
    top = found["peak"][0] / np.median(found["peak"][1]) * peak
    speed = operations / np.median(ns)
    row = [f"{speed:.0f}", f"{speed / top:.0%}"]
    for column in columns:
        names = [n for n in found if n != first and (n.startswith(column) or n.endswith(column))]
        row.append(ratio(ns, found[names[0]][1]) if names else "-")
    return [*row, str(len(ns))]


def layer_rows(program: Path, given: argparse.Namespace) -> Iterator[list[str]]:
    columns = ["panel-", "whole", "again"]
    yield ["layer", "type", "choice", "GFLOP/s", "of peak", "panel", "whole", "again", "rounds"]
    for layer in layers(given.kernel, given.max_gflop):
        inputs, outputs, *kernel, stride, frames, height, width = layer
        name = f"{inputs} -> {outputs}, {'x'.join(map(str, kernel))}"
        name += f" / {stride}" if stride > 1 else ""
        for word in given.types:
            words = ["layer", given.level, word, *map(str, layer), str(given.threads)]
            found = run(program, given.level, [*words, str(given.seconds)])
            peak = given.threads * (0.5 if word == "f64" else 1.0)
            # A choice that is `panel` itself has no other panel beside it.
            others = columns if not next(iter(found)).startswith("panel") else ["-", *columns[1:]]
            yield [f"{name}, {frames}x{height}x{width}", word, next(iter(found)),
                   *cells(found, others, peak)]  # fmt: skip


def product_rows(program: Path, given: argparse.Namespace) -> Iterator[list[str]]:
    yield ["layer", "product", "GFLOP/s", "of peak", "one", "small", "again", "rounds"]
    for layer in layers("3x3", given.max_gflop):
        inputs, outputs, taps, _, _, stride, *size = layer
        if stride > 1:
            continue
        words = ["winograd", given.level, *map(str, (inputs, outputs, taps, *size))]
        found = run(program, given.level, [*words, str(given.seconds)])
        if found:
            yield [f"{inputs} -> {outputs}, {taps}x3x3, {'x'.join(map(str, size))}",
                   next(iter(found)), *cells(found, ["one", "small", "again"], 1.0)]  # fmt: skip


def blas_text() -> str:
    try:
        ctypes.CDLL(str(VENDORED))
    except OSError:
        return "BLAS: as found"
    return f"BLAS: {(VENDORED.parent / 'VERSION').read_text(encoding='utf-8').strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--level", choices=tuple(CORE_TYPES), default="avx512")
    parser.add_argument("--types", nargs="+", default=["f32", "f64"],
                        choices=("f32", "f64", "f16", "bf16"))  # fmt: skip
    parser.add_argument("--kernel", choices=("thin", "3x3", "any"), default="thin")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each layer")
    parser.add_argument("--max-gflop", type=float, default=16.0)
    parser.add_argument("--winograd", action="store_true")
    given = parser.parse_args()
    print(f"{given.level}, {given.threads} thread(s), {blas_text()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        program = build("blas_or_own", Path(folder))
        for row in (product_rows if given.winograd else layer_rows)(program, given):
            print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
