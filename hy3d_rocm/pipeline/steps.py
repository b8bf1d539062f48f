"""Progress and cancel for pipelines that take diffusers' `callback_on_step_end`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

OnStep = Callable[[int, int], object]  # (steps done, steps in all)
_NAME = "callback_on_step_end"


def watched(
    pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_step: OnStep | None
) -> dict[str, Any]:
    """`kwargs` with a callback that reports to `on_step`; as they are if the call has one.

    A pipeline that does not name the argument in its `__call__` is not given it.
    """
    if on_step is None or kwargs.get(_NAME) is not None:
        return kwargs
    position = _position(type(pipeline).__call__)
    if position is None or len(args) > position:
        return kwargs
    steps = kwargs.get("num_inference_steps")
    expected = steps if type(steps) is int else 0

    def report(running: Any, step: int, timestep: Any, state: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, getattr(running, "num_timesteps", None) or expected or step + 1)
        return state  # the same tensors: the picture cannot change

    return {**kwargs, _NAME: report}


@functools.lru_cache(maxsize=32)  # reading a signature takes longer than all the rest
def _position(call: Any) -> int | None:
    """Where the argument stands in a class's `__call__`; None if it has none."""
    try:
        names = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # a callable without a signature
        return None
    return names.index(_NAME) - 1 if _NAME in names else None
