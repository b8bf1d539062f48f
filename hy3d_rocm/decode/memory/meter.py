"""Memory of this process and of the GPU: what is free, and what a stretch of code took at its peak.

Peaks on the CPU come from the kernel (VmHWM, reset through /proc/self/clear_refs where that is
allowed); a sampling thread adds the time series. glibc keeps freed blocks below its threshold,
which hides what a decode gives back: `give_back()` returns them, `steady_malloc()` makes large
blocks go back at once.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.decode.memory.budget import Machine, is_apu

if TYPE_CHECKING:
    from types import TracebackType

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def free_bytes(device: torch.device) -> int:
    """What can be allocated on `device` now: for a GPU what the driver has plus what torch's
    allocator holds unused; for the CPU MemAvailable, within the control group's limit."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        # On APUs the driver has reported 2^34 GiB (a negative number) as free:
        # https://github.com/Comfy-Org/ComfyUI/issues/2431
        return int(free if free <= total else 0) + int(idle)
    return host_free_bytes()


def host_free_bytes(root: Path = Path("/")) -> int:
    """What the kernel calls available, and no more than any control group of this process allows.
    root: where proc and sys are (tests)."""
    available = _meminfo("MemAvailable", root)
    if available is None:
        import psutil

        available = int(psutil.virtual_memory().available)
    return min([available, *_group_rooms(root)])


def host_total_bytes(root: Path = Path("/")) -> int:
    """All of the host's memory, or the control group's limit where that is less."""
    total = _meminfo("MemTotal", root)
    if total is None:
        import psutil

        total = int(psutil.virtual_memory().total)
    limits = [limit for folder, names in _groups(root) if (limit := _limit(folder / names[0]))]
    return min([total, *limits])


def machine_of(device: torch.device) -> Machine:
    """The memory of `device` and the host as they are now."""
    host_free, host_total = host_free_bytes(), host_total_bytes()
    if device.type != "cuda":
        held = resident_bytes()
        return Machine(str(device), host_free, host_total, host_free, host_total, held)
    properties = torch.cuda.get_device_properties(device)
    total = int(torch.cuda.mem_get_info(device)[1])
    held = int(torch.cuda.memory_allocated(device))
    unified = _is_unified(properties)
    return Machine(
        str(device),
        free_bytes(device),
        total,
        host_free,
        host_total,
        held,
        unified,
        _free_carve_out(properties) if unified else 0,
    )


def _is_unified(properties: Any) -> bool:
    """torch knows (is_integrated), or the architecture's name does."""
    if getattr(properties, "is_integrated", False):
        return True
    return is_apu(getattr(properties, "gcnArchName", ""))


def _free_carve_out(properties: Any, devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """What is free of the memory that the firmware took from the host for an APU's GPU alone; 0
    where the driver (Linux, amdgpu) can't be asked."""
    numbers = [getattr(properties, f"pci_{n}_id", None) for n in ("domain", "bus", "device")]
    if any(n is None for n in numbers):
        return 0
    domain, bus, slot = (int(n) for n in numbers if n is not None)
    folder = devices / f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    total, used = _number(folder / "mem_info_vram_total"), _number(folder / "mem_info_vram_used")
    return 0 if total is None or used is None else max(total - used, 0)


# Limit, usage and the name in memory.stat of file cache that can be dropped, for versions 2 and 1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _groups(root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """Folders of this process's control group and those above it, with their files' names.

    In a container the path that the kernel tells may not exist in the mount: then the mount's own
    top is the container's group.
    """
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, names = mount, _V2
        elif "memory" in controllers.split(","):
            top, names = mount / "memory", _V1
        else:
            continue
        folder = top / path.lstrip("/")
        while folder != top:
            found.append((folder, names))
            folder = folder.parent
        found.append((top, names))
    return found


def _group_rooms(root: Path) -> list[int]:
    rooms = []
    for folder, (limit_name, usage_name, cache_name) in _groups(root):
        limit, used = _limit(folder / limit_name), _number(folder / usage_name)
        if limit is not None and used is not None:
            rooms.append(max(limit - used + _statistic(folder, cache_name), 0))
    return rooms


def _limit(path: Path) -> int | None:
    """A limit, or None for "max" (version 2) and the number near 2^63 that stands for it (1)."""
    count = _number(path)
    return None if count is None or count >= 1 << 60 else count


def _statistic(folder: Path, name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(name + " "):
                return int(line.split()[1])
    return 0


def _meminfo(field: str, root: Path = Path("/")) -> int | None:
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def resident_bytes() -> int:
    """Resident memory of this process."""
    return _status("VmRSS")


def _status(field: str) -> int:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def give_back(device: torch.device | None = None) -> None:
    """Collects garbage and returns what the allocators hold unused."""
    gc.collect()
    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()
    _native.trim()
    trim_malloc()


def trim_malloc() -> None:
    """glibc: gives free heap pages back to the system. Elsewhere: nothing."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def steady_malloc(threshold: int = 1 << 16) -> bool:
    """For a process that measures or bounds its memory: blocks from `threshold` bytes up are mapped
    on their own and go back when freed (glibc otherwise raises the threshold up to 32 MiB and keeps
    them). Process-wide and for good, so never called by decode(). False where there is no glibc."""
    libc = _libc()
    if libc is None:
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, threshold) and libc.mallopt(_M_TRIM_THRESHOLD, threshold)
    )


def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None


class PeakMeter:
    """Peak memory of a `with` block above what was in use at its start, and a time series.

    On the CPU resident memory, on a GPU the allocator's counters. `series`: (seconds since start,
    bytes above the start) every `interval` seconds (0: no series). `marks`: (seconds, label).
    exact: resets the kernel's or the allocator's high-water mark, of which there is one a process,
    so one exact meter at a time; without it the peak is that of the samples.
    """

    def __init__(
        self, device: torch.device | str = "cpu", interval: float = 0.02, exact: bool = True
    ) -> None:
        self.device = torch.device(device)
        self.exact = exact
        self.interval = interval
        self.baseline_bytes = 0
        self.peak_bytes = 0
        self.seconds = 0.0
        self.series: list[tuple[float, int]] = []
        self.marks: list[tuple[float, str]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampled = 0
        self._began = 0.0

    def mark(self, label: str) -> None:
        """Remembers that `label` (a grain, a tier) began now."""
        self.marks.append((time.perf_counter() - self._began, label))

    def __enter__(self) -> PeakMeter:
        if self.exact:
            give_back(self.device)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
                torch.cuda.reset_peak_memory_stats(self.device)
            else:
                self.exact = _reset_high_water()
        self.baseline_bytes = self._now()
        self._began = time.perf_counter()
        if self.interval > 0:
            self._thread = threading.Thread(target=self._sample, daemon=True, name="hy3d-meter")
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.peak_bytes = max(self._high_water() - self.baseline_bytes, 0)

    def _now(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.device))
        return resident_bytes()

    def _high_water(self) -> int:
        sampled = max(self._sampled, self._now())
        if not self.exact:
            return sampled
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return max(_status("VmHWM"), sampled)

    def _sample(self) -> None:
        while not self._stop.wait(self.interval):
            now = self._now()
            self._sampled = max(self._sampled, now)
            self.series.append((time.perf_counter() - self._began, now - self.baseline_bytes))


def _reset_high_water() -> bool:
    """VmHWM := VmRSS. False where the kernel or the sandbox does not let us."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return _status("VmHWM") - _status("VmRSS") < 1 << 20
