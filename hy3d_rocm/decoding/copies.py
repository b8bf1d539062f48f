"""A VAE's modules once more, with parameters of another type or place. The VAE itself is read."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.precision import only_stores

# diffusers' hooks of it; the second comes with it where peft is installed.
_CASTING = {"layerwise_casting", "peft_autocast_disable"}
_PLAIN = (str, bytes, int, float, complex, FunctionType, BuiltinFunctionType, ModuleType)


def copied_family(family: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """The family over a copy of its VAE, each parameter and buffer replaced by `convert` of it.

    ValueError (a sentence) where the VAE can't be copied.
    """
    vae = family.vae
    memo = _not_copied(vae)
    for found in tensors_of(family):
        made = convert(found.detach())
        is_parameter = isinstance(found, torch.nn.Parameter)
        memo[id(found)] = torch.nn.Parameter(made, requires_grad=False) if is_parameter else made
    try:
        copied = copy.deepcopy(vae, memo)
        _uncast(copied)
        return family.over(copied)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"{type(vae).__name__} can't be copied: {error}") from error


def _uncast(vae: Any) -> None:
    """Takes diffusers' layerwise casting off a copy. Its forward() is a function over the VAE's own
    module, whose weights it would compute with; a copy's have the type that is computed in."""
    for module in vae.modules() if isinstance(vae, torch.nn.Module) else ():
        registry = getattr(module, "_diffusers_hook", None)
        hooks = set(getattr(registry, "hooks", ()))
        if "layerwise_casting" in hooks <= _CASTING:
            module.__dict__.pop("forward", None)
            module.__dict__.pop("_diffusers_hook", None)


def _not_copied(vae: Any) -> dict[int, Any]:
    """deepcopy's memo of what the copy shares with the VAE: attributes that hold a resource; and of
    what is empty, which is made here in less time.

    ComfyUI keeps its pinned buffers in an attribute of the module (`dynamic_pins`). A second object
    with the same address in it would free that memory once more, which ends the process.
    """
    owners = (vae, *(vae.modules() if isinstance(vae, torch.nn.Module) else ()))
    memo: dict[int, Any] = {}
    for value in (value for owner in owners for value in vars(owner).values()):
        if type(value) in (dict, OrderedDict, set) and not value:
            memo[id(value)] = type(value)()  # of hooks, some ten a module: half of the time
        elif holds_resource(value):
            memo[id(value)] = value
    return memo


def holds_resource(value: Any) -> bool:
    """Whether an object that is deleted by code of its own is in `value`; modules and tensors,
    which are copied as such, aside."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, (torch.nn.Module, torch.Tensor, type, *_PLAIN)):
            continue
        seen.add(id(item))
        if hasattr(type(item), "__del__"):
            return True
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            waiting += item
        else:
            waiting += getattr(item, "__dict__", {}).values()
    return False


def tensors_of(family: Any) -> list[Tensor]:
    """Parameters and buffers of a family's VAE; of one that is no module those of the modules that
    it holds."""
    vae = family.vae if isinstance(family.vae, torch.nn.Module) else family.decoder
    modules = list(vae.modules())
    held = [t for m in modules for t in m._parameters.values()]
    held += [t for m in modules for t in m._buffers.values()]
    return [t for t in dict.fromkeys(held) if t is not None]  # one may be in several places


def converted_family(family: Any, dtype: torch.dtype) -> Any:
    """The family computing in `dtype`: itself where its weights have that type, or are cast to it
    as they are used."""
    stored = any(only_stores(t.dtype) for t in tensors_of(family))
    if family.dtype == dtype and (not stored or getattr(family.vae, "dtype", None) == dtype):
        return family
    return copied_family(family, lambda t: t.to(dtype) if t.is_floating_point() else t)
