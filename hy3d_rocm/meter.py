"""Memory of this process and of the GPU: what a stretch of code took at its peak, giving back, and
the pinned host memory that slices leave a GPU for.

Peaks on the CPU come from the kernel (VmHWM, reset through /proc/self/clear_refs where that is
allowed); a sampling thread adds the time series. glibc keeps freed blocks below its threshold,
which hides what a decode gives back: `give_back()` returns them, `steady_malloc()` makes large
blocks go back at once.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import _native, memory
from hy3d_rocm.diagnose.env.gpu import field, number
from hy3d_rocm.memory import Machine, is_apu
from hy3d_rocm.units import size_text

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MADV_HUGEPAGE, _MADV_POPULATE_WRITE = -1, -3, 14, 23
_LARGE_PAGE, _MAPPED_BYTES = 2 << 20, 32 << 20
_POPULATED_AT_ONCE = 8 << 20  # other threads can map memory in between
#: so much of the memory for slices on the host is made and pinned at once, by each thread
PIECE_BYTES = 64 << 20
#: that this memory stays after a decode, for the next one
KEPT_SECONDS = 5.0
_PINNING_THREADS = 4  # more take no less time (16 cores, an H200's host)
_PORTABLE = 1  # cudaHostRegisterPortable, hipHostRegisterPortable


def machine_of(device: torch.device) -> Machine:
    """The memory of `device` and the host as they are now."""
    host_free, host_total = memory.host_free_bytes(), memory.host_total_bytes()
    if host_free is None or host_total is None:
        raise RuntimeError(
            "This system has no /proc/meminfo to say how much memory is free: install psutil"
            " (pip install psutil), which knows."
        )
    host_free += kept_bytes()
    if device.type != "cuda":
        held = resident_bytes()
        return Machine(str(device), host_free, host_total, host_free, host_total, held)
    properties = torch.cuda.get_device_properties(device)
    free, total = memory.gpu_bytes(device)
    held = int(torch.cuda.memory_allocated(device))
    unified = _is_unified(properties)
    carved = _free_carve_out(properties) if unified else 0
    return Machine(str(device), free, total, host_free, host_total, held, unified, carved)


def _is_unified(properties: Any) -> bool:
    """torch knows (is_integrated), or the architecture's name does."""
    known = bool(getattr(properties, "is_integrated", False))
    return known or is_apu(getattr(properties, "gcnArchName", ""))


def _free_carve_out(properties: Any, devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """What is free of the memory that the firmware took from the host for an APU's GPU alone; 0
    where the driver (Linux, amdgpu) can't be asked."""
    numbers = [getattr(properties, f"pci_{n}_id", None) for n in ("domain", "bus", "device")]
    if any(n is None for n in numbers):
        return 0
    domain, bus, slot = (int(n) for n in numbers if n is not None)
    folder = devices / f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    total, used = (number(folder / f"mem_info_vram_{n}") for n in ("total", "used"))
    return 0 if total is None or used is None else max(total - used, 0)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return _status("VmRSS")


def _status(name: str) -> int:
    if (kilobytes := field(_STATUS, f"{name}:")) is not None:
        return kilobytes * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def held_bytes(device: torch.device) -> int:
    """What the process holds: of a GPU torch's tensors there, else resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return resident_bytes()


def give_back(device: torch.device | None = None) -> None:
    """Collects garbage and returns what the allocators hold unused."""
    gc.collect()
    close_kept()
    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()
    _native.trim()
    trim_malloc()


def trim_malloc() -> None:
    """glibc: gives free heap pages back to the system. Elsewhere: nothing."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def in_large_pages(address: int, size_bytes: int) -> None:
    """Linux, where it may: new memory comes in pages of 2 MB, in a third of the time that 512 small
    ones take when they are first written. Elsewhere, and of less than glibc maps on its own in any
    case: nothing."""
    first = -(-address // _LARGE_PAGE) * _LARGE_PAGE
    length = (address + size_bytes) // _LARGE_PAGE * _LARGE_PAGE - first
    libc = _libc() if size_bytes >= _MAPPED_BYTES else None
    if libc is not None:
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_HUGEPAGE)


def populate(address: int, size_bytes: int) -> None:
    """Linux 5.14 and later: new memory gets its pages now, not when it is first written; what is in
    it stays. Elsewhere nothing."""
    libc, page = _libc(), mmap.PAGESIZE
    end = (address + size_bytes) // page * page if libc else 0
    for first in range(-(-address // page) * page, end, _POPULATED_AT_ONCE):
        length = ctypes.c_size_t(min(_POPULATED_AT_ONCE, end - first))
        if libc.madvise(ctypes.c_void_p(first), length, _MADV_POPULATE_WRITE):
            return


def steady_malloc() -> bool:
    """For a process that measures or bounds its memory: blocks from 64 kB up are mapped on their
    own and go back when freed (glibc otherwise raises the threshold up to 32 MiB and keeps them).
    Process-wide and for good, so never called by decode(). False where there is no glibc."""
    libc, both = _libc(), (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    return libc is not None and all(libc.mallopt(option, 1 << 16) for option in both)


def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None


class HostMemory:
    """Memory for what leaves the device. A few threads give it its pages and pin it, piece by piece
    from its beginning on, while the device computes: one thread takes longer than many a decode."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        if str(device) == "cuda":  # a thread's own may be another
            device = torch.device("cuda", torch.cuda.current_device())
        self._device, self.size_bytes = device, 0
        self._pool = ThreadPoolExecutor(_PINNING_THREADS, "hy3d-pin")
        self._pieces: list[Future[_Piece]] = []
        self.grow(size_bytes)

    def grow(self, size_bytes: int) -> None:
        """So much at least; what is there stays."""
        if self.size_bytes < size_bytes and self.size_bytes % PIECE_BYTES:
            self._drop_last()
        while self.size_bytes < size_bytes:
            piece = min(PIECE_BYTES, size_bytes - self.size_bytes)
            self._pieces.append(self._begun(piece))
            self.size_bytes += piece

    def _begun(self, size_bytes: int) -> Future[_Piece]:
        try:
            return self._pool.submit(_Piece, self._device, size_bytes)
        except RuntimeError:  # there are no threads to be had any more
            made = Future[_Piece]()
            made.set_result(_Piece(self._device, size_bytes))
            return made

    def _drop_last(self) -> None:
        self.size_bytes -= self.size_bytes % PIECE_BYTES or PIECE_BYTES
        _end(self._pieces.pop())

    def parts(self, first: int, stop: int) -> Iterator[Tensor]:
        """These bytes, each part once it is pinned. MemoryError where there are none."""
        while first < stop:
            number, begin = divmod(first, PIECE_BYTES)
            end = min(begin + stop - first, PIECE_BYTES)
            piece = self._pieces[number]
            if piece.done() and piece.exception() is not None:  # there may be memory now
                size = min(PIECE_BYTES, self.size_bytes - number * PIECE_BYTES)
                piece = self._pieces[number] = self._begun(size)
            yield piece.result().bytes[begin:end]
            first += end - begin

    def leave(self) -> None:
        """No copy is under way any more. A decode that begins within KEPT_SECONDS may have it."""
        self._timer = threading.Timer(KEPT_SECONDS, close_kept, (self,))
        self._timer.daemon = True
        with _lock:
            former, _kept[:] = _kept[:], [self]
        for one in former:
            one.close()
        try:
            self._timer.start()
        except RuntimeError:  # no thread is to be had
            close_kept(self)

    def take(self, size_bytes: int) -> HostMemory:
        """For a decode that needs so much, of what another left."""
        self._timer.cancel()
        while self.size_bytes >= size_bytes + PIECE_BYTES:
            self._drop_last()
        self.grow(size_bytes)
        return self

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        while self._pieces:
            self._drop_last()


# What is on its way back, one at a time.
_lock, _end_lock = threading.Lock(), threading.Lock()
_kept, _closing = list[HostMemory](), list[HostMemory]()
_is_over = False


def kept_bytes() -> int:
    """Host memory that is left for the next decode, which has it or closes it, or on its way
    back."""
    return sum(one.size_bytes for one in [*_kept, *_closing])


def host_memory(device: torch.device, size_bytes: int) -> HostMemory:
    """What another decode left, grown where it is not enough, or new memory."""
    with _lock:
        former = _kept.pop() if _kept else None
    return HostMemory(device, size_bytes) if former is None else former.take(size_bytes)


def close_kept(only: HostMemory | None = None) -> None:
    """Gives back what the last decode left; it has gone when this returns. only: that of a timer,
    which does nothing at the end of the process."""
    with _end_lock:
        if _is_over and only is not None:
            return
        with _lock:
            going = [one for one in _kept if only is None or one is only]
            _kept[:] = [one for one in _kept if one not in going]
            _closing[:] = going
        for one in going:
            one.close()
        _closing.clear()


@atexit.register
def _close_at_end() -> None:
    """No timer may be in CUDA's hands when Python ends: that would end the process with an
    error."""
    global _is_over
    close_kept()
    _is_over = True


def _after_fork() -> None:
    """In a child nothing of it is mapped, and it is the parent's affair."""
    global _lock, _end_lock
    _lock, _end_lock = threading.Lock(), threading.Lock()
    _kept.clear()
    _closing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Piece:
    """New memory with all its pages, pinned where the system allows it. MemoryError.

    end(): it is not pinned any more; that happens at the latest before it goes.
    """

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        # Shared memory, Python's default, takes six times as long and has no large pages.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        try:
            room = mmap.mmap(-1, size_bytes, **private)
        except OSError as error:
            raise MemoryError(f"no {size_text(size_bytes, 2)} of host memory: {error}") from error
        if hasattr(mmap, "MADV_DONTFORK"):  # a copy of its pages would not be where CUDA writes
            room.madvise(mmap.MADV_DONTFORK)
        self.bytes = torch.frombuffer(room, dtype=torch.uint8)
        address = self.bytes.data_ptr()
        in_large_pages(address, size_bytes)
        populate(address, size_bytes)
        is_pinned = False
        if device.type == "cuda":
            with torch.cuda.device(device):  # of this thread: the error of a refusal is, too
                refused = _runtime().cudaHostRegister(address, size_bytes, _PORTABLE)
            is_pinned = not int(refused)
        self.end = weakref.finalize(self, _unpin, device, address, os.getpid(), is_pinned)


def _unpin(device: torch.device, address: int, process: int, is_pinned: bool) -> None:
    if is_pinned and process == os.getpid():
        with torch.cuda.device(device):
            _runtime().cudaHostUnregister(address)


def _end(piece: Future[_Piece]) -> None:
    if not (piece.cancel() or piece.exception()):
        piece.result().end()


def _runtime() -> Any:
    """CUDA's or HIP's, by the names of CUDA's."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class PeakMeter:
    """Peak memory of a `with` block above what was in use at its start, and a time series.

    On the CPU resident memory, on a GPU the allocator's counters. `series`: (seconds since start,
    bytes above the start) every `interval` seconds (0: no series).
    exact: resets the kernel's or the allocator's high-water mark, of which there is one a process,
    so one exact meter at a time; without it the peak is that of the samples. keeps_cache: what
    allocators hold unused is not given back first: filling it anew would be timed, too.
    """

    def __init__(
        self, device: torch.device | str = "cpu", interval: float = 0.02, exact: bool = True,
        keeps_cache: bool = False,
    ) -> None:  # fmt: skip
        self.device = torch.device(device)
        self.exact, self.keeps_cache, self.interval = exact, keeps_cache, interval
        self.baseline_bytes = 0
        self.peak_bytes = 0
        self.seconds = 0.0
        self.series: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampled = 0
        self._began = 0.0

    def __enter__(self) -> PeakMeter:
        if self.exact:
            if self.keeps_cache:
                gc.collect()  # what only a cycle keeps alive is not the block's memory
            else:
                give_back(self.device)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
                torch.cuda.reset_peak_memory_stats(self.device)
            else:
                self.exact = _reset_high_water()
        self.baseline_bytes = held_bytes(self.device)
        self._began = time.perf_counter()
        if self.interval > 0:
            self._thread = threading.Thread(target=self._sample, daemon=True, name="hy3d-meter")
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.peak_bytes = max(self._high_water() - self.baseline_bytes, 0)

    def _high_water(self) -> int:
        sampled = max(self._sampled, held_bytes(self.device))
        if not self.exact:
            return sampled
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return max(_status("VmHWM"), sampled)

    def _sample(self) -> None:
        while not self._stop.wait(self.interval):
            now = held_bytes(self.device)
            self._sampled = max(self._sampled, now)
            self.series.append((time.perf_counter() - self._began, now - self.baseline_bytes))


def _reset_high_water() -> bool:
    """VmHWM := VmRSS. False where the kernel or the sandbox does not let us."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return _status("VmHWM") - _status("VmRSS") < 1 << 20
