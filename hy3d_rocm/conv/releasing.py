"""Giving back memory that nobody uses."""

from __future__ import annotations

import gc
import math
import time

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import prepared

_collected = (0.0, -math.inf)  # what the last collection took, and when it ended


def _collect() -> None:
    """gc.collect() at most a tenth of the time: with a large heap it takes 0.3 s, and a decode
    that runs out of memory may do so in each of its 60 shapes."""
    global _collected
    start, (seconds, end) = time.perf_counter(), _collected
    if start - end >= 9 * seconds:
        gc.collect()
        end = time.perf_counter()
        _collected = end - start, end


def release(device: torch.device) -> int:
    """Collects cycles that hold tensors, then empties PyTorch's allocator where it is in use; for
    the CPU also the cache of prepared weights.

    Returns the bytes of tensors that died on a CUDA or HIP `device`, for the CPU those of the
    cache: of tensors that can't be told there from what other processes do.
    """
    before = _allocated(device)
    _collect()
    if memory.gpu_in_use():
        torch.cuda.empty_cache()
    if device.type == "cpu":
        return prepared.give_back()
    return max(0, before - _allocated(device))


def _allocated(device: torch.device) -> int:
    if device.type == "cuda" and memory.gpu_in_use():
        return torch.cuda.memory_allocated(device)
    return 0
