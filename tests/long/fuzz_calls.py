"""Calls that work, for each callable of `_core`: what fuzz_arguments.py spoils.

A callable without an entry in CALLS fails tests/unit/_core/test_arguments.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from dlpack_liar import Described, Exchange
from fuzz_objects import Endless, Hook, Thing, anything, triple
from fuzz_program import PROGRAM_CALLS, compile_call
from fuzz_raster import RASTER_CALLS

from hy3d_rocm import _core

FLAG = _core.CancelFlag()
ONE, WIDE = (1, 1, 1), 32  # channels of weights that may have a layout of their own
Call = tuple[list[Any], dict[str, Any]]  # args, kwargs


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


def good_conv3d(rng: random.Random) -> Call:
    args = [*good_conv(rng), rng.choice([0, 1, 2]), rng.choice([0, 10**7])]
    kwargs: dict[str, Any] = {}
    if rng.random() < 0.5:
        args.append(rng.choice([None, FLAG]))
    if rng.random() < 0.6:
        kwargs = good_fusion(rng, args)
    if rng.random() < 0.5:
        kwargs["accuracy"] = rng.choice(["exact", "fast"])
        kwargs["prepared"] = rng.choice([None, None, None, *READY])
    return args, kwargs


def good_preparation(rng: random.Random) -> Call:
    return good_prepare(rng), {"cancel": rng.choice([None, FLAG])} if rng.random() < 0.3 else {}


def self_of(name: str, rng: random.Random) -> Any:
    """An object of a class, for its methods."""
    if name == "CancelFlag":
        return rng.choice([FLAG, _core.CancelFlag()])
    return rng.choice(READY) if READY else None


def good_route(rng: random.Random) -> list[Any]:
    setting = (rng.randrange(4), rng.randrange(7), rng.choice([0, 1, 3]), True, True, True, 1e6)
    tiers = rng.sample(range(7), rng.randrange(8))
    rows = [
        (tier, rng.randrange(8), rng.randrange(3), False, rng.random() < 0.8, -1.0, 1.0, 1e6)
        for tier in tiers
    ]
    return [setting, rng.choice([tuple, list])(rows)]


def good_work(rng: random.Random) -> tuple[float, ...]:
    return (rng.randrange(4), 1e9, 1e6, 1e6, 1e6, 27, 3, 64)


EXCHANGE = Exchange()


def known_calls() -> Any:
    """One call is known to it, `abs` of ARGUMENTS."""
    calls = _core.KnownCalls(EXCHANGE.capsule, (Described,), (bool,), (bool,), float)
    calls.add(calls.call(abs, ARGUMENTS), "who")
    return calls


ARGUMENTS = (Described(), Described(), None, 1, (0, 0), [1, 1], 1)


def known_cache() -> Any:
    """With a thing that is here, one that is being made, and one that was requested."""
    cache = _core.Admission(100)
    for number in range(3):
        cache.request(((number, 7), 3))
    for number in range(2):
        cache.reserve(((number, 7), 3), 10)
    cache.put(((0, 7), 3))
    return cache


def of_cache(*more: Any) -> Maker:
    return plain(lambda rng: [known_cache(), ((rng.randrange(4), 7), 3), *more])


Maker = Callable[[random.Random, list[Any]], Call]


def plain(make: Callable[[random.Random], list[Any]]) -> Maker:
    return lambda rng, _arrays: (make(rng), {})


def both(make: Callable[[random.Random], Call]) -> Maker:
    return lambda rng, _arrays: make(rng)


OUT_SIZE = [(4, 4, 4), (3, 3, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)]
WORD = 2**64
# By name in `_core`; methods and attributes of its classes as CLASS.NAME, their object comes first.
CALLS: dict[str, Maker] = {
    "conv3d": both(good_conv3d),
    "conv3d_format": plain(lambda rng: wide_conv(rng)[0]),
    "conv3d_prepare": both(good_preparation),
    "conv3d_out_size": plain(lambda _rng: list(OUT_SIZE)),
    "channel_moments": plain(lambda rng: good_moments(rng)),
    "fingerprint": lambda rng, arrays: ([rng.choice(arrays[:60]), rng.choice([0, 1, 2])], {}),
    "peak_run": plain(lambda rng: [rng.choice([0, 1, 2]), rng.randrange(1, 100)]),
    "resolve_device": lambda rng, arrays: (
        [strange_pipeline(rng, arrays), rng.choice([None, "cpu"])],
        {},
    ),
    "seed_image": plain(lambda rng: [rng.randrange(WORD), rng.randrange(WORD)]),
    "schedule_plan": lambda rng, _arrays: ([], good_plan(rng)),
    "schedule_tile": lambda rng, arrays: ([strange_plan(rng, arrays), rng.randrange(-1, 5)], {}),
    "schedule_window": plain(
        lambda rng: [rng.randrange(1, 50), rng.randrange(20), rng.randrange(20)]
    ),
    "blend_accumulate": plain(lambda rng: good_blend(rng)),
    "trim": plain(lambda _rng: []),
    "cpu_info": plain(lambda _rng: []),
    "blas_info": plain(lambda _rng: []),
    "CancelFlag": plain(lambda _rng: []),
    "CancelFlag.request": plain(lambda rng: [self_of("CancelFlag", rng)]),
    "CancelFlag.reset": plain(lambda rng: [self_of("CancelFlag", rng)]),
    "CancelFlag.requested": plain(lambda rng: [self_of("CancelFlag", rng)]),
    "PreparedWeights": plain(lambda _rng: []),
    "PreparedWeights.format": plain(lambda rng: [self_of("PreparedWeights", rng)]),
    "PreparedWeights.nbytes": plain(lambda rng: [self_of("PreparedWeights", rng)]),
    "route": plain(good_route),
    "Rates": plain(lambda _rng: []),
    "Rates.learn": plain(lambda rng: [_core.Rates(), rng.randrange(7), good_work(rng), 1.0]),
    "Rates.seconds": plain(lambda rng: [_core.Rates(), rng.randrange(7), good_work(rng)]),
    "KnownCalls": plain(lambda _rng: [EXCHANGE.capsule, (Described,), (bool,), (), float]),
    "KnownCalls.call": plain(lambda _rng: [known_calls(), abs, ARGUMENTS]),
    "KnownCalls.add": plain(lambda rng: [known_calls(), rng.choice([b"key", b"more"]), "who"]),
    **{f"KnownCalls.{name}": plain(lambda _rng: [known_calls()]) for name in ("take", "failed")},
    "Admission": plain(lambda rng: [rng.choice([0, 10**9])]),
    **{f"Admission.{name}": of_cache() for name in ("request", "put", "cancel", "drop", "has")},
    "Admission.reserve": of_cache(10),
    "Admission.clear": plain(lambda _rng: [known_cache()]),
    "Admission.info": plain(lambda _rng: [known_cache()]),
    "Hy3dError": plain(lambda rng: [rng.choice(["text", 3]), rng.randrange(12)]),
    "compile_schedule": both(compile_call),
    **{name: plain(make) for name, make in (RASTER_CALLS | PROGRAM_CALLS).items()},
}
