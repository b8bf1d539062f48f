"""What a pipeline is called with: tensors and generators found among arguments, and replaced."""

from __future__ import annotations

import logging
from typing import Any

import torch

from hy3d_rocm.seed import seeded

logger = logging.getLogger("hy3d_rocm")


def place(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; lists, tuples and dicts are looked into.

    Whatever needs no move is returned as the same object. Meta tensors have no data to move.
    """
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to(device)
    if type(value) is dict:
        placed: Any = {key: place(item, device) for key, item in value.items()}
        moved = any(placed[key] is not value[key] for key in value)
    elif type(value) in (list, tuple):
        placed = type(value)(place(item, device) for item in value)
        moved = any(new is not old for new, old in zip(placed, value, strict=True))
    else:
        return value
    return placed if moved else value


def given_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The generator, or list of generators, among the arguments; None if there is none."""
    candidates = [kwargs.get("generator"), *args]
    given = next((value for value in candidates if _is_generator(value)), None)
    one = isinstance(given, (list, tuple)) and len(given) == 1
    return given[0] if one and given is not None else given


def with_generator(
    args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `chosen` in the generator's place."""
    if _is_generator(kwargs.get("generator")):
        return args, {**kwargs, "generator": chosen}
    return tuple(chosen if _is_generator(value) else value for value in args), kwargs


def fitting(given: Any, device: torch.device) -> Any:
    """`given` with each generator replaced that cannot draw for `device`.

    A CPU generator serves every device (diffusers draws on the CPU and moves the numbers); one of
    an accelerator serves only its own kind. Its replacement on the CPU starts from its seed.
    """
    if isinstance(given, (list, tuple)):
        return [fitting(item, device) for item in given]
    if given.device.type in ("cpu", device.type):
        return given
    logger.info(
        "a generator on %s cannot draw for %s: one on the CPU with its seed %d takes its place",
        given.device, device, given.initial_seed(),
    )  # fmt: skip
    return seeded(given.initial_seed(), "cpu")


def views_of(kwargs: dict[str, Any]) -> int | None:
    """How many views a multiview call makes (its `num_in_batch`); None for any other call."""
    views = kwargs.get("num_in_batch")
    return views if type(views) is int and views > 0 else None


def _is_generator(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, torch.Generator) for item in value)
    return isinstance(value, torch.Generator)
