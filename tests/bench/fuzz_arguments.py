"""Bad arguments for every function of the C core: exceptions are fine, crashes are not.

    python tests/bench/fuzz_arguments.py --count 100000 [--seed N] [--function conv3d]

Each function runs in a child process of its own, so that a crash is seen and told with the line
that replays the one case: `--function NAME --seed N --only INDEX`.
"""

from __future__ import annotations

import argparse
import functools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "py")]

import numpy as np  # noqa: E402
from dlpack_liar import LIES, Producer  # noqa: E402
from fuzz_raster import RASTER_CALLS, raster_arrays  # noqa: E402

from hy3d_rocm import _core  # noqa: E402

# What a function may answer to nonsense. SystemError, for one, is CPython's word for our bugs.
EXPECTED = (ValueError, TypeError, MemoryError, _core.Hy3dError)
FLAG = _core.CancelFlag()
ONE, WIDE = (1, 1, 1), 32  # channels of weights that may have a layout of their own


class Raising:
    def __index__(self) -> int:
        raise ValueError("no index today")


class Changing:
    """A list that a number inside it empties while it is read."""

    @staticmethod
    def new() -> list[Any]:
        items: list[Any] = [1, 1, 1, 1]

        class Number:
            def __index__(self) -> int:
                items.clear()
                return 1

        items[random.randrange(4)] = Number()
        return items[:3] if random.random() < 0.5 else items


class Endless:
    """Has every attribute, and each is another one of its kind."""

    def __getattr__(self, name: str) -> Any:
        return Endless() if random.random() < 0.9 else random.choice([None, 3, "cuda:0", ()])

    def __call__(self, *_args: object) -> Any:
        return self


class Hook:
    def __init__(self, device: object, hooks: object = ()) -> None:
        self.execution_device = device
        self.hooks = hooks


class Thing:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


NUMBERS: list[Any] = [
    0, 1, 2, 3, 5, 7, -1, -2, 255, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1,
    2**63, -(2**63), 2**64 - 1, 2**64, 10**30, -(10**30), True, False, 1.0, 1.5, float("nan"),
    float("inf"),
]  # fmt: skip
OTHERS: list[Any] = [
    None, "", "zeros", "replicate", "same", "cuda", "meta", "\ud800", b"", b"x" * 64, bytearray(64),
    object(), int, Raising(), Endless(), {}, {1: 2}, set(), lambda: None, Ellipsis, 1j, range(3),
    "a\0b", np.float32(1), np.int64(2), memoryview(b"12345678").cast("d"),
]  # fmt: skip
SHAPES = [(1, 2, 3, 4, 5), (1, 2, 2, 2, 2), (2, 2, 3, 3, 3), (0, 2, 3, 3, 3), (2, 1, 1, 1, 1), (2,),
          (3,), (1, 2, 3, 4), (), (1, 1, 1, 1, 1, 1), (1, 2, 3, 0, 3), (5,),
          (1, 4, 3, 5, 4)]  # fmt: skip


def make_arrays() -> list[Any]:
    arrays: list[Any] = []
    for shape in SHAPES:
        for code in ("f4", "f8", "f2", "i4", ">f4", "O", "U3"):
            arrays.append(np.zeros(shape, code))
    for shape in SHAPES[:5]:
        whole = np.ones(shape, "f4")
        frozen = whole.copy()
        frozen.flags.writeable = False
        arrays += [whole[..., ::-1], whole.T, np.broadcast_to(whole[..., :1], shape), frozen]
        arrays.append(np.zeros((*shape, 2), "f4")[..., 1])
        arrays.append(np.zeros(shape, np.dtype([("a", "u1"), ("b", "f4")]))["b"])
        arrays.append(memoryview(whole))
    return arrays


def number(rng: random.Random) -> Any:
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-(2**65), 2**65)


def triple(rng: random.Random) -> Any:
    length = rng.choice([3, 3, 3, 3, 0, 1, 2, 4, 7])
    items = [number(rng) if rng.random() < 0.6 else rng.randrange(4) for _ in range(length)]
    if items and rng.random() < 0.1:
        items[0] = rng.choice(OTHERS)
    return rng.choice([tuple, list])(items)


def anything(rng: random.Random, arrays: list[Any]) -> Any:
    pick = rng.randrange(8)
    if pick == 0:
        return number(rng)
    if pick == 1:
        return triple(rng)
    if pick == 2:
        return Producer(**rng.choice(list(LIES.values())))
    if pick == 3:
        return Changing.new()
    if pick == 4:
        return Producer(rng.choice(SHAPES), no_deleter=rng.random() < 0.5)
    if pick == 5:
        return rng.choice(arrays)
    return rng.choice(OTHERS)


def good_conv(rng: random.Random) -> list[Any]:
    """Arguments of a small convolution that works."""
    code = rng.choice(["f4", "f8", "f2"])
    groups = rng.choice([1, 2])
    x = np.ones((rng.randrange(3), 2 * groups, 3, 4, 5), code)
    weight = np.ones((2 * groups, 2, *rng.choices([1, 2, 3], k=3)), code)
    stride, dilation = tuple(rng.choices([1, 2], k=3)), (1, 1, 1)
    before, after = tuple(rng.choices([0, 1, 2], k=3)), tuple(rng.choices([0, 1, 2], k=3))
    size = _core.conv3d_out_size(x.shape[2:], weight.shape[2:], stride, dilation, before, after)
    out = np.empty((x.shape[0], 2 * groups, *size), code)
    bias = rng.choice([None, np.ones(2 * groups, code)])
    modes = rng.choice(["zeros", "replicate", ("zeros", "replicate", "zeros")])
    return [x, weight, bias, out, stride, dilation, before, after, modes, groups]


def good_fusion(rng: random.Random, args: list[Any]) -> dict[str, Any]:
    """Keyword arguments for those of `good_conv`, whose x may move to frames."""
    x, out = args[0], args[3]
    kwargs: dict[str, Any] = {"activation": rng.choice([None, "silu"])}
    if rng.random() < 0.5:
        factors = np.ones(x.shape[1], "f4")
        kwargs |= {"scale": factors, "shift": factors}
    if rng.random() < 0.3:
        kwargs["residual"] = rng.choice([out, np.ones_like(out)])
    if rng.random() < 0.3:
        kwargs["upsample"] = ONE
    if x.shape[0] == 1 and rng.random() < 0.7:
        frames = [rng.choice([None, x[0, :, t]]) for t in range(x.shape[2])]
        frames[rng.randrange(len(frames))] = x[0, :, 0]
        args[0], kwargs["frames"] = None, rng.choice([tuple, list])(frames)
    return kwargs


def spoil_frames(rng: random.Random, kwargs: dict[str, Any], arrays: list[Any]) -> None:
    """Some of the frames, which are sound one by one."""
    frames = list(kwargs["frames"])
    frames[rng.randrange(len(frames))] = anything(rng, arrays)
    kwargs["frames"] = rng.choice([tuple(frames), frames, frames[:1], frames * 3])


def wide_conv(rng: random.Random) -> tuple[list[Any], str]:
    """What conv3d_format is asked of a convolution of `WIDE` channels, and its type."""
    kernel, dtype = rng.choice([(3, 3, 3), (1, 3, 3), ONE]), rng.choice(["f32", "f16"])
    pads = tuple(size // 2 for size in kernel)
    accuracy = rng.choice(["exact", "fast", "fast"])
    return [
        (3, 64, 64),
        WIDE,
        WIDE,
        kernel,
        ONE,
        ONE,
        pads,
        pads,
        "zeros",
        1,
        dtype,
        accuracy,
    ], dtype


def good_prepare(rng: random.Random) -> list[Any]:
    """Weights and the layout that they take, 0 where that is none."""
    asked, dtype = wide_conv(rng)
    weight = np.ones((WIDE, WIDE, *asked[3]), "f4" if dtype == "f32" else "f2")
    return [weight, _core.conv3d_format(*asked)[0], rng.choice([0, 1, 2])]


def made_ready() -> list[Any]:
    """PreparedWeights to pass where they do not belong; none where no layout is known."""
    weight = np.ones((WIDE, WIDE, 3, 3, 3), "f4")
    number = _core.conv3d_format((3, 64, 64), WIDE, WIDE, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1,
                                 "f32", "fast")[0]  # fmt: skip
    return [_core.conv3d_prepare(weight, number)] if number else []


READY = made_ready()


def good_plan(rng: random.Random) -> dict[str, Any]:
    return {
        "latent": tuple(rng.choices(range(1, 40), k=3)), "factor": (4, 8, 8),
        "causal": rng.choice([0, 1]), "overlap": tuple(rng.choices(range(4), k=3)),
        "halo": tuple(rng.choices(range(3), k=3)), "min_tile": (1, 2, 2),
        "fixed_bytes": 0, "bytes_per_voxel": 1000, "bytes_per_token_pair": rng.choice([0, 4]),
        "resident_bytes": 0, "budget_bytes": rng.choice([0, 10**6, 10**9]),
        "max_in_flight": rng.choice([1, 4]), "level": -1,
    }  # fmt: skip


def strange_pipeline(rng: random.Random, arrays: list[Any]) -> Any:
    device = rng.choice([Thing(type="cuda", index=1), Thing(type="meta", index=None), "cpu",
                         "xpu:3", "cpu:", "cuda:1234", 0, -1, True, Thing(type=3, index=0),
                         Endless(), Thing(type="cpu", index="0"),
                         anything(rng, arrays)])  # fmt: skip
    name = rng.choice(["_execution_device", "device", "_hf_hook", "parameters", "components",
                       "_modules"])  # fmt: skip
    value: Any = device
    if name == "_hf_hook":
        value = Hook(device, (Hook(device), device))
    elif name == "parameters":
        value = rng.choice([lambda: iter([Thing(device=device)]), lambda: device, lambda: 1 / 0])
    elif name in ("components", "_modules"):
        value = {"a": None, "b": Thing(_hf_hook=Hook(device)), 3: Thing(device=device)}
        value["self"] = Thing(_modules=value)
    return Thing(**{name: value})


Call = tuple[list[Any], dict[str, Any]]  # args, kwargs


def good_call(name: str, rng: random.Random, arrays: list[Any]) -> Call:
    """A call that works, before it is spoilt (a pipeline or a plan may be strange already)."""
    makers: dict[str, Callable[[], list[Any]]] = {
        "conv3d": lambda: [*good_conv(rng), rng.choice([0, 1, 2]), rng.choice([0, 10**7])],
        "conv3d_reference": lambda: good_conv(rng),
        "conv3d_format": lambda: wide_conv(rng)[0],
        "conv3d_memory": lambda: wide_conv(rng)[0],
        "conv3d_prepare": lambda: good_prepare(rng),
        "conv3d_out_size": lambda: [
            (4, 4, 4),
            (3, 3, 3),
            (1, 1, 1),
            (1, 1, 1),
            (0, 0, 0),
            (1, 1, 1),
        ],
        "channel_moments": lambda: good_moments(rng),
        "fingerprint": lambda: [rng.choice(arrays[:60]), rng.choice([0, 1, 2])],
        "peak_run": lambda: [rng.choice([0, 1, 2]), rng.randrange(1, 100)],
        "resolve_device": lambda: [strange_pipeline(rng, arrays), rng.choice([None, "cpu"])],
        "seed_image": lambda: [rng.randrange(2**64), rng.randrange(2**64)],
        "seed_stream": lambda: [rng.randrange(2**64), rng.randrange(2**64)],
        "philox4x32": lambda: [(1, 2, 3, 4), (5, 6)],
        "schedule_grain": lambda: [strange_plan(rng, arrays), rng.randrange(-1, 5)],
        "schedule_window": lambda: [rng.randrange(1, 50), rng.randrange(20), rng.randrange(20)],
        "blend_accumulate": lambda: good_blend(rng),
        "fail_allocation": lambda: [rng.choice([0, 2**40]), rng.choice([True, False])],
        **{known: functools.partial(make, rng) for known, make in RASTER_CALLS.items()},
    }
    if name == "schedule_plan":
        return [], good_plan(rng)
    args = makers[name]() if name in makers else []
    kwargs: dict[str, Any] = {}
    if name == "conv3d" and rng.random() < 0.5:
        args.append(rng.choice([None, FLAG]))
    if name in ("conv3d", "conv3d_reference") and rng.random() < 0.6:
        kwargs = good_fusion(rng, args)
    if name == "conv3d" and rng.random() < 0.5:
        kwargs["accuracy"] = rng.choice(["exact", "fast"])
        kwargs["prepared"] = rng.choice([None, None, None, *READY])
    if name == "conv3d_prepare" and rng.random() < 0.3:
        kwargs["cancel"] = rng.choice([None, FLAG])
    return args, kwargs


def good_blend(rng: random.Random) -> list[Any]:
    shape = (1, 2, 3, 4, 5)
    windows = [rng.choice([None, np.ones(n, "f4")]) for n in shape[2:]]
    return [np.ones(shape, rng.choice(["f4", "f2"])), *windows, np.zeros(shape, "f4")]


def good_moments(rng: random.Random) -> list[Any]:
    x = np.ones((rng.randrange(3), 2, 3, 4, 5), rng.choice(["f4", "f2"]))
    return [
        x,
        np.zeros(2, "f8"),
        np.zeros(2, "f8"),
        rng.choice([0, 1, 2]),
        rng.choice([None, FLAG]),
    ]


def strange_plan(rng: random.Random, arrays: list[Any]) -> dict[str, Any]:
    plan = _core.schedule_plan(**(good_plan(rng) | {"budget_bytes": 0}))
    return plan if rng.random() < 0.2 else spoil_plan(rng, plan, arrays)


def spoil_plan(rng: random.Random, plan: dict[str, Any], arrays: list[Any]) -> dict[str, Any]:
    where = plan["desc"] if rng.random() < 0.7 else plan
    key = rng.choice(list(where))
    if rng.random() < 0.2:
        del where[key]
    elif rng.random() < 0.8:
        where[key] = triple(rng) if rng.random() < 0.5 else anything(rng, arrays)
    return plan


def spoil(rng: random.Random, args: list[Any], kwargs: dict[str, Any], arrays: list[Any]) -> None:
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if "frames" in kwargs and rng.random() < 0.2:
            if isinstance(kwargs["frames"], tuple | list) and kwargs["frames"]:
                spoil_frames(rng, kwargs, arrays)
        elif args and rng.random() < (0.5 if kwargs else 0.9):
            place = rng.randrange(len(args))
            if isinstance(args[place], dict) and rng.random() < 0.8:
                continue  # spoilt already
            likely = triple(rng) if isinstance(args[place], tuple) else number(rng)
            args[place] = anything(rng, arrays) if rng.random() < 0.6 else likely
        elif kwargs:
            likely = triple(rng) if rng.random() < 0.5 else number(rng)
            kwargs[rng.choice(list(kwargs))] = (
                anything(rng, arrays) if rng.random() < 0.4 else likely
            )
    pick = rng.random()
    if pick < 0.03 and args:
        args.pop(rng.randrange(len(args)))
    elif pick < 0.06:
        args.append(anything(rng, arrays))
    elif pick < 0.09:
        kwargs[rng.choice(["x", "zeros", "default", "latent", "é"])] = anything(rng, arrays)


def run_cases(name: str, seed: int, indices: range) -> Counter[str]:
    """Runs the cases in this process; an unexpected exception is raised with its replay line."""
    arrays = [*make_arrays(), *READY, *raster_arrays()]
    function = getattr(_core, name)
    seen: Counter[str] = Counter()
    for index in indices:
        if index % 500 == 0:
            print(f"at {index}", file=sys.stderr, flush=True)
        # `random` itself is seeded too: the strange objects draw from it while they are used.
        random.seed(f"{seed}:{name}:{index}")
        rng = random.Random(random.random())
        args, kwargs = good_call(name, rng, arrays)
        spoil(rng, args, kwargs, arrays)
        try:
            function(*args, **kwargs)
        except EXPECTED as error:
            seen[type(error).__name__] += 1
        except BaseException as error:
            raise AssertionError(
                f"{name} answered {error!r}: replay with --function {name} --seed {seed} "
                f"--only {index}"
            ) from error
        else:
            seen["returned"] += 1
    if name == "fail_allocation":
        _core.fail_allocation(0)
    return seen


def functions() -> list[str]:
    names = [n for n in dir(_core) if not n.startswith("_") and callable(getattr(_core, n))]
    return [n for n in names if n not in ("Hy3dError", "PreparedWeights")]


def run_in_child(name: str, seed: int, count: int) -> str:
    """The counts of one function; raises with the whereabouts when the child crashed."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--child", "--function", name,
               "--seed", str(seed), "--count", str(count)]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(
            f"{name} ended the process with status {result.returncode} (seed {seed}):\n"
            + result.stderr[-3000:]
        )
    return result.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="cases a function")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--function", choices=functions())
    parser.add_argument("--only", type=int, help="run one case, in this process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [options.function] if options.function else functions()
    if options.child or options.only is not None:
        only = options.only
        indices = range(options.count) if only is None else range(only, only + 1)
        for name in names:
            print(dict(run_cases(name, options.seed, indices)))
        return 0
    failed = 0
    for name in names:
        start = time.monotonic()
        try:
            text = run_in_child(name, options.seed, options.count)
        except AssertionError as error:
            failed += 1
            text = f"FAILED: {error}"
        print(f"{name:18} {time.monotonic() - start:6.1f} s  {text}", flush=True)
    print(f"{options.count} cases each of {len(names)} functions, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
