"""The random states of the process: read, put back, told apart from private generators."""

from __future__ import annotations

import random
import sys
from typing import Any, NamedTuple

import torch

from hy3d_rocm.seed import seeded


class GlobalStates(NamedTuple):
    """States of torch's CPU and accelerator generators, of `random` and, if loaded, of numpy."""

    cpu: torch.Tensor
    accelerator: list[torch.Tensor] | None
    python: Any
    numpy: Any


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
    torch.set_rng_state(states.cpu)
    if states.accelerator is not None:
        torch.cuda.set_rng_state_all(states.accelerator)
    random.setstate(states.python)
    if states.numpy is not None:
        sys.modules["numpy"].random.set_state(states.numpy)


def same(left: GlobalStates, right: GlobalStates) -> bool:
    """Whether two captures hold the same states."""
    return bool(_as_plain(left) == _as_plain(right))


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


def _as_plain(value: Any) -> Any:
    """`value` with every array as bytes, so that == compares it."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, (list, tuple)):
        return [_as_plain(item) for item in value]
    return value.tobytes() if hasattr(value, "tobytes") else value
