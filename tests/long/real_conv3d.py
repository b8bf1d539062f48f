"""The C convolution on real values: what share of the proven bound it uses, and torch's share.

    python tests/long/real_conv3d.py --count 20000 [--jobs N] [--seed 1] [--first 0]
                                       [--levels ref avx2 avx512]

Random configurations of every type, accuracy and CPU level against an exact result, held to the
bound of docs/numerics.md; torch's own convolution of the same type is measured with the same bound,
which nobody promised for it. The exact result: torch's float64 for f32, f16 and bf16 (its own error
is added to the bound); for f64 nine convolutions of whole numbers below 2^53, put together in
long double. Configuration i runs at level i modulo the number of levels, chunks of them in
processes of their own. The closing line has a pair of shares for each type and accuracy; f16's and
bf16's come near 1 because the bound ends with half a unit of the rounding that every result has.
Exit status 1 where a share of ours is above 1; --seed, --first, --count 1 and --levels replay one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

import differential_conv3d as differential
import winograd_points as points

ONE = (1, 1, 1)
FAST_EVERY = 4  # of so many configurations one asks for accuracy "fast"
HALVES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def fast_config(seed: int, index: int) -> differential.Config:
    """A 3x3 convolution large enough that the cost model may take Winograd."""
    rng = random.Random(f"fast/{seed}/{index}")
    taps = rng.choice((1, 2, 3, 3))
    size = (taps + rng.randint(0, 3), rng.randint(10, 30), rng.randint(10, 30))
    base = differential.random_config(seed, index)
    return dataclasses.replace(
        base,
        dtype=rng.choice(("float32", "float16", "bfloat16")),
        batch=1,
        channels=(rng.randint(16, 64), rng.randint(16, 64)),
        groups=1,
        size=size,
        kernel=(taps, 3, 3),
        stride=ONE,
        dilation=ONE,
        before=(rng.randint(0, 2), rng.randint(0, 1), rng.randint(0, 1)),
        after=(0, rng.randint(0, 1), rng.randint(0, 1)),
    )


def config_of(seed: int, index: int) -> tuple[differential.Config, str]:
    """The index-th configuration and its accuracy."""
    if index % FAST_EVERY == FAST_EVERY - 1:
        return fast_config(seed, index), "fast"
    config = differential.random_config(seed, index)
    return dataclasses.replace(config, batch=max(1, config.batch)), "exact"


def winograd_of(config: differential.Config) -> tuple[int, int]:
    """(m, frames at once) of the kind that "fast" takes here; (0, 0) for the direct way."""
    from hy3d_rocm import _core

    number, name, _ = _core.conv3d_format(
        config.size, config.channels[0], config.channels[1], config.kernel, ONE, ONE,
        config.before, config.after, config.modes, 1, HALVES[config.dtype], "fast",
    )  # fmt: skip
    return (0, 0) if number == 0 else points.sizes_of(name)


def padded(config: differential.Config, x: Any) -> Any:
    import torch.nn.functional as functional

    for axis in range(3):
        pad = [0] * 6
        pad[2 * (2 - axis)], pad[2 * (2 - axis) + 1] = config.before[axis], config.after[axis]
        x = functional.pad(
            x, pad, mode="replicate" if config.modes[axis] == "replicate" else "constant"
        )
    return x


def limbs(values: Any) -> list[Any]:
    """Three tensors of whole numbers below 2^18: values * 2^53 = the first + 2^18 the second ..."""
    import torch

    whole = torch.ldexp(values, torch.tensor(53.0, dtype=values.dtype))
    parts = []
    for _ in range(2):
        low = torch.fmod(whole, 2.0**18)
        parts.append(low)
        whole = (whole - low) / 2.0**18
    return [*parts, whole]


def exact_f64(config: differential.Config, x: Any, weight: Any, bias: Any) -> Any:
    """The result in long double, within 2^-60 of the magnitudes: sums of limbs are exact."""
    import numpy as np

    total: Any = np.longdouble(0.0)
    for i, part in enumerate(limbs(x)):
        for j, other in enumerate(limbs(weight)):
            y = differential.expected(config, part, other, None)
            total = total + np.ldexp(y.numpy().astype(np.longdouble), 18 * (i + j) - 106)
    if bias is not None:
        total = total + bias.numpy().astype(np.longdouble)[None, :, None, None, None]
    return total


def thinned(config: differential.Config, weight: Any) -> Any:
    """About three of an output channel's weights: with all of them Winograd's bound, which is made
    of the largest values, is so far above the errors that a wrong element would hide in it."""
    import torch

    generator = torch.Generator().manual_seed(config.index)
    (wide,) = differential.widened(weight)
    keep = torch.rand(wide.shape, generator=generator) * wide[0].numel() < 3
    return (wide * keep).to(getattr(torch, config.dtype))


def share(got: Any, exact: Any, bound: Any) -> float:
    """The largest error over its bound; no error is no share, NaN is infinitely much."""
    import numpy as np

    error = np.abs(got - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.nan_to_num(ratio, nan=np.inf).max())


def bound_of(
    config: differential.Config, kind: tuple[int, int], wide: list[Any], exact: Any
) -> Any:
    """docs/numerics.md, for every element of the result."""
    x, weight, bias = wide
    unit = differential.UNIT[config.dtype]
    n = config.channels[0] * config.kernel[0] * config.kernel[1] * config.kernel[2] + 1
    if kind[0] != 0:
        most = float(x.abs().max()) * float(weight.abs().sum((1, 2, 3, 4)).max())
        factor = float(points.bound(*kind, config.channels[0], config.kernel[0]))
        bound = exact * 0 + (factor + 2.0**-40) * most
        if bias is not None:
            bound += 2 * unit * (1 + unit) * bias.abs().numpy()[None, :, None, None, None]
    else:
        sizes = differential.expected(config, *(None if t is None else t.abs() for t in wide))
        # The second term is the exact result's own error.
        own = 2.0**-60 if config.dtype == "float64" else n * 2.0**-53 / (1 - n * 2.0**-53)
        bound = (n * unit / (1 - n * unit) + own) * sizes.numpy()
    if config.dtype in differential.FINAL:
        last, tiny = differential.FINAL[config.dtype]
        bound = bound + last * (abs(exact) + bound) + tiny
    return bound


def measure(seed: int, index: int) -> tuple[str, float, float]:
    """Which row of the table, our share of the bound, torch's."""
    import torch.nn.functional as functional

    from hy3d_rocm import _core

    config, accuracy = config_of(seed, index)
    kind = winograd_of(config) if accuracy == "fast" else (0, 0)
    x, weight, bias = differential.make_tensors(config, seed, real=True)
    if kind[0] != 0 and index // FAST_EVERY % 3 != 0:
        weight = thinned(config, weight)
    out = differential.output(config)
    _core.conv3d(x, weight, bias, out, config.stride, config.dilation, config.before, config.after,
                 config.modes, config.groups, config.threads, accuracy=accuracy)  # fmt: skip
    wide = differential.widened(x, weight, bias)
    if config.dtype == "float64":
        exact = exact_f64(config, *wide)
    else:
        exact = differential.expected(config, *wide).numpy()
    bound = bound_of(config, kind, wide, exact)
    narrow = [None if t is None else t.to(out.dtype) for t in wide]
    theirs = functional.conv3d(
        padded(config, narrow[0]), narrow[1], narrow[2], config.stride, 0, config.dilation,
        config.groups,
    )  # fmt: skip
    name = "winograd" if kind[0] else "direct" if accuracy == "fast" else ""
    return (
        f"{config.dtype} {accuracy} {name}".strip(),
        share(out.double().numpy(), exact, bound),
        share(theirs.double().numpy(), exact, bound),
    )


def run_chunk(seed: int, indices: range) -> dict[str, Any]:
    """Rows of a chunk: configurations, our largest share, torch's; and what failed."""
    import torch

    torch.set_num_threads(1)
    rows: dict[str, list[float]] = {}
    failed: list[str] = []
    for index in indices:
        name, ours, theirs = measure(seed, index)
        row = rows.setdefault(name, [0, 0.0, 0.0])
        row[0], row[1], row[2] = row[0] + 1, max(row[1], ours), max(row[2], theirs)
        if not ours <= 1:
            failed.append(f"index {index}: {ours:.3g} of the bound: {config_of(seed, index)}")
    return {"rows": rows, "failed": failed}


def spawn(seed: int, level: str, indices: range) -> dict[str, Any]:
    """run_chunk in a child process at a level; a child that dies is a failure."""
    numbers = {"--seed": seed, "--first": indices.start, "--count": indices.stop,
               "--step": indices.step}  # fmt: skip
    words = [word for name, value in numbers.items() for word in (name, str(value))]
    command = [sys.executable, __file__, "--child", *words]
    environment = {**os.environ, "HY3D_CPU": level, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        return {"rows": {}, "failed": [f"{level}, {indices}: {child.stderr[-2000:]}"]}
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    result["failed"] = [f"{level}, {line}" for line in result["failed"]]
    return result


def chunks(options: argparse.Namespace) -> list[tuple[str, range]]:
    """About two a job, each of one level."""
    levels = options.levels
    end = options.first + options.count
    size = max(len(levels), options.count // (2 * options.jobs) // len(levels) * len(levels))
    return [
        (level, range(start + place, min(start + size * len(levels), end), len(levels)))
        for start in range(options.first, end, size * len(levels))
        for place, level in enumerate(levels)
        if start + place < end
    ]


def gather(options: argparse.Namespace) -> tuple[dict[str, list[float]], list[str]]:
    rows: dict[str, list[float]] = {}
    failed: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for part in pool.map(lambda c: spawn(options.seed, *c), chunks(options)):
            failed += part["failed"]
            for name, (count, ours, theirs) in part["rows"].items():
                row = rows.setdefault(name, [0, 0.0, 0.0])
                row[:] = [row[0] + count, max(row[1], ours), max(row[2], theirs)]
    return rows, failed


def main() -> int:
    from hy3d_rocm import _core

    available = list(_core.cpu_info()["levels"])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first configuration")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--levels", nargs="+", choices=differential.LEVELS, default=available)
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(run_chunk(options.seed, range(options.first, options.count, options.step)))
        )
        return 0
    start = time.perf_counter()
    rows, failed = gather(options)
    for name in sorted(rows):
        print(f"  {name:24} {rows[name][0]:6.0f} configurations")
    for line in failed[:8]:
        print("FAILED", f"(--seed {options.seed})", line)
    done = sum(row[0] for row in rows.values())
    shares = "; ".join(f"{name} {rows[name][1]:.3g} ({rows[name][2]:.3g})" for name in sorted(rows))
    print(f"real: {done:.0f} configurations at {len(options.levels)} levels, {len(failed)} beyond "
          f"the proven bound; largest share of it (torch's): {shares}; "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    return 0 if not failed and done == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
