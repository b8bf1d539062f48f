"""meter: memory that is asked for before it is written."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import platform
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hy3d_rocm import meter

MB = 1 << 20


def resident(address: int, size_bytes: int) -> int:
    """Of the pages that lie in these bytes, how many have memory."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    told = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(length), told) == 0
    return sum(page & 1 for page in told)


def has_populate() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor)) >= (5, 14)


@pytest.mark.skipif(not has_populate(), reason="Linux before 5.14, or another system")
def test_new_memory_has_all_its_pages_and_what_was_in_it() -> None:
    room = mmap.mmap(-1, 20 * MB + 3 * mmap.PAGESIZE)
    x = torch.frombuffer(room, dtype=torch.uint8)
    x[5 * MB] = 7
    assert resident(x.data_ptr(), x.nbytes) < 1024  # one page, or a large one
    meter.populate(x.data_ptr() + 1, x.nbytes - 2)  # but the first and the last page
    assert resident(x.data_ptr(), x.nbytes) >= x.nbytes // mmap.PAGESIZE - 2
    assert x[5 * MB] == 7
    assert int(x.sum()) == 7


def test_where_the_kernel_knows_nothing_of_it_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.full((20 * MB,), 3, dtype=torch.uint8)
    asked: list[int] = []

    class Libc:
        @staticmethod
        def madvise(first: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> int:
            asked.append(length.value)
            return -1

    monkeypatch.setattr(meter, "_libc", lambda: Libc)
    meter.populate(x.data_ptr(), x.nbytes)
    assert len(asked) == 1, "an old kernel is asked once"
    monkeypatch.setattr(meter, "_libc", lambda: None)
    meter.populate(x.data_ptr(), x.nbytes)
    assert bool((x == 3).all())


GPU = torch.device("cuda", 0)


class Pinning:
    """Stands in for torch.cuda.cudart(): pins every second piece. `pinned`: by address the size of
    what is."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.asked: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.asked.append(size)
        if len(self.asked) % 2:
            return 2
        assert address not in self.pinned
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Pinning()
    monkeypatch.setattr(meter, "PIECE_BYTES", 4096)
    monkeypatch.setattr(meter, "_PINNING_THREADS", 1)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    yield made
    meter.close_kept()
    assert not made.pinned


def test_host_memory_is_pinned_in_pieces_where_the_system_lets_it(system: Pinning) -> None:
    held = meter.HostMemory(GPU, 9000)
    assert held.size_bytes == 9000
    parts = list(held.parts(100, 9000))
    assert [len(part) for part in parts] == [3996, 4096, 808]
    assert system.asked == [4096, 4096, 808]
    assert system.pinned == {parts[1].data_ptr(): 4096}
    assert [len(part) for part in held.parts(4000, 4200)] == [96, 104]
    assert list(held.parts(300, 300)) == []
    held.close()
    assert not system.pinned
    on_cpu = meter.HostMemory(torch.device("cpu"), 9000)
    assert sum(len(part) for part in on_cpu.parts(0, 9000)) == 9000
    on_cpu.close()
    assert len(system.asked) == 3


def test_memory_that_grows_keeps_its_whole_pieces(system: Pinning) -> None:
    held = meter.HostMemory(GPU, 3 * 4096 + 50)
    before = [part.data_ptr() for part in held.parts(0, 3 * 4096 + 50)]
    assert list(system.pinned) == [before[1], before[3]]
    held.grow(100)
    assert held.size_bytes == 3 * 4096 + 50
    held.grow(5 * 4096)
    after = [part.data_ptr() for part in held.parts(0, 5 * 4096)]
    assert after[:3] == before[:3]
    assert list(system.pinned) == [before[1], after[4]], "the part of a piece was not unpinned"
    assert system.asked == [4096, 4096, 4096, 50, 4096, 4096]
    held.grow(6 * 4096 + 1)
    assert [len(part) for part in held.parts(5 * 4096, held.size_bytes)] == [4096, 1]
    held.close()


def test_closed_memory_begins_no_further_piece(
    system: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def populate(address: int, size: int) -> None:
        if len(system.asked) == 3:
            has_begun.set()
            assert may_go_on.wait(60)

    monkeypatch.setattr(meter, "populate", populate)
    held = meter.HostMemory(GPU, 9 * 4096)
    assert has_begun.wait(60)
    assert len(system.pinned) == 1
    threading.Timer(0.05, may_go_on.set).start()
    held.close()
    assert len(system.asked) == 4
    assert not system.pinned


def test_a_piece_that_failed_is_tried_again_when_it_is_asked_for(
    system: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [OSError(12, "no memory"), RuntimeError("the test's"), OSError(12, "no memory")]
    plain = meter.populate

    def fails(*given: int) -> None:
        if left:
            raise left.pop()
        plain(*given)

    monkeypatch.setattr(meter, "populate", fails)
    held = meter.HostMemory(GPU, 5000)
    with pytest.raises((OSError, RuntimeError)):
        list(held.parts(0, 5000))
    assert [len(part) for part in held.parts(0, 5000)] == [4096, 904]
    held.close()
    monkeypatch.setattr("mmap.mmap", lambda *given, **named: fails())
    left.append(OSError(12, "no memory"))
    held = meter.HostMemory(GPU, 4096)
    left += [OSError(12, "no memory")] * 3
    with pytest.raises(MemoryError, match=r"no 4\.00 kB of host memory"):
        list(held.parts(0, 10))
    held.close()


def test_where_no_thread_can_be_had_the_caller_pins(
    system: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*given: Any, **named: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(meter.ThreadPoolExecutor, "submit", refuses)
    held = meter.HostMemory(GPU, 5000)
    assert [len(part) for part in held.parts(0, 5000)] == [4096, 904]
    assert len(system.pinned) == 1
    monkeypatch.setattr(meter.threading.Timer, "start", refuses)
    held.leave()
    assert meter.kept_bytes() == 0
    assert not system.pinned


def test_what_nobody_closes_is_unpinned_before_it_goes(system: Pinning) -> None:
    held = meter.HostMemory(GPU, 8192)
    list(held.parts(0, 8192))
    assert system.pinned
    del held
    gc.collect()
    assert not system.pinned


def test_memory_that_a_decode_left_is_the_next_ones_or_goes_back(
    system: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hy3d_rocm.memory.host_free_bytes", lambda: 1 << 33)
    first = meter.host_memory(GPU, 8192)
    assert meter.kept_bytes() == 0
    first.leave()
    assert meter.kept_bytes() == 8192
    assert meter.machine_of(torch.device("cpu")).host_free == (1 << 33) + 8192
    assert meter.host_memory(GPU, 8000) is first
    assert meter.kept_bytes() == 0
    first.leave()
    assert meter.host_memory(GPU, 50) is first
    assert first.size_bytes == 4096, "more is held than is needed"
    first.grow(8192)
    first.leave()
    assert meter.host_memory(GPU, 8193) is first
    assert first.size_bytes == 8193
    other = meter.host_memory(GPU, 5)  # of a decode in another thread
    assert other is not first
    assert list(first.parts(0, 8193))
    assert len(system.pinned) == 1
    first.leave()
    other.leave()
    assert meter.kept_bytes() == 5
    assert not list(first._pieces)
    meter.give_back()
    assert meter.kept_bytes() == 0


def test_memory_that_nobody_takes_goes_back_by_itself(
    system: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "KEPT_SECONDS", 0.05)
    held = meter.host_memory(GPU, 8192)
    list(held.parts(0, 8192))
    assert system.pinned
    held.leave()
    held._timer.join(60)
    assert meter.kept_bytes() == 0
    assert not system.pinned
    held = meter.host_memory(GPU, 8192)
    held.leave()
    late = held._timer
    taken = meter.host_memory(GPU, 10)
    late.join(60)
    assert taken is held
    assert list(taken.parts(0, 10)), "its time ran out while a decode had it"
    taken.close()


_AT_THE_END = """
import sys, threading, time
import torch
from hy3d_rocm import meter

class System:
    def cudaHostRegister(self, address, size, flags):
        return 0
    def cudaHostUnregister(self, address):
        # Gives the GIL up as CUDA's does, inside C++.
        torch.mm(big, big)
        return 0

from contextlib import nullcontext
torch.cuda.cudart, torch.cuda.device = System, lambda device: nullcontext()
torch.set_num_threads(1)
big = torch.ones(700, 700)
meter.PIECE_BYTES, meter.KEPT_SECONDS = 4096, 0.05
held = meter.HostMemory(torch.device("cuda", 0), 40 * 4096)
list(held.parts(0, 40 * 4096))
held.leave()
time.sleep(float(sys.argv[1]))
print("done")
"""


@pytest.mark.parametrize("seconds", ["0", "0.1"])
def test_a_process_that_ends_while_memory_goes_back_ends_well(seconds: str) -> None:
    """At 0.1 s a timer's thread is in the midst of it: what it calls would end the process."""
    command = [sys.executable, "-c", _AT_THE_END, seconds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork()")
def test_a_forked_child_has_nothing_to_give_back(system: Pinning) -> None:
    held = meter.HostMemory(GPU, 8192)
    list(held.parts(0, 8192))
    held.leave()
    pinned = dict(system.pinned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads and fork()
        child = os.fork()
    if not child:
        meter.give_back()
        held.close()
        os._exit(0 if meter.kept_bytes() == 0 and system.pinned == pinned else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert meter.kept_bytes() == 8192
