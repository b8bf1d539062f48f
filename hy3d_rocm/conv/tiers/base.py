"""What every tier is and shares: the Protocol, questions to a tier, the sentences about memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.errors import described, is_cancel, is_lost
from hy3d_rocm.units import size_text

_T = TypeVar("_T")


class _Thread(threading.local):
    """around: entered by this thread around the first use of a kernel that a tier compiles."""

    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


THREAD = _Thread()

# Reading the free memory takes 0.2 ms on Linux: not worth it for a buffer that always fits.
SMALL_BYTES = 1 << 20


class Shortage(str):
    """A refusal that is over once more memory is free."""


class Tier(Protocol):
    """One way to compute a convolution. Stateless between calls, may be shared by threads."""

    @property
    def name(self) -> str:
        """Short and fixed: the name in statistics, faults and protect(tiers=...)."""

    def label(self, call: ConvCall) -> str:
        """What a user reads in "from now on: ..."."""

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Predicted bytes beside input, weight and output on `spec.device`; 0 if unknown."""

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        """Why this tier can't take the call (a few words), or None."""

    def run(self, call: ConvCall) -> torch.Tensor:
        """The result, batched or not as the input was, of dtype and device of the call."""


# Questions to a tier, whose code may be what is broken: an answer comes in any case. Only a cancel
# and a lost device pass through: after that nobody can answer anything.


def _answer(ask: Callable[[], _T], otherwise: Callable[[Exception], _T]) -> _T:
    try:
        return ask()
    except Exception as error:
        if is_cancel(error) or is_lost(error):
            raise
        return otherwise(error)


def refusal_of(tier: Tier, call: ConvCall, limits: Limits) -> str | None:
    """Why the tier can't take the call, or None; a tier that can't even say so can't."""

    def ask() -> str | None:
        reason = tier.refusal(call, limits)
        if reason is None:
            tier.workspace_bytes(call.spec)
        return reason

    return _answer(ask, lambda error: f"asking it failed ({described(error)})")


def workspace_of(tier: Tier, spec: ConvSpec) -> int:
    """The bytes that it predicts, 0 where it can't (refusal_of says so)."""
    return _answer(lambda: tier.workspace_bytes(spec), lambda error: 0)


def label_of(tier: Tier, call: ConvCall) -> str:
    """What a user reads, its name where it can't say."""
    return _answer(lambda: tier.label(call), lambda error: tier.name)


def free_bytes(device: torch.device) -> int | None:
    """As memory.free_bytes; None too where the device can't say."""
    return _answer(lambda: memory.free_bytes(device), lambda error: None)


def foreign(device: torch.device) -> str | None:
    """Why a tier made for the CPU, CUDA and HIP can't be asked, or None."""
    if device.type in ("cpu", "cuda"):
        return None
    return f"it is made for the CPU, CUDA and HIP, and the call is on {device.type}"


def allowance(limits: Limits, device: torch.device) -> int | None:
    """Bytes that workspace and output may take together, or None where nothing bounds them."""
    free = memory.free_bytes(device)
    bounds = [] if limits.budget is None else [limits.budget]
    if free is not None:
        bounds.append(int(free * limits.memory_threshold))
    return min(bounds) if bounds else None


def shortage(need: int, limits: Limits, device: torch.device, what: str) -> Shortage | None:
    """A sentence where `need` bytes of workspace and output are more than may be taken, or None.

    `what` names the bytes: "its im2col buffer and output".
    """
    if limits.budget is not None and need > limits.budget:
        return Shortage(f"{what} need {size_text(need)} of a budget of {size_text(limits.budget)}")
    if need <= SMALL_BYTES:
        return None
    free = memory.free_bytes(device)
    if free is not None and need > free * limits.memory_threshold:
        return Shortage(
            f"{what} need {size_text(need)}, and {limits.memory_threshold:.0%} of the"
            f" {size_text(free)} that are free is less"
        )
    return None


def empty_result(spec: ConvSpec) -> torch.Tensor:
    """A result to be written: batched, in the memory format of the call."""
    return torch.empty(
        spec.out_size, dtype=spec.dtype, device=spec.device, memory_format=spec.memory_format
    )
