"""diffusers' answer to "where do you execute?", and what it depends on, at a fraction of its cost.

`DiffusionPipeline._execution_device` walks every module of every component several times (2 ms for
a pipeline of 350 modules). Where nothing is hooked, or each component as a whole, one walk tells
the same; and the loop that calls a pipeline for each image of a batch need not pay for a walk at
all while hooks and weights are where they were.
"""

from __future__ import annotations

from typing import Any

import torch

from hy3d_rocm.device import as_device

_QUESTIONS = ("_execution_device", "device")  # the first asks the second


def of_device(pipeline: Any) -> tuple[Any, ...] | None:
    """Equal for two calls only if `pipeline._execution_device` answers alike, else None.

    None for everything but diffusers' own pipelines, and where diffusers' hooks (group offload)
    are seen: then the pipeline has to be asked.
    """
    if not _asks_diffusers(pipeline):
        return None
    reasons = []
    for name, part in vars(pipeline).items():
        if isinstance(part, torch.nn.Module):
            seen = _of_module(part)
            if seen[-1] is None:
                return None
            reasons.append((name, id(part), *seen))
    return tuple(reasons)


def answer(pipeline: Any) -> torch.device | None:
    """What `pipeline._execution_device` would say, where that can only be one device; else None.

    That is: no hook anywhere and the first parameters of all components on one device, or a hook
    of accelerate on each component as a whole (model offload), all for one device.
    """
    if not _asks_diffusers(pipeline):
        return None
    parts = [part for part in vars(pipeline).values() if isinstance(part, torch.nn.Module)]
    hooks = [vars(part).get("_hf_hook") for part in parts]
    if any(_hooked_inside(part) for part in parts) or len({hook is None for hook in hooks}) != 1:
        return None
    found = [
        _of_module(part)[-1] if hook is None else getattr(hook, "execution_device", None)
        for part, hook in zip(parts, hooks, strict=True)
    ]
    return as_device(found[0]) if all(one == found[0] for one in found) else None


def _asks_diffusers(pipeline: Any) -> bool:
    """Whether both properties are diffusers' own."""
    getters = (getattr(getattr(type(pipeline), name, None), "fget", None) for name in _QUESTIONS)
    return all(str(getattr(one, "__module__", "")).startswith("diffusers.") for one in getters)


def _hooked_inside(module: torch.nn.Module) -> bool:
    """Whether a part of `module` has a hook, or any module one of diffusers (group offload)."""
    if "_diffusers_hook" in vars(module):
        return True
    waiting = list(module._modules.values())
    while waiting:
        one = waiting.pop()
        if one is not None:
            own = one.__dict__
            if "_hf_hook" in own or "_diffusers_hook" in own:
                return True
            waiting.extend(own["_modules"].values())
    return False


def _of_module(module: torch.nn.Module) -> tuple[Any, ...]:
    """Hooks on the way to the first parameter, and its device; at the end None if it is unclear."""
    hooks: list[Any] = []
    waiting = [module]
    while waiting:
        one = waiting.pop()
        own = vars(one)
        if "_diffusers_hook" in own:
            break
        if "_hf_hook" in own:
            hooks.extend(_of_hook(own["_hf_hook"]))
        first = next((item for item in one._parameters.values() if item is not None), None)
        if first is not None:
            return (*hooks, first.device)
        waiting.extend(part for part in reversed(one._modules.values()) if part is not None)
    return (*hooks, None)


def _of_hook(hook: Any) -> list[Any]:
    """Identity and execution device of one of accelerate's hooks, or of all in a SequentialHook."""
    several = getattr(hook, "hooks", None)
    found = [hook, *(several if isinstance(several, (list, tuple)) else ())]
    # The device as well: a new hook may lie where an old one was.
    return [(id(one), getattr(one, "execution_device", None)) for one in found]
