"""`to(device)` and `enable_model_cpu_offload()` without a device, called by code that is not ours.

A loader that first moves the whole pipeline to the accelerator and then asks for offload needs room
for the weights before anything is decided. So `to` has the scope's `room` make it.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hy3d_rocm.offload import components
from hy3d_rocm.offload.apply import Room, apply
from hy3d_rocm.offload.components import bytes_on, components_of, indexed
from hy3d_rocm.offload.estimate import estimate
from hy3d_rocm.offload.moves import reporting_moves
from hy3d_rocm.offload.policy import HEADROOM_BYTES, Decision, Policy, check_policy
from hy3d_rocm.offload.transfer import Progress

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")

# () -> (free bytes, total bytes) of the device; None where nobody can tell.
Memory = Callable[[], tuple[int | None, int | None]]


class Change(NamedTuple):
    """As the patch engine's Change: attribute `name` of `owner` becomes make(original)."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


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

    Needs diffusers_changes() to be applied. A call that names a device or gpu_id is its author's
    and goes through unchanged. With a CPU as `device` the call does nothing but say so. memory is
    asked at each such call; it may count what `room` would free (see apply). `to(device)` of a
    pipeline is reported to `progress`, after `room` was asked for what is to move and headroom.
    Scopes nest; the innermost counts.
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


def diffusers_changes() -> list[Change]:
    """The changes to diffusers that offload_scope needs; inert while no scope is open.

    Imports diffusers. An ImportError of it goes on.
    """
    from diffusers import DiffusionPipeline

    return [
        Change(DiffusionPipeline, "enable_model_cpu_offload", scoped),
        Change(DiffusionPipeline, "to", scoped_to),
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
