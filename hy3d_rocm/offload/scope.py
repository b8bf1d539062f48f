"""`enable_model_cpu_offload()` without a device, called by code that is not ours."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hy3d_rocm.offload.apply import apply
from hy3d_rocm.offload.components import indexed
from hy3d_rocm.offload.policy import Decision, Policy, check_policy
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
    decisions: list[Decision] = field(default_factory=list)


_local = threading.local()


@contextmanager
def offload_scope(
    policy: Policy,
    device: torch.device | str,
    memory: Memory,
    progress: Progress | None = None,
) -> Iterator[Scope]:
    """While open, in this thread only: `enable_model_cpu_offload()` follows policy and `device`.

    Needs diffusers_changes() to be applied. A call that names a device or gpu_id is its author's
    and goes through unchanged. With a CPU as `device` the call does nothing but say so. memory is
    asked at each such call. Scopes nest; the innermost counts.
    """
    scope = Scope(check_policy(policy), indexed(device), memory, progress)
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
    """The change to diffusers that offload_scope needs; inert while no scope is open.

    Imports diffusers. An ImportError of it goes on.
    """
    from diffusers import DiffusionPipeline

    return [Change(DiffusionPipeline, "enable_model_cpu_offload", scoped)]


def scoped(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` (enable_model_cpu_offload), which follows the open scope if no device is given."""

    @functools.wraps(original)
    def enable_model_cpu_offload(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope()
        given = [value for value in (*args, *kwargs.values()) if value is not None]
        if scope is None or given:
            return original(pipeline, *args, **kwargs)
        free, total = scope.memory()
        decision = apply(pipeline, scope.policy, scope.device, free, total, scope.progress)
        scope.decisions.append(decision)
        logger.info("%s: %s", type(pipeline).__name__, decision.reason)
        return None

    return enable_model_cpu_offload
