"""Fits the constants of csrc/conv3d/winograd_cost.c on this machine.

    python tests/bench/fit_winograd_cost.py [--level avx512] [--count 8] [--max-gflop 60]

Every 3x3 layer with at least 16 channels of two video VAEs is computed with each kind of Winograd,
with the blocks that the cost model chose and with random ones, one thread, calling thread's clock;
then the terms of the model are weighted so that the squared relative errors are smallest
(non-negative). A cycle is what 64 operations take at the measured peak of the moment (32 at AVX2).
Prints the constants that fit, those that are checked in, how well either predicts, and what the
chosen blocks lose against the best ones measured (of two runs each: on a busy machine one loss may
be noise). Nothing is written: constants are taken over by hand, when they predict better.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests" / "bench") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests" / "bench"))

from c_program import build  # noqa: E402

LAYERS = ROOT / "tests" / "shapes" / "video_vae_layers.json"
SETS = ("hunyuan_video_9x160x160", "wan21_9x160x160")
TERMS = ("product", "data", "weight", "filter")
GOOD_BYTES = 12e6  # as in winograd_cost.c, with the two below
GRAIN, SLOWER = 3000.0, 0.03
COLUMNS = ("format", "prepared", "chosen", *TERMS, "rounds", "bytes", "ns", "peak")


def layers(max_gflop: float) -> list[tuple[int, ...]]:
    """(in, out, kT, batch, T, H, W) of each distinct layer, padding included."""
    data = json.loads(LAYERS.read_text(encoding="utf-8"))
    found = set()
    for name in SETS:
        for layer in data[name]["layers"]:
            weight, x = layer["weight"], layer["input"]
            if len(weight) == 4:
                weight, x = [*weight[:2], 1, *weight[2:]], [*x[:2], 1, *x[2:]]
            padding = ([0] * 3 + list(layer["padding"]))[-3:]
            size = [n + 2 * p for n, p in zip(x[2:], padding, strict=True)]
            plain = set(layer["stride"]) == set(layer["dilation"]) == {1} and layer["groups"] == 1
            gflop = layer["gflop"] / layer["count"]
            if plain and weight[3:] == [3, 3] and min(weight[:2]) >= 16 and gflop <= max_gflop:
                found.add((weight[1], weight[0], weight[2], x[0], *size))
    return sorted(found)


def measured(program: Path, level: str, count: int, max_gflop: float) -> dict[str, np.ndarray]:
    """Columns, a row a measurement; "layer" is the layer's index."""
    rows: list[list[float]] = []
    todo = layers(max_gflop)
    for index, layer in enumerate(todo):
        print(f"layer {index + 1} of {len(todo)}: {layer}", file=sys.stderr)
        arguments = [str(program), level, *map(str, layer), str(count), str(index)]
        out = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
        rows += [[index, *map(float, line.split())] for line in out.splitlines()]
    table = np.array(rows)
    return {name: table[:, i] for i, name in enumerate(("layer", *COLUMNS))}


def fixed(rows: dict[str, np.ndarray]) -> np.ndarray:
    """By how much the model lengthens large blocks."""
    return 1.0 + SLOWER * np.maximum(0.0, rows["bytes"] / GOOD_BYTES - 1.0)


def predicted(rows: dict[str, np.ndarray], constants: np.ndarray) -> np.ndarray:
    work = np.stack([rows[name] for name in TERMS], axis=1)
    return (work @ constants + GRAIN * rows["rounds"]) * fixed(rows)


def fit(rows: dict[str, np.ndarray], cycles: np.ndarray) -> np.ndarray:
    """Non-negative least squares of relative errors: terms that come out negative are left out."""
    factor = fixed(rows) / cycles
    work = np.stack([rows[name] for name in TERMS], axis=1) * factor[:, None]
    wanted = 1.0 - GRAIN * rows["rounds"] * factor
    kept = list(range(len(TERMS)))
    while True:
        solution = np.linalg.lstsq(work[:, kept], wanted, rcond=None)[0]
        if (solution >= 0).all():
            constants = np.zeros(len(TERMS))
            constants[kept] = solution
            return constants
        kept = [k for k, value in zip(kept, solution, strict=True) if value >= 0]


def checked_in(level: str) -> dict[str, float]:
    text = (ROOT / "csrc" / "conv3d" / "winograd_cost.c").read_text(encoding="utf-8")
    entry = re.search(rf"case HY3D_CPU_{level.upper()}:.*?\{{(.*?)\}}", text, re.S)
    assert entry is not None, level
    return {n: float(v) for n, v in re.findall(r"\.(\w+) = ([\d.]+)", entry[1])}


def lost(rows: dict[str, np.ndarray], cycles: np.ndarray) -> np.ndarray:
    """Of each layer, kind and way of weights: what the chosen blocks take over the best ones."""
    keys = np.stack([rows[n] for n in ("layer", "format", "prepared")], axis=1)
    found = []
    for key in np.unique(keys, axis=0):
        same = (keys == key).all(axis=1)
        chosen = cycles[same & (rows["chosen"] == 1)]
        found.append(chosen.min() / cycles[same].min() - 1.0)
    return np.array(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--level", choices=("avx512", "avx2", "ref"), default="avx512")
    parser.add_argument("--count", type=int, default=8, help="random blocks a layer and kind")
    parser.add_argument("--max-gflop", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(
            build("winograd_sweep", Path(folder)),
            arguments.level,
            arguments.count,
            arguments.max_gflop,
        )
    per_cycle = {"avx512": 64.0, "avx2": 32.0, "ref": 8.0}[arguments.level]
    cycles = rows["ns"] / (rows["peak"] * per_cycle / 64.0)
    winograd = rows["format"] > 0
    some = {name: values[winograd] for name, values in rows.items()}
    now = checked_in(arguments.level)
    new = fit(some, cycles[winograd])
    direct = np.median(cycles[~winograd] / rows["product"][~winograd])
    print(f"{winograd.sum()} measurements of {len(np.unique(rows['layer']))} layers")
    print(
        f"{'':12}"
        + "".join(f"{n:>9}" for n in (*TERMS, "direct"))
        + "   relative error: median  90 %"
    )
    for name, constants, last in (
        ("checked in", np.array([now[n] for n in TERMS]), now["direct"]),
        ("fitted", new, direct),
    ):
        error = np.abs(predicted(some, constants) / cycles[winograd] - 1.0)
        numbers = "".join(f"{c:9.2f}" for c in (*constants, last))
        print(f"{name:12}{numbers}{np.median(error):25.1%}{np.quantile(error, 0.9):6.1%}")
    loss = lost(some, cycles[winograd])
    print(f"chosen blocks against the best measured: {loss.mean():.1%} slower on average, "
          f"worst {loss.max():.1%} ({len(loss)} layers, kinds and ways of weights)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
