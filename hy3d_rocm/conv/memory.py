"""How much memory a device has left, and giving back what nobody uses."""

from __future__ import annotations

import gc
import importlib
import math
import time
from pathlib import Path

import torch

from hy3d_rocm.conv import prepared

_CGROUP = Path("/sys/fs/cgroup")


def gpu_in_use() -> bool:
    """Whether this process has started CUDA or HIP; never starts it."""
    # torch leaves is_initialized unannotated.
    return torch.cuda.is_available() and bool(
        torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    )


def free_bytes(device: torch.device) -> int | None:
    """Bytes that an allocation on `device` could still get, or None where nobody can tell.

    CUDA and HIP: what the driver has plus what PyTorch's allocator holds unused (it gives that
    back by itself before it reports out of memory). CPU: what the kernel calls available, and
    no more than the control group allows.
    """
    if device.type == "cuda" and gpu_in_use():
        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        # On APUs the driver has reported 2^34 GiB (a negative number) as free:
        # https://github.com/Comfy-Org/ComfyUI/issues/2431
        return int(free if free <= total else 0) + idle
    if device.type == "cpu":
        bounds = [n for n in (_available_host_bytes(), _cgroup_bytes()) if n is not None]
        return min(bounds) if bounds else None
    return None


def _available_host_bytes() -> int | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def _cgroup_bytes() -> int | None:
    """Control group v2 only. Inactive file cache counts as used there but can be dropped."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text())
        rows = (_CGROUP / "memory.stat").read_text().splitlines()
        cache = next((int(r.split()[1]) for r in rows if r.startswith("inactive_file ")), 0)
        return max(0, int(limit) - used + cache)
    except (OSError, ValueError):
        return None


class _Collector:
    """gc.collect() at most a tenth of the time: with a large heap it takes 0.3 s, and a decode
    that runs out of memory may do so in each of its 60 shapes."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._end = -math.inf

    def collect(self) -> None:
        start = time.perf_counter()
        if start - self._end >= 9 * self._seconds:
            gc.collect()
            self._end = time.perf_counter()
            self._seconds = self._end - start


_collector = _Collector()


def release(device: torch.device) -> int:
    """Collects cycles that hold tensors, then empties PyTorch's allocator where it is in use; for
    the CPU also the cache of prepared weights.

    Returns the bytes of tensors that died on a CUDA or HIP `device`, for the CPU those of the
    cache: of tensors that can't be told there from what other processes do.
    """
    before = _allocated(device)
    _collector.collect()
    if gpu_in_use():
        torch.cuda.empty_cache()
    if device.type == "cpu":
        return prepared.give_back()
    return max(0, before - _allocated(device))


def _allocated(device: torch.device) -> int:
    if device.type == "cuda" and gpu_in_use():
        return torch.cuda.memory_allocated(device)
    return 0
