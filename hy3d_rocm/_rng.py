"""The random states of the process: read, put back, told apart from private generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from hy3d_rocm.seed import seeded


class GlobalStates(NamedTuple):
    """States of torch's CPU and accelerator generators, of `random` and, if loaded, of numpy.

    None: not in use when it was read, or not of interest.
    """

    cpu: torch.Tensor | None = None
    accelerator: list[torch.Tensor] | None = None
    python: Any = None
    numpy: Any = None


def capture() -> GlobalStates:
    """The states as they are. An accelerator or numpy that nobody has used yet stays unused."""
    numpy = sys.modules.get("numpy")
    return GlobalStates(
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if _accelerator_in_use() else None,
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
    )


def restore(states: GlobalStates) -> None:
    """Puts the captured states back."""
    if states.cpu is not None:
        torch.set_rng_state(states.cpu)
    if states.accelerator is not None:
        torch.cuda.set_rng_state_all(states.accelerator)
    if states.python is not None:
        random.setstate(states.python)
    if states.numpy is not None:
        sys.modules["numpy"].random.set_state(states.numpy)


def put_back(states: GlobalStates) -> GlobalStates:
    """Puts back those of the captured states that have changed, and returns what they had become.

    A state that has not changed is None in the answer; comparing costs a third of setting.
    """
    pairs = [
        (None, None) if _equal(old, new) else (old, new)
        for old, new in zip(states, capture(), strict=True)
    ]
    restore(GlobalStates(*(old for old, _ in pairs)))
    return GlobalStates(*(new for _, new in pairs))


@contextmanager
def kept() -> Iterator[None]:
    """At the end the states are what they were at the start, also after an error."""
    states = capture()
    try:
        yield
    finally:
        put_back(states)


def merged(newer: GlobalStates, older: GlobalStates) -> GlobalStates:
    """`newer`, with `older` for what it says nothing about."""
    pairs = zip(newer, older, strict=True)
    return GlobalStates(*(old if new is None else new for new, old in pairs))


def seed_all(seed: int) -> None:
    """Seeds those of torch's generators that `capture` reads.

    torch.manual_seed would also note down, with a stack trace, to seed an accelerator later that
    is not in use yet, and seed kinds of device whose states are not put back here.
    """
    torch.default_generator.manual_seed(seed)
    if _accelerator_in_use():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded_on(device: torch.device | str, seed: int) -> Iterator[None]:
    """Modules made inside lie on `device`, initialised there from `seed`; states are kept."""
    target = torch.device(device)
    accelerators = [target] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=accelerators), target:
        torch.manual_seed(seed)
        yield


def same(left: GlobalStates, right: GlobalStates) -> bool:
    """Whether two captures hold the same states."""
    return all(_equal(one, other) for one, other in zip(left, right, strict=True))


def is_global(generator: torch.Generator) -> bool:
    """Whether `generator` is one that the whole process draws from."""
    if generator is torch.default_generator:
        return True
    return _accelerator_in_use() and any(
        generator is other for other in torch.cuda.default_generators
    )


def is_fresh(generator: torch.Generator) -> bool:
    """Whether nothing has been drawn from `generator` since it was seeded."""
    new = seeded(generator.initial_seed(), generator.device)
    return torch.equal(new.get_state(), generator.get_state())


def _accelerator_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _equal(left: Any, right: Any) -> bool:
    """== for states of any kind: tensors and arrays by their values, tuples item by item."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    if hasattr(left, "tobytes") and hasattr(right, "tobytes"):  # numpy's array of words
        return bool(left.tobytes() == right.tobytes())
    if isinstance(left, (list, tuple)) and type(left) is type(right) and len(left) < 100:
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)  # Python's 625 words too
