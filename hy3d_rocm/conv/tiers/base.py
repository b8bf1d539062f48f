"""What every tier is and shares: the Protocol, and the sentences about memory."""

from __future__ import annotations

from typing import Protocol

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.units import size_text

__all__ = ["SMALL_BYTES", "Limits", "Tier", "allowance", "empty_result", "foreign", "shortage"]

# Reading the free memory takes 0.2 ms on Linux: not worth it for a buffer that always fits.
SMALL_BYTES = 1 << 20


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


def shortage(need: int, limits: Limits, device: torch.device, what: str) -> str | None:
    """A sentence where `need` bytes of workspace and output are more than may be taken, or None.

    `what` names the bytes: "its im2col buffer and output".
    """
    if limits.budget is not None and need > limits.budget:
        return f"{what} need {size_text(need)} of a budget of {size_text(limits.budget)}"
    if need <= SMALL_BYTES:
        return None
    free = memory.free_bytes(device)
    if free is not None and need > free * limits.memory_threshold:
        return (
            f"{what} need {size_text(need)}, and {limits.memory_threshold:.0%} of the"
            f" {size_text(free)} that are free is less"
        )
    return None


def empty_result(spec: ConvSpec) -> torch.Tensor:
    """A result to be written: batched, in the memory format of the call."""
    return torch.empty(
        spec.out_size, dtype=spec.dtype, device=spec.device, memory_format=spec.memory_format
    )
