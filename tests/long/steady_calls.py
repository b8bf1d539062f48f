"""Calls of `_core` that do the same each time: the fuzzer's good ones, and such as are spoilt by
values that neither change, lie nor raise.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz_calls import CALLS, READY
from fuzz_objects import OTHERS, Endless, Raising, make_arrays, number, triple
from fuzz_raster import raster_arrays

from hy3d_rocm import _core

QUIET = [other for other in OTHERS if not isinstance(other, Endless | Raising)]
# By name in `_core`, without its types.
FUNCTIONS = [
    name
    for name in dir(_core)
    if name in CALLS and "." not in name and not isinstance(getattr(_core, name), type)
]


def arrays() -> list[Any]:
    return [*make_arrays(), *READY, *raster_arrays()]


def _value(rng: random.Random, things: list[Any]) -> Any:
    pick = rng.randrange(5)
    if pick < 2:
        return (number, triple)[pick](rng)
    return rng.choice(things if pick < 4 else QUIET)


def call(name: str, rng: random.Random, things: list[Any], *, spoilt: bool) -> tuple[Any, Any]:
    """Arguments and keyword arguments; `things` are what `arrays` gave."""
    args, kwargs = CALLS[name](rng, things)
    if not spoilt:
        return args, kwargs
    for _ in range(rng.choice([1, 1, 1, 2])):
        if args and rng.random() < (0.5 if kwargs else 0.9):
            args[rng.randrange(len(args))] = _value(rng, things)
        elif kwargs:
            kwargs[rng.choice(list(kwargs))] = _value(rng, things)
    pick = rng.random()
    if pick < 0.03 and args:
        args.pop()
    elif pick < 0.06:
        args.append(_value(rng, things))
    elif pick < 0.09:
        kwargs[rng.choice(["x", "zeros", "default", "latent", "é"])] = _value(rng, things)
    return args, kwargs
