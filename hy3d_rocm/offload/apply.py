"""Carrying a decision out on a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload.policy import Decision, Policy
from hy3d_rocm.offload.transfer import Progress

if TYPE_CHECKING:
    import torch


def apply(
    pipeline: Any,
    policy: Policy,
    device: torch.device | str,
    free_bytes: int | None,
    total_bytes: int | None,
    progress: Progress | None = None,
) -> Decision:
    """Decides for this pipeline on `device`, and enables or removes its offload hooks.

    free_bytes: free on `device` now, as the driver and the allocator say; what the pipeline
    itself has there is added.
    """
    raise NotImplementedError
