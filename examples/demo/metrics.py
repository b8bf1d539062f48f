"""Picture quality figures used by the demo and its tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def psnr_db(frames: torch.Tensor, reference: torch.Tensor, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in decibels over all elements; infinity for equal tensors.

    `frames` and `reference` have the same shape; `peak` is the value range (1.0 for pixels in
    0..1). Raises ValueError where the shapes differ.
    """
    if frames.shape != reference.shape:
        raise ValueError(
            f"PSNR compares tensors of one shape, got {tuple(frames.shape)} and "
            f"{tuple(reference.shape)}"
        )
    error = (frames.double() - reference.double()).square().mean().item()
    return math.inf if error == 0.0 else 10.0 * math.log10(peak * peak / error)
