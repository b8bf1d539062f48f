"""Weights that accelerate's hooks keep on "meta" have their values during a pipeline's call.

Under sequential offload (`accelerate.cpu_offload`, `enable_sequential_cpu_offload`) a parameter has
its value only while the forward of the module that owns it runs. Hunyuan3D's paint pipeline reads
two of its UNet's parameters at other times: "Cannot copy out of meta tensor".

A value is laid in the owner's `__dict__` under the parameter's name, where attribute access finds
it before the parameter. accelerate works on `_parameters` and does not see it. (A TorchFunctionMode
that swaps tensors as they are read would cost 2 us on each torch function.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from hy3d_rocm.device import as_device
from hy3d_rocm.offload.components import flat_hooks

logger = logging.getLogger("hy3d_rocm")

# What may lie on the execution device during a call, in all; the smallest values come first. The
# paint pipeline needs 0.3 MiB, and who offloads sequentially has no memory to give away.
LIMIT_BYTES = 64 * 2**20


class _Kept(NamedTuple):
    """A tensor on meta, and the hook whose `weights_map` has its value."""

    owner: torch.nn.Module
    name: str
    tensor: torch.Tensor
    hook: Any


@contextmanager
def readable(pipeline: Any) -> Iterator[None]:
    """While open, weights of `pipeline` that its own code may read have their values.

    Those are the tensors that a whole component, or a module with parts of its own, owns directly:
    a leaf such as a convolution uses its weights itself. Values are on the device on which the
    hook would put them. Without accelerate's hooks for weights this costs a few look-ups.
    Like the hooks themselves it knows one call at a time.
    """
    laid: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for kept in _candidates(pipeline):
            try:
                value = _value(kept)
            except LookupError:  # the map lacks it; a reader gets torch's own error
                continue
            vars(kept.owner)[kept.name] = value
            laid.append((vars(kept.owner), kept.name, value))
        yield
    finally:
        for attributes, name, value in laid:
            if attributes.get(name) is value:  # else somebody has set a parameter anew
                del attributes[name]


def put_away(pipeline: Any) -> None:
    """After a call that ended early: weights of modules that were running go back to meta.

    accelerate sends them there when a forward returns, so an exception leaves them where they are.
    """
    for module in (inner for part in _offloaded(pipeline) for inner in part.modules()):
        for hook in _keepers(module):
            if any(not tensor.is_meta for _, tensor in _tensors(module, hook)):
                hook.post_forward(module, None)


def _candidates(pipeline: Any) -> list[_Kept]:
    """What is to be read, up to LIMIT_BYTES."""
    found = [
        _Kept(module, name, tensor, hook)
        for part in _offloaded(pipeline)
        for module in part.modules()
        if module is part or next(module.children(), None) is not None
        for hook in _keepers(module)
        for name, tensor in _tensors(module, hook)
        if tensor.is_meta and name not in vars(module)
    ]
    found.sort(key=lambda kept: kept.tensor.nbytes)
    chosen: list[_Kept] = []
    total = 0
    for kept in found:
        total += kept.tensor.nbytes
        if total > LIMIT_BYTES:
            logger.debug("%d weights stay on meta, from %s on", len(found) - len(chosen), kept.name)
            break
        chosen.append(kept)
    return chosen


def _value(kept: _Kept) -> torch.Tensor:
    """What accelerate would put in the tensor's place for a forward."""
    value: torch.Tensor = kept.hook.weights_map[kept.name].detach()
    device = as_device(kept.hook.execution_device) or value.device
    value = value.to(device, kept.tensor.dtype)
    if isinstance(kept.tensor, torch.nn.Parameter):
        # accelerate copies requires_grad from what it finds under the name.
        return torch.nn.Parameter(value, requires_grad=kept.tensor.requires_grad)
    return value


def _offloaded(pipeline: Any) -> list[torch.nn.Module]:
    """The parts of `pipeline` (or itself) at whose top accelerate's hooks for weights hang."""
    parts = [pipeline, *getattr(pipeline, "__dict__", {}).values()]
    modules = [
        part._modules.get("_orig_mod") or part  # what torch.compile wraps
        for part in parts
        if isinstance(part, torch.nn.Module)
    ]
    return [
        module for module in modules if any(hasattr(h, "weights_map") for h in flat_hooks(module))
    ]


def _keepers(module: torch.nn.Module) -> list[Any]:
    """The hooks that hold values of a module's own tensors."""
    return [
        hook for hook in flat_hooks(module)
        if getattr(hook, "offload", False) and getattr(hook, "weights_map", None) is not None
    ]  # fmt: skip


def _tensors(module: torch.nn.Module, hook: Any) -> list[tuple[str, torch.Tensor]]:
    """The module's own tensors that `hook` keeps, by name."""
    found: list[tuple[str, Any]] = list(module._parameters.items())
    if getattr(hook, "offload_buffers", False):
        left_alone = module._non_persistent_buffers_set
        found += [item for item in module._buffers.items() if item[0] not in left_alone]
    return [(name, tensor) for name, tensor in found if tensor is not None]
