"""AMD machine code as Triton's code objects hold it, and what a launch of it may touch."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


class Fault(RuntimeError):  # noqa: N818 - the word of what it is
    """What a kernel did that hardware would not forgive; the text names the instruction."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: bytes from the block's start, bytes, and AMD's word for its kind
    ("global_buffer", "by_value", "hidden_...")."""

    offset: int
    size: int
    kind: str


@dataclass
class Counts:
    instructions: int = 0
    waves: int = 0
    seconds: float = 0.0


class Memory:
    """The memory that a launch may touch."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, str, bool]] = []

    def add(self, address: int, size: int, name: str = "", writable: bool = True) -> None:
        self.parts.append((address, size, name, writable))


class Program:
    """One kernel of a code object."""

    name: str
    wave_size: int
    kernarg_bytes: int
    lds_bytes: int
    arguments: tuple[Argument, ...]

    @classmethod
    def load(cls, code_object: bytes, arch: str) -> Program:
        """The kernel of Triton's hsaco, an ELF file."""
        notes = _metadata(code_object)
        (kernel,) = notes["amdhsa.kernels"]
        assert notes["amdhsa.target"].split("--")[-1].split(":")[0] == arch
        made = cls()
        made.name, made.wave_size = kernel[".name"], kernel[".wavefront_size"]
        made.kernarg_bytes = kernel[".kernarg_segment_size"]
        made.lds_bytes = kernel[".group_segment_fixed_size"]
        made.arguments = tuple(
            Argument(arg[".offset"], arg[".size"], arg[".value_kind"]) for arg in kernel[".args"]
        )
        return made

    def run(
        self, grid: tuple[int, int, int], threads: int, kernarg: bytes, memory: Memory
    ) -> Counts:
        """Executes a launch. Fault where it goes wrong."""
        raise NotImplementedError


def _metadata(elf: bytes) -> Any:
    """The NT_AMDGPU_METADATA note."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for k in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", elf, table + k * size)
        at = offset
        while kind == 4 and at < offset + length:
            names, words, note = struct.unpack_from("<III", elf, at)
            body = at + 12 + (names + 3) // 4 * 4
            if note == 32:
                return _unpacked(elf[body : body + words])
            at = body + (words + 3) // 4 * 4
    raise ValueError("no metadata in this code object")


def _unpacked(data: bytes) -> Any:
    """Message pack: maps, arrays, texts, unsigned numbers, booleans."""
    at = 0

    def number(size: int) -> int:
        nonlocal at
        at += size
        return int.from_bytes(data[at - size : at], "big")

    def value() -> Any:
        nonlocal at
        kind = number(1)
        if kind < 0x80:
            return kind
        if kind < 0x90 or kind in (0xDE, 0xDF):
            count = kind & 15 if kind < 0x90 else number(2 << (kind - 0xDE))
            return {value(): value() for _ in range(count)}
        if kind < 0xA0 or kind in (0xDC, 0xDD):
            count = kind & 15 if kind < 0xA0 else number(2 << (kind - 0xDC))
            return [value() for _ in range(count)]
        if kind < 0xC0 or kind in (0xD9, 0xDA, 0xDB):
            size = kind & 31 if kind < 0xC0 else number(1 << (kind - 0xD9))
            at += size
            return data[at - size : at].decode()
        if kind in (0xC2, 0xC3):
            return kind == 0xC3
        return number(1 << (kind - 0xCC))

    return value()
