"""The C convolution against torch on random configurations, at each CPU level.

    python tests/long/differential_conv3d.py --count 20000 --real 2000 [--seed 1] [--levels avx2]

Integer data whose sums stay below 2^24 is exact in every type, so the number of differing values
must be 0; real-valued data must stay within the bound proven in docs/numerics.md. torch computes
in float64 on explicitly padded input, so neither its padding nor its rounding of 16-bit types is
part of the comparison; every fourth configuration also checks the C reference. Each level runs in
a child process (HY3D_CPU). A failure prints the configuration; --seed, --first and --count 1
replay it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

LEVELS = ("ref", "avx2", "avx512")
LAYOUTS = ("plain", "last", "steps", "expanded", "reversed", "permuted")
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-24, "bfloat16": 2.0**-24}
# Unit roundoff and half the smallest spacing of the types that a sum is rounded to in the end.
FINAL = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


@dataclasses.dataclass(frozen=True)
class Config:
    """One convolution; triples are (T, H, W)."""

    index: int
    dtype: str
    batch: int
    channels: tuple[int, int]  # of one group: in, out
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    modes: tuple[str, ...]
    bias: bool
    layouts: tuple[str, str, str]  # of x, weight, out
    threads: int


def triple(rng: random.Random, values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rng.choice(values) for _ in range(3))


def random_config(seed: int, index: int) -> Config:
    """The index-th configuration of a seed, independent of all others."""
    rng = random.Random(f"{seed}/{index}")
    kernel = triple(rng, (1, 1, 2, 3, 3, 4))
    dilation = triple(rng, (1, 1, 1, 2, 5))
    before, after = triple(rng, (0, 0, 1, 2, 3)), triple(rng, (0, 0, 1, 2, 3))
    stride = triple(rng, (1, 1, 1, 2, 3, 60))
    room = triple(rng, (0, 1, 2, 5, 9, 17))
    size = [
        max(1, (k - 1) * d + 1 - b - a) + r
        for k, d, b, a, r in zip(kernel, dilation, before, after, room, strict=True)
    ]
    channels = (rng.choice((1, 2, 3, 7, 16, 33)), rng.choice((1, 2, 3, 5, 8, 12, 29)))
    if rng.random() < 0.02:  # rows that are cut into columns
        size[rng.choice((1, 2))] += rng.randint(600, 1400)
        channels = (1, rng.choice((1, 9)))
    if rng.random() < 0.15:  # one tap in height and width, a way of its own
        kernel, stride = (kernel[0], 1, 1), (stride[0], 1, 1)
        before, after = (before[0], 0, 0), (after[0], 0, 0)
        size[1:] = [rng.randint(1, 40), rng.randint(1, 40)]
        channels = (rng.randint(1, 70), rng.randint(1, 40))
    batch = rng.choice((0, 1, 1, 1, 1, 1, 2, 3))
    return Config(
        index=index,
        dtype=rng.choice(("float32", "float32", "float64", "float16", "bfloat16")),
        batch=batch,
        channels=channels,
        groups=rng.choice((1, 1, 1, 2, 5)),
        size=tuple(size),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        before=before,
        after=after,
        modes=tuple(rng.choice(("zeros", "replicate")) for _ in range(3)),
        bias=rng.random() < 0.5,
        layouts=(rng.choice(LAYOUTS), rng.choice(LAYOUTS), rng.choice(LAYOUTS[:3])),
        threads=rng.choice((0, 1, 2)),
    )


def laid_out(values: Any, layout: str) -> Any:
    """The same values (expanded: the first row of them) as another kind of view."""
    import torch

    if layout == "last":
        return values.contiguous(memory_format=torch.channels_last_3d)
    if layout == "steps":
        wide = torch.zeros([2 * n for n in values.shape], dtype=values.dtype)
        wide[1::2, ::2, 1::2, ::2, ::2] = values
        return wide[1::2, ::2, 1::2, ::2, ::2]
    if layout == "expanded":
        return values[:, :, :, :1].expand(values.shape)
    if layout == "permuted":
        return values.permute(4, 2, 0, 1, 3).contiguous().permute(2, 3, 1, 4, 0)
    if layout == "reversed" and values.dtype != torch.bfloat16:
        return values.flip(3, 4).contiguous().numpy()[:, :, :, ::-1, ::-1]
    return values.contiguous()


def widened(*views: Any) -> list[Any]:
    """The same values as float64 tensors of torch, None where there is none."""
    import torch

    return [
        None
        if v is None
        else (v if isinstance(v, torch.Tensor) else torch.from_numpy(v.copy())).double()
        for v in views
    ]


def make_tensors(config: Config, seed: int, real: bool) -> tuple[Any, Any, Any]:
    """x, weight, bias: integers in -3 .. 3 (every sum is below 2^24), or reals in (-1, 1)."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + config.index)
    dtype = getattr(torch, config.dtype)

    def values(*shape: int) -> Any:
        if real:
            # In float64, so that f64's values have all their bits: sums of shorter ones are exact.
            return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).to(dtype)
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)

    c_in, c_out = config.channels
    x = values(config.batch, c_in * config.groups, *config.size)
    weight = values(c_out * config.groups, c_in, *config.kernel)
    bias = values(c_out * config.groups) if config.bias else None
    return laid_out(x, config.layouts[0]), laid_out(weight, config.layouts[1]), bias


def expected(config: Config, x: Any, weight: Any, bias: Any) -> Any:
    """torch's answer in float64; None for an empty batch, which torch can't pad."""
    import torch
    import torch.nn.functional as functional

    padded = x
    for axis in range(3):
        pad = [0] * 6
        pad[2 * (2 - axis)], pad[2 * (2 - axis) + 1] = config.before[axis], config.after[axis]
        mode = "replicate" if config.modes[axis] == "replicate" else "constant"
        padded = functional.pad(padded, pad, mode=mode)
    with torch.backends.mkldnn.flags(enabled=False):
        return functional.conv3d(
            padded, weight, bias, config.stride, 0, config.dilation, config.groups
        )


def output(config: Config) -> Any:
    import torch

    from hy3d_rocm import _core

    size = _core.conv3d_out_size(
        config.size, config.kernel, config.stride, config.dilation, config.before, config.after
    )
    shape = (config.batch, config.channels[1] * config.groups, *size)
    dtype = getattr(torch, config.dtype)
    return laid_out(torch.full(shape, float("nan"), dtype=dtype), config.layouts[2])


def compute(config: Config, x: Any, weight: Any, bias: Any, reference: bool = False) -> Any:
    from hy3d_rocm import _core

    out = output(config)
    shared = (x, weight, bias, out, config.stride, config.dilation, config.before, config.after,
              config.modes, config.groups)  # fmt: skip
    if reference:
        from conv_reference import conv3d_reference

        conv3d_reference(*shared)
    else:
        _core.conv3d(*shared, config.threads)
    return out


def differing_values(config: Config, seed: int) -> tuple[int, int]:
    """Differing and compared values of one integer configuration."""
    x, weight, bias = make_tensors(config, seed, real=False)
    got = [compute(config, x, weight, bias)]
    if config.index % 4 == 0:
        got.append(compute(config, x, weight, bias, reference=True))
    if config.batch == 0:
        return 0, 0
    wide = widened(x, weight, bias)
    wanted = expected(config, *wide).to(got[0].dtype)
    # ne is also true for NaN.
    return sum(int((wanted != g).sum()) for g in got), wanted.numel() * len(got)


def fraction_of_bound(config: Config, seed: int) -> float:
    """The largest error of one real-valued configuration over its bound (docs/numerics.md)."""
    x, weight, bias = make_tensors(config, seed, real=True)
    got = compute(config, x, weight, bias).double()
    if config.batch == 0:
        return 0.0
    wide = widened(x, weight, bias)
    exact = expected(config, *wide)
    sizes = expected(config, *(None if t is None else t.abs() for t in wide))
    n = config.channels[0] * config.kernel[0] * config.kernel[1] * config.kernel[2] + 1
    u = UNIT[config.dtype]
    # The second term is torch's own error in float64, by the same bound.
    bound = (n * u / (1 - n * u) + n * 2.0**-53 / (1 - n * 2.0**-53)) * sizes
    if config.dtype in FINAL:
        unit, tiny = FINAL[config.dtype]
        bound = bound + unit * (exact.abs() + bound) + tiny
    error = (got - exact).abs()
    ratio = (error / bound).masked_fill((error == 0) & (bound == 0), 0.0)
    return float(ratio.nan_to_num(nan=float("inf")).max())


def run_level(seed: int, first: int, count: int, real: int) -> dict[str, Any]:
    """Both comparisons at the level of this process."""
    import torch

    from hy3d_rocm import _core

    torch.set_num_threads(1)
    start = time.perf_counter()
    result: dict[str, Any] = {"level": _core.cpu_info()["level"], "configurations": count,
                              "differing": 0, "compared": 0, "real": real, "worst_of_bound": 0.0,
                              "failed": []}  # fmt: skip
    for index in range(first, first + count):
        config = random_config(seed, index)
        differing, compared = differing_values(config, seed)
        result["differing"] += differing
        result["compared"] += compared
        if differing and len(result["failed"]) < 5:
            result["failed"].append(f"{differing} of {compared} values differ: {config}")
    for index in range(first, first + real):
        config = random_config(seed, index)
        fraction = fraction_of_bound(config, seed)
        result["worst_of_bound"] = max(result["worst_of_bound"], fraction)
        if fraction > 1 and len(result["failed"]) < 5:
            result["failed"].append(f"{fraction:.3g} of the bound: {config}")
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result


def spawn_level(level: str, seed: int, first: int, count: int, real: int) -> dict[str, Any]:
    """run_level in a child process at a level; raises RuntimeError where the child failed."""
    command = [sys.executable, __file__, "--child", "--seed", str(seed), "--first", str(first),
               "--count", str(count), "--real", str(real)]  # fmt: skip
    environment = {**os.environ, "HY3D_CPU": level}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise RuntimeError(f"level {level}: exit {child.returncode}\n{child.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def spawn_levels(
    levels: list[str], seed: int, first: int, count: int, real: int
) -> dict[str, dict[str, Any]]:
    """run_level at each level, in processes forked from one that has imported torch, which takes as
    long as 100 configurations. A level whose process failed has no result: spawn_level says why."""
    command = [sys.executable, __file__, "--forks", *levels, "--seed", str(seed), "--first",
               str(first), "--count", str(count), "--real", str(real)]  # fmt: skip
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    results = map(json.loads, child.stdout.splitlines())
    return {result["level"]: result for result in results}


def fork_levels(levels: list[str], seed: int, first: int, count: int, real: int) -> None:
    import torch  # noqa: F401

    for level in levels:
        pid = os.fork()
        if pid == 0:
            os.environ["HY3D_CPU"] = level  # read when the core is first asked
            print(json.dumps(run_level(seed, first, count, real)), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20000, help="integer configurations a level")
    parser.add_argument("--real", type=int, default=2000, help="real-valued ones a level")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first configuration")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--forks", nargs="+", choices=LEVELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.forks:
        fork_levels(options.forks, options.seed, options.first, options.count, options.real)
        return 0
    if options.child:
        print(json.dumps(run_level(options.seed, options.first, options.count, options.real)))
        return 0
    bad = 0
    for level in options.levels:
        result = spawn_level(level, options.seed, options.first, options.count, options.real)
        print(
            f"{level} (ran {result['level']}): {result['configurations']} configurations, "
            f"{result['differing']} of {result['compared']} values differ; {result['real']} "
            f"real-valued, worst error {result['worst_of_bound']:.3f} of the bound; "
            f"{result['seconds']} s"
        )
        for line in result["failed"]:
            print("  FAILED", f"(--seed {options.seed})", line)
        bad += len(result["failed"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
