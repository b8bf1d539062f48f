"""Which tensors lie in the same memory, and which in their own memory twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


def overlaps(tensor: Tensor) -> bool:
    """Whether two positions may be one in memory (an expanded tensor)."""
    sides = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    end = 0
    for stride, length in sides:
        if stride <= end:
            return True
        end += stride * (length - 1)
    return False


def shares_memory(out: Tensor, others: Iterable[Tensor]) -> bool:
    """Whether the addresses from out's first byte to its last have one in common with those of
    another tensor in host memory, or are mapped from the same place of a file (on Linux, where the
    system tells)."""
    mapped = _mapped_files()
    written = _places(out, [m for m in mapped if m.is_shared])
    files = {file for file, _, _ in written}
    mapped = [m for m in mapped if m.file in files]
    return any(
        file == there and first < end and begin < stop
        for tensor in others
        for there, begin, end in _places(tensor, mapped)
        for file, first, stop in written
    )


class _Mapped(NamedTuple):
    """Addresses first .. stop are those of a file from `offset` on. file: device and inode.
    is_shared: writes get to it."""

    first: int
    stop: int
    is_shared: bool
    file: str
    offset: int


def _mapped_files() -> list[_Mapped]:
    """Of this process; empty where the system does not tell."""
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                span, rights, offset, device, inode, *_ = line.split()
                if inode != "0":
                    first, stop = (int(part, 16) for part in span.split("-"))
                    is_shared = rights[3] == "s"
                    found.append(_Mapped(first, stop, is_shared, device + inode, int(offset, 16)))
    except (OSError, ValueError):
        return []
    return found


def _places(tensor: Tensor, mapped: list[_Mapped]) -> list[tuple[str, int, int]]:
    """Where a tensor lies: ("", its first address, one past the last), and (file, first byte, one
    past the last) of each part that is mapped from one. Empty for what is not in host memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return []
    try:
        first = tensor.data_ptr()
    except RuntimeError:  # a subclass without memory of its own
        return []
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    stop = first + (reach + 1) * tensor.element_size()
    return [("", first, stop)] + [
        (m.file, m.offset + max(first - m.first, 0), m.offset + min(stop, m.stop) - m.first)
        for m in mapped
        if m.first < stop and first < m.stop
    ]
