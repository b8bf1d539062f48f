"""What diffusers' answer to "where do you execute?" depends on, found at a hundredth of its cost.

`DiffusionPipeline._execution_device` walks every module of every component each time (2 ms for a
pipeline of 350 modules). The loop that calls a pipeline for each image of a batch need not pay that
again while hooks and weights are where they were.
"""

from __future__ import annotations

from typing import Any

import torch

_QUESTIONS = ("_execution_device", "device")  # the first asks the second


def of_device(pipeline: Any) -> tuple[Any, ...] | None:
    """Equal for two calls only if `pipeline._execution_device` answers alike, else None.

    None for everything but diffusers' own pipelines, and where diffusers' hooks (group offload)
    are seen: then the pipeline has to be asked.
    """
    for name in _QUESTIONS:
        getter = getattr(getattr(type(pipeline), name, None), "fget", None)
        if not str(getattr(getter, "__module__", "")).startswith("diffusers."):
            return None
    reasons = []
    for name, part in vars(pipeline).items():
        if isinstance(part, torch.nn.Module):
            seen = _of_module(part)
            if seen is None:
                return None
            reasons.append((name, id(part), *seen))
    return tuple(reasons)


def _of_module(module: torch.nn.Module) -> tuple[Any, ...] | None:
    """Hooks on the way to the first parameter, and the device of that; None: hooks of diffusers."""
    hooks: list[Any] = []
    waiting = [module]
    while waiting:
        one = waiting.pop()
        own = vars(one)
        if "_diffusers_hook" in own:
            return None
        if "_hf_hook" in own:
            hooks.extend(_of_hook(own["_hf_hook"]))
        first = next((item for item in one._parameters.values() if item is not None), None)
        if first is not None:
            return (*hooks, first.device)
        waiting.extend(part for part in reversed(one._modules.values()) if part is not None)
    return tuple(hooks)


def _of_hook(hook: Any) -> list[Any]:
    """Identity and execution device of one of accelerate's hooks, or of all in a SequentialHook."""
    several = getattr(hook, "hooks", None)
    found = [hook, *(several if isinstance(several, (list, tuple)) else ())]
    # The device as well: a new hook may lie where an old one was.
    return [(id(one), getattr(one, "execution_device", None)) for one in found]
