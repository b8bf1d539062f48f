"""`enable_model_cpu_offload()` without a device, called by code that is not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hy3d_rocm.offload.policy import Decision, Policy
from hy3d_rocm.offload.transfer import Progress

if TYPE_CHECKING:
    import torch

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


@contextmanager
def offload_scope(
    policy: Policy,
    device: torch.device | str,
    memory: Memory,
    progress: Progress | None = None,
) -> Iterator[Scope]:
    """While open, in this thread only: `enable_model_cpu_offload()` follows policy and `device`.

    Needs diffusers_changes() to be applied. A call that names a device or gpu_id is its author's
    and goes through unchanged. With a CPU as `device` the call does nothing but say so.
    """
    raise NotImplementedError
    yield


def diffusers_changes() -> list[Change]:
    """The change to diffusers that offload_scope needs; inert while no scope is open."""
    raise NotImplementedError
