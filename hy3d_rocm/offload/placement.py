"""Carrying a decision out on a pipeline: hooks on or off, weights where they belong. And the same
for `to(device)` and `enable_model_cpu_offload()` without a device, by code that is not ours."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.offload import components
from hy3d_rocm.offload.components import (
    Mode,
    bytes_on,
    compiled_components,
    components_of,
    current_mode,
    flat_hooks,
    indexed,
    is_kind,
    unwrap,
)
from hy3d_rocm.offload.memory import (
    HEADROOM_BYTES,
    Decision,
    Policy,
    check_policy,
    decide,
    estimate,
)
from hy3d_rocm.offload.transfer import Progress, move, reporting_moves

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")


# room(needed_bytes): has others give memory back until that much is free on the device, if that can
# be had; returns the bytes that are free then, None where nobody can tell.
Room = Callable[[int], int | None]

# What diffusers and accelerate raise where a pipeline cannot be offloaded or moved. Deliberately
# not Exception: ComfyUI's cancel is one in some versions and must go through.
_REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError, ImportError, KeyError)


def apply(
    pipeline: Any, policy: Policy, device: torch.device | str, free_bytes: int | None,
    total_bytes: int | None, progress: Progress | None = None, room: Room | None = None,
) -> Decision:  # fmt: skip
    """Decides for this pipeline on `device`, and enables or removes its offload hooks.

    free_bytes: free on `device` now, as the driver and the allocator say; what the pipeline
    itself has there is added. It may count what others would give back: `room` then makes them,
    before weights move there, and "auto" decides again if less came of it. Returns what holds
    afterwards, with the reason, also where a pipeline is left as it is (docs/offload.md) or cannot
    be changed: then it is put back as it was. What `progress` and `room` raise goes on after that.
    """
    check_policy(policy)
    target, pipeline = indexed(device), unwrap(pipeline)
    mode = current_mode(pipeline)
    left_alone = _why_not(pipeline, policy, target, mode)
    if left_alone is not None:
        return Decision(mode != "resident", left_alone)
    known, held = estimate(pipeline), bytes_on(components_of(pipeline), target)
    if free_bytes is not None:
        free_bytes += held
    decision = decide(policy, known, free_bytes, total_bytes)
    if room is not None and known.parameter_bytes and not decision.offload:
        freed = room(max(known.resident_bytes + HEADROOM_BYTES - held, 0))
        if policy == "auto" and freed is not None and free_bytes is not None:
            decision = decide(policy, known, min(freed + held, free_bytes), total_bytes)
    refusal = _carry_out(pipeline, decision.offload, target, progress)
    if refusal is None:
        return decision
    if not decision.offload:
        # Free memory was not what it seemed. Outside of the except block, the failed tensors gone.
        again = _carry_out(pipeline, True, target, progress)
        if again is None:
            return Decision(True, f"{decision.reason}, but {refusal}: offloaded")
    return Decision(current_mode(pipeline) != "resident", f"{refusal}: the pipeline is as it was")


def _why_not(pipeline: Any, policy: Policy, device: torch.device, mode: Mode) -> str | None:
    """Why the pipeline is left as it is; None: it is not."""
    name, as_it_is = type(pipeline).__name__, "offloaded" if mode == "model" else mode
    if not components.is_accelerator(device):
        return f"{name} runs on {device}: there is no accelerator to offload from, left as it is"
    compiled = compiled_components(pipeline)
    if compiled:
        return (
            f"{', '.join(compiled)} of {name} is compiled: left {as_it_is}, since offload "
            "hooks make torch.compile compile again at each move"
        )
    if not callable(getattr(pipeline, "enable_model_cpu_offload", None)):
        return f"{name} has no enable_model_cpu_offload: left {as_it_is}"
    if getattr(pipeline, "hf_device_map", None) is not None:
        return f"{name} has a device map, which places its weights: left as it is"
    parts = (part for module in components_of(pipeline).values() for part in module.modules())
    # diffusers keeps its own hooks in a registry on each module.
    registries = (getattr(part, "_diffusers_hook", None) for part in parts)
    if any("group_offloading" in getattr(registry, "hooks", {}) for registry in registries):
        return f"{name} uses group offload, which places its weights: left as it is"
    if mode == "sequential" and policy == "auto":
        return (
            f"{name} uses sequential offload: left as it is; set the policy to off or on to have "
            "its weights resident or moved by whole components"
        )
    return None


def _carry_out(
    pipeline: Any, offload: bool, device: torch.device, progress: Progress | None
) -> str | None:
    """Makes it so, or puts the pipeline back and returns what the matter is."""
    before = _Placement(pipeline)
    if before.is_already(offload, device):
        return None
    try:
        _remove_hooks(pipeline)  # as diffusers does it: old hooks go first, then the weights
        for name, module in components_of(pipeline).items():
            move(module, indexed("cpu") if offload else device, progress, name)
        if offload:
            if device.index is not None:
                # diffusers reads an index of 0 as none given and would take the last one used.
                pipeline._offload_gpu_id = device.index
            pipeline.enable_model_cpu_offload(device=device)
            components.empty_cache(device)
    except _REFUSALS as error:
        before.restore()
        doing = "offload could not be enabled" if offload else "the weights could not be moved"
        return f"{doing} ({first_line(error)})"
    except BaseException:
        before.restore()
        raise
    return None


def _remove_hooks(pipeline: Any) -> None:
    """remove_all_hooks, or the same by hand where the pipeline lacks it."""
    remove = getattr(pipeline, "remove_all_hooks", None)
    if current_mode(pipeline) != "resident" and callable(remove):
        remove()
    if current_mode(pipeline) != "resident":
        from accelerate.hooks import remove_hook_from_module

        for module in components_of(pipeline).values():
            remove_hook_from_module(module, recurse=True)
    # Or maybe_free_model_hooks, which every call ends with, would enable offload again.
    if getattr(pipeline, "_all_hooks", None):
        pipeline._all_hooks = []


class _Placement:
    """How a pipeline's weights were placed, to go back to."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._mode = current_mode(pipeline)
        self._device = _hook_device(pipeline)
        self._homes = {
            name: next(
                map(components.device_of, chain(module.parameters(), module.buffers())), None
            )
            for name, module in components_of(pipeline).items()
        }

    def is_already(self, offload: bool, device: torch.device) -> bool:
        """Whether nothing needs to be done."""
        if offload:
            return self._mode == "model" and self._device == device
        modules = components_of(self._pipeline)
        whole = sum(estimate(self._pipeline).component_bytes.values())
        return self._mode == "resident" and bytes_on(modules, device) == whole

    def restore(self) -> None:
        """Best effort: the same mode again, on the same devices. Says what did not work."""
        try:
            _remove_hooks(self._pipeline)
            for name, module in components_of(self._pipeline).items():
                home = self._homes.get(name)
                if home is not None:
                    # Under hooks a weight's home is the CPU, wherever it happened to be.
                    move(module, home if self._mode == "resident" else indexed("cpu"), None, name)
            if self._mode == "model" and self._device is not None:
                self._pipeline.enable_model_cpu_offload(device=self._device)
            elif self._mode == "sequential" and self._device is not None:
                self._pipeline.enable_sequential_cpu_offload(device=self._device)
        except _REFUSALS as error:
            logger.warning(
                "%s could not be put back as it was (%s); load it again",
                type(self._pipeline).__name__, first_line(error),
            )  # fmt: skip


def _hook_device(pipeline: Any) -> torch.device | None:
    """Execution device of the pipeline's offload hooks; None without hooks."""
    from hy3d_rocm.device import as_device

    for module in components_of(pipeline).values():
        for part in module.modules():
            for hook in flat_hooks(part):
                device = as_device(getattr(hook, "execution_device", None))
                known = is_kind(hook, "CpuOffload") or is_kind(hook, "AlignDevicesHook")
                if known and device is not None:
                    return indexed(device)
    return None


# () -> (free bytes, total bytes) of the device; None where nobody can tell.
Memory = Callable[[], tuple[int | None, int | None]]


@dataclass
class Scope:
    """An open offload_scope. decisions: what was decided in it, in order."""

    policy: Policy
    device: torch.device
    memory: Memory
    progress: Progress | None = None
    room: Room | None = None
    decisions: list[Decision] = field(default_factory=list)


_local = threading.local()


@contextmanager
def offload_scope(
    policy: Policy,
    device: torch.device | str,
    memory: Memory,
    progress: Progress | None = None,
    room: Room | None = None,
) -> Iterator[Scope]:
    """While open, in this thread only: `enable_model_cpu_offload()` follows policy and `device`.

    Needs diffusers_changes() to be applied. A call that names a device or gpu_id goes through
    unchanged. memory, room: see apply; `to(device)` of a pipeline is reported to `progress`, after
    `room` was asked for what is to move and headroom. Scopes nest; the innermost counts.
    """
    scope = Scope(check_policy(policy), indexed(device), memory, progress, room)
    outer = current_scope()
    _local.scope = scope
    try:
        yield scope
    finally:
        _local.scope = outer


def current_scope() -> Scope | None:
    """The innermost scope that this thread has open."""
    return getattr(_local, "scope", None)


def diffusers_changes() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """The changes to diffusers that offload_scope needs, as (owner, name, make): the attribute
    `name` of `owner` becomes make(original). Inert while no scope is open.

    Imports diffusers. An ImportError of it goes on.
    """
    from diffusers import DiffusionPipeline

    return [
        (DiffusionPipeline, "enable_model_cpu_offload", scoped),
        (DiffusionPipeline, "to", scoped_to),
    ]


def scoped(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` (enable_model_cpu_offload), which follows the open scope if no device is given."""

    @functools.wraps(original)
    def enable_model_cpu_offload(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope()
        given = [value for value in (*args, *kwargs.values()) if value is not None]
        if scope is None or given:
            return original(pipeline, *args, **kwargs)
        free, total = scope.memory()
        decision = apply(
            pipeline, scope.policy, scope.device, free, total, scope.progress, scope.room
        )  # fmt: skip
        scope.decisions.append(decision)
        logger.info("%s: %s", type(pipeline).__name__, decision.reason)
        return None

    return enable_model_cpu_offload


def scoped_to(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` (a pipeline's `to`), with room and progress in an open scope."""

    @functools.wraps(original)
    def to(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope()
        if scope is None:
            return original(pipeline, *args, **kwargs)
        if scope.room is not None and _goes_to(scope.device, (*args, *kwargs.values())):
            missing = estimate(pipeline).parameter_bytes
            missing -= bytes_on(components_of(pipeline), scope.device)
            if missing > 0:
                scope.room(missing + HEADROOM_BYTES)
        with reporting_moves(pipeline, scope.progress):
            return original(pipeline, *args, **kwargs)

    return to


def _goes_to(device: torch.device, values: Iterable[object]) -> bool:
    """Whether one of the arguments of a pipeline's `to` is this accelerator."""
    from hy3d_rocm.device import as_device

    if not components.is_accelerator(device):
        return False
    found = map(as_device, values)
    return any(indexed(place) == device for place in found if place is not None)
