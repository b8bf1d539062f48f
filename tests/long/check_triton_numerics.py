"""The Triton kernels on random convolutions, run by Triton's interpreter on the CPU.

    python tests/long/check_triton_numerics.py --count 500 [--seed 1] [--first 0] [--workers 2]

The product's own code does everything that it does on a GPU (rows, boxes, weights, splits,
launches) except that each kernel is interpreted. Each configuration is computed twice: small
integers, which must equal the C reference in every bit, and reals, which must stay within the bound
proven in docs/numerics.md against float64. Beside the values, each address is checked: a kernel may
only read and write inside the tensors that it was given; and whatever the product allocates starts
as NaN, so that nothing unwritten can pass unseen. Each process also computes with tensors that
reach beyond 2^31 elements.

    python tests/long/check_triton_numerics.py --count 40 --device gfx1100

does the same with the kernels compiled for that architecture, in tiles that are offered there, and
their machine code executed by the emulator (tools/dev/gfx): most of the time goes to compiling.

Not covered by the interpreter: what the compiler makes of the kernel (check_gfx.py), how the
hardware rounds inside a dot, and the launcher's alignment claims. There bf16 means exact products
of bf16 values, sums in f32 and one rounding to nearest even (triton_interpreter.py mends Triton's
interpreter there).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import differential_conv3d as differential  # noqa: E402
from children import run_children  # noqa: E402
from conv_reference import conv3d_reference  # noqa: E402
from triton_device import INTERPRETER, Watch, added, architecture, in_words, is_emulated  # noqa: E402
from triton_interpreter import convolve  # noqa: E402

LAYOUTS = ("plain", "plain", "last", "last", "steps", "expanded", "permuted", "offset")
DTYPES = ("float32", "float16", "bfloat16")
# A step of the interpreted loop takes about 2 ms.
MAX_COST = 150


@dataclasses.dataclass(frozen=True)
class Config:
    """One convolution and how it is cut; triples are (T, H, W), T of a conv2d is 1."""

    index: int
    ndim: int
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
    modes = ("zeros",) * 3  # for what is shared with differential_conv3d.py
    bias: bool
    layouts: tuple[str, str]  # of x and weight
    tile: str
    room: float  # workspace, as a share of what one sample's rows take
    units: int


def _shape(rng: random.Random) -> dict[str, Any]:
    """Sizes, kernel, stride, dilation, pads, channels: one of three kinds of problem."""
    if rng.random() < 1 / 20:
        return _points(rng)
    kernel = [rng.choice((1, 1, 2, 3, 3, 4)) for _ in range(3)]
    dilation = [rng.choice((1, 1, 1, 2, 3)) for _ in range(3)]
    stride = [rng.choice((1, 1, 2, 3)) for _ in range(3)] if rng.random() < 0.4 else [1, 1, 1]
    direct = rng.random() < 1 / 6  # read without a copy
    before = [0 if direct else rng.choice((0, 0, 1, 2, 3)) for _ in range(3)]
    after = [0 if direct else rng.choice((0, 0, 1, 2, 3)) for _ in range(3)]
    size = [
        max(1, (k - 1) * d + 1 - b - a) + rng.choice((0, 1, 2, 5, 9))
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    ]
    ndim = rng.choice((3, 3, 2))
    if ndim == 2:
        kernel[0] = dilation[0] = stride[0] = size[0] = 1
        before[0] = after[0] = 0
    groups = rng.choice((1, 1, 1, 1, 2, 3))
    # Of a tile of 48 or 96 channels the last third is made apart.
    c_in, c_out = rng.choice((1, 2, 3, 7, 8, 16, 17, 33)), rng.choice((1, 3, 8, 17, 40, 72, 100))
    if groups > 1 or direct:
        c_in, c_out = rng.choice((8, 16, 24)), rng.choice((8, 9, 20, 41))
    return {"ndim": ndim, "kernel": tuple(kernel), "dilation": tuple(dilation),
            "stride": tuple(stride), "before": tuple(before), "after": tuple(after),
            "size": tuple(size), "groups": groups, "channels": (c_in, c_out),
            "layouts": ("last" if direct else rng.choice(LAYOUTS),
                        rng.choice(LAYOUTS[:5]))}  # fmt: skip


def _points(rng: random.Random) -> dict[str, Any]:
    """1x1x1 on dense NCDHW with whole vectors, which has a kernel of its own."""
    size = [rng.choice((1, 2, 3)), rng.choice((2, 5, 8)), rng.choice((4, 8, 12))]
    while size[0] * size[1] * size[2] % 8:
        size[1] += 1
    ndim = rng.choice((3, 2)) if size[0] == 1 else 3
    ones, none = (1, 1, 1), (0, 0, 0)
    return {"ndim": ndim, "kernel": ones, "dilation": ones, "stride": ones, "before": none,
            "after": none, "size": tuple(size), "groups": 1,
            "channels": (rng.choice((8, 24, 72)), rng.choice((1, 3, 8, 17, 40))),
            "layouts": ("plain", rng.choice(LAYOUTS[:5]))}  # fmt: skip


def _cost(shape: dict[str, Any], batch: int, tile: tuple[int, int, int]) -> int:
    """Steps of the interpreted loop, and rows' lines: what takes the time."""
    sides = zip(shape["size"], shape["before"], shape["after"], strict=True)
    t, h, w = (n + a + b for n, a, b in sides)
    c_in, c_out = shape["channels"]
    k = shape["kernel"][0] * shape["kernel"][1] * shape["kernel"][2] * (-(-c_in // 8) * 8)
    programs = -(-batch * t * h * w // tile[0]) * -(-c_out // tile[1]) * shape["groups"]
    return int(programs * -(-k // tile[2]) + 2 * batch * t * h)


def random_config(seed: int, index: int) -> Config:
    """The index-th configuration of a seed, independent of all others."""
    rng = random.Random(f"{seed}/{index}")
    batch = rng.choice((1, 1, 2, 3))
    tile = (rng.choice((16, 32, 64)), rng.choice((16, 32, 48, 96)), rng.choice((16, 32)))
    shape = _shape(rng)
    while _cost(shape, batch, tile) > MAX_COST:
        shape = _shape(rng)
    return Config(
        index=index, batch=batch, dtype=rng.choice(DTYPES), bias=rng.random() < 0.5,
        tile=f"{tile[0]}x{tile[1]}x{tile[2]}w4s2g{rng.choice((1, 8))}",
        room=rng.choice((0.3, 0.6, 2.0)), units=rng.choice((1, 4096)), **shape,
    )  # fmt: skip


def config_for(device: str, seed: int, index: int) -> Config:
    """The same, on an emulated architecture with one of the tiles that are offered there."""
    import torch

    from hy3d_rocm.conv.triton import configs, launch

    config = random_config(seed, index)
    if not is_emulated(device):
        return config
    offered = configs.offered(device, launch._NAMES[getattr(torch, config.dtype)])
    tile = random.Random(f"{seed}/{index}/tile").choice(offered)
    return dataclasses.replace(config, tile=str(tile))


def laid_out(values: Any, layout: str) -> Any:
    """The same values as another kind of view; "offset" is not aligned to anything."""
    if layout == "offset":
        wide = values.new_zeros(values.numel() + 1)
        wide[1:] = values.flatten()
        return wide[1:].view(values.shape)
    return differential.laid_out(values, layout)


def make_tensors(config: Config, seed: int, real: bool) -> tuple[Any, Any, Any]:
    """x, weight, bias with time: integers in -3 .. 3 (every sum is below 2^24), or reals."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + config.index)
    dtype = getattr(torch, config.dtype)

    def values(*shape: int) -> Any:
        if real:
            return (torch.rand(shape, generator=generator) * 2 - 1).to(dtype)
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)

    c_in, c_out = config.channels
    x = values(config.batch, c_in * config.groups, *config.size)
    weight = values(c_out * config.groups, c_in, *config.kernel)
    bias = values(c_out * config.groups) if config.bias else None
    return laid_out(x, config.layouts[0]), laid_out(weight, config.layouts[1]), bias


def make_spec(config: Config, x: Any, weight: Any) -> Any:
    """The ConvSpec of the configuration, without time for a conv2d."""
    import torch

    from hy3d_rocm.conv.call import ConvSpec, _prefers_channels_last

    skip = 3 - config.ndim
    out = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, k, a, b, s, d in zip(config.size, config.kernel, config.before, config.after,
                                    config.stride, config.dilation, strict=True)
    ]  # fmt: skip
    c_out = config.channels[1] * config.groups
    return ConvSpec(
        ndim=config.ndim, batched=True, x_size=tuple(x.shape), weight_size=tuple(weight.shape),
        has_bias=config.bias, stride=config.stride[skip:], pad_before=config.before[skip:],
        pad_after=config.after[skip:], dilation=config.dilation[skip:], groups=config.groups,
        out_size=(config.batch, c_out, *out[skip:]), dtype=x.dtype, device=torch.device("cpu"),
        channels_last=_prefers_channels_last(x, weight, config.ndim),
    )  # fmt: skip


def compute(config: Config, x: Any, weight: Any, bias: Any, arch: str = "gfx1100") -> Any:
    """The product's answer, with time."""
    from hy3d_rocm.conv.call import ConvCall
    from hy3d_rocm.conv.triton import configs, launch, plan, work

    if config.ndim == 2:
        x, weight = x.squeeze(2), weight.squeeze(2)
    spec = make_spec(config, x, weight)
    call = ConvCall(spec, x, weight, bias, lambda: x)
    target = work.Target(arch, config.units)
    problem, plain = plan.problem(spec), launch.make_steps
    sample = math.prod(problem.padded) * problem.row_channels * problem.itemsize
    limit = int(config.room * sample) + problem.weight_bytes
    cut = functools.partial(plain, limit_bytes=limit)
    sums = 2000 if config.room < 0.5 else plan.SPLIT_BYTES
    changes = ((launch, "make_steps", cut), (launch, "target_of", lambda _: target),
               (plan, "SPLIT_BYTES", sums))  # fmt: skip
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(replaced(*change))
        out = launch.run(call, configs.Config.parse(config.tile))
    return out.unsqueeze(2) if config.ndim == 2 else out


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def differing_values(config: Config, seed: int, arch: str = "gfx1100") -> tuple[int, int]:
    """Values that differ from the C reference, of how many; on integers."""
    import torch

    x, weight, bias = make_tensors(config, seed, real=False)
    got = compute(config, x, weight, bias, arch)
    wanted = torch.empty(got.shape, dtype=got.dtype)
    conv3d_reference(x, weight, bias, wanted, config.stride, config.dilation, config.before,
                     config.after, "zeros", config.groups)  # fmt: skip
    return int((wanted != got).sum()), wanted.numel()


def fraction_of_bound(config: Config, seed: int, arch: str = "gfx1100") -> float:
    """The largest error on reals over its bound (docs/numerics.md)."""
    x, weight, bias = make_tensors(config, seed, real=True)
    got = compute(config, x, weight, bias, arch)
    return share_of_bound(config, got, x, weight, bias)


def share_of_bound(config: Any, got: Any, x: Any, weight: Any, bias: Any) -> float:
    """The same of a result. config: something with the fields of Config that describe it."""
    got = got.double()
    wide = differential.widened(x, weight, bias)
    exact = differential.expected(config, *wide)
    sizes = differential.expected(config, *(None if t is None else t.abs() for t in wide))
    kt, kh, kw = config.kernel
    n, u = config.channels[0] * kt * kh * kw + 1, 2.0**-24
    # The second term is the reference's own error in float64, by the same bound.
    bound = (n * u / (1 - n * u) + n * 2.0**-53 / (1 - n * 2.0**-53)) * sizes
    if config.dtype in differential.FINAL:
        unit, tiny = differential.FINAL[config.dtype]
        bound = bound + unit * (exact.abs() + bound) + tiny
    error = (got - exact).abs()
    ratio = (error / bound).masked_fill((error == 0) & (bound == 0), 0.0)
    return float(ratio.nan_to_num(nan=float("inf")).max())


def far_apart(size: tuple[int, ...], far: int, dtype: Any) -> Any:
    """A view whose axis `far` is strided by 2^31 + 8 elements over memory that is never touched."""
    import torch

    strides, step = [0] * len(size), 1
    for axis in sorted(range(len(size)), key=lambda axis: -axis):
        if axis != far:
            strides[axis], step = step, step * size[axis]
    strides[far] = 2**31 + 8
    last = sum((n - 1) * s for n, s in zip(size, strides, strict=True)) + 1
    storage = torch.UntypedStorage(last * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, strides)


def differing_far_apart(device: str = INTERPRETER) -> int:
    """Values that differ where x and out reach beyond 2^31 elements (4 GiB, not touched)."""
    import torch

    from hy3d_rocm.conv.problem import Problem
    from hy3d_rocm.conv.triton import configs

    differing, arch = 0, architecture(device)
    small = configs.Config.parse("16x16x16w4s2g8")
    tile = configs.offered(arch, "f16")[-1] if is_emulated(device) else small
    for axis in (1, 2):  # channels, frames
        weight = torch.randint(-3, 4, (2, 2, 1, 2, 2)).half()
        values = torch.randint(-3, 4, (1, 2, 2, 3, 5)).half()
        x = far_apart((1, 2, 2, 3, 5), axis, torch.float16).copy_(values)
        out = far_apart((1, 2, 2, 2, 4), axis, torch.float16)
        ones, none = (1, 1, 1), (0, 0, 0)
        p = Problem(1, 2, 2, 1, (2, 3, 5), (1, 2, 2), ones, ones, none, none, 2)
        convolve(p, x, weight, out, tile, arch)
        wanted = torch.nn.functional.conv3d(values.double(), weight.double())
        differing += int((wanted != out).sum())
    return differing


def run_child(seed: int, first: int, count: int, step: int, device: str) -> dict[str, Any]:
    """Every step-th configuration from `first` on, in this process."""
    import torch

    torch.set_num_threads(1)
    watch, arch = Watch(device), architecture(device)
    start = time.perf_counter()
    result: dict[str, Any] = {"configurations": 0, "differing": 0, "compared": 0,
                              "worst_of_bound": 0.0, "failed": []}  # fmt: skip
    for index in range(first, first + count, step):
        config = config_for(device, seed, index)
        result["configurations"] += 1
        try:
            differing, compared = differing_values(config, seed, arch)
            fraction = fraction_of_bound(config, seed, arch)
        except Exception as error:  # noqa: BLE001 - a failed configuration, told with the others
            cause = error.__cause__ or error
            result["failed"].append(f"{type(cause).__name__}: {cause}: {config}")
            continue
        result["differing"] += differing
        result["compared"] += compared
        result["worst_of_bound"] = max(result["worst_of_bound"], fraction)
        if differing:
            result["failed"].append(f"{differing} of {compared} values differ: {config}")
        if fraction > 1:
            result["failed"].append(f"{fraction:.3g} of the bound: {config}")
    result["differing"] += differing_far_apart(device)
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result | watch.figures()


def spawn(
    seed: int, first: int, count: int, workers: int = 1, device: str = INTERPRETER
) -> dict[str, Any]:
    """run_child in `workers` processes. RuntimeError if one fails."""
    given = ["--seed", str(seed), "--device", device]
    interpret = device == INTERPRETER
    parts = run_children(__file__, given, first, count, workers, interpret=interpret)
    total = {key: sum(part[key] for part in parts)
             for key in ("configurations", "differing", "compared")}  # fmt: skip
    return {
        **total,
        **added(parts),
        "failed": [line for part in parts for line in part["failed"]],
        "worst_of_bound": max(part["worst_of_bound"] for part in parts),
        "seconds": max(part["seconds"] for part in parts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first configuration")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default=INTERPRETER, help="or an AMD architecture: gfx1100")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    o = options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(o.seed, o.first, o.count, o.workers, o.device)))
        return 0
    result = spawn(o.seed, o.first, o.count, o.workers, o.device)
    for line in result["failed"][:10]:
        print(f"FAILED (--seed {options.seed} --first INDEX --count 1)", line)
    print(
        f"{result['configurations']} configurations, {result['differing']} of "
        f"{result['compared']} values differ from the C reference on integers; on reals the worst "
        f"error is {result['worst_of_bound']:.3f} of the bound; "
        f"{in_words(options.device, result)}; {result['seconds']} s; "
        f"{'FAIL' if result['failed'] or result['differing'] else 'pass'}"
    )
    return 1 if result["failed"] or result["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
