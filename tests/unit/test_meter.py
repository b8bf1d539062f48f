"""meter: memory that is asked for before it is written."""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys

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
