"""A code object of Triton's AMD backend: an ELF with one kernel, its descriptor and its arguments.

Sources: LLVM, "User Guide for AMDGPU Backend" (code object V5 metadata, kernel descriptor).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

_NOTE_METADATA = 32  # NT_AMDGPU_METADATA
_WAVE32 = 1 << 10
_PREFETCHED = 256  # bytes at the entry that only run where arguments were not preloaded


class CodeObjectError(ValueError):
    """Bytes that are no code object with one kernel, or one that asks for what is not modelled."""


@dataclass(frozen=True)
class Argument:
    """One argument: where it lies in the kernel's arguments, bytes; kind as in the metadata."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class CodeObject:
    """What a launch needs to know of a kernel.

    entry: offset of its first instruction in `code`, bytes. kernarg_register: the scalar register
    of the address of its arguments, or None. preload: (register, count, offset) of arguments that
    come in registers, in dwords. group_registers: of the workgroup's x, y, z, each or None (RDNA4
    has them elsewhere). lds_bytes: of static LDS. round_mode, denormal_mode: of binary32, then of
    the others (0: to nearest even; 3: denormals are kept).
    """

    name: str
    code: bytes
    entry: int
    kernarg_bytes: int
    lds_bytes: int
    wave_size: int
    arguments: tuple[Argument, ...]
    kernarg_register: int | None
    preload: tuple[int, int, int]
    group_registers: tuple[int | None, int | None, int | None]
    round_mode: tuple[int, int]
    denormal_mode: tuple[int, int]
    ieee: bool
    scratch_bytes: int


def read(data: bytes, generation: int) -> CodeObject:
    """The only kernel of a code object; generation: 9, 11 or 12. CodeObjectError otherwise."""
    if data[:4] != b"\x7fELF":
        raise CodeObjectError("no ELF file")
    sections = _sections(data)
    metadata = _metadata(data, sections)
    kernels = metadata.get("amdhsa.kernels", [])
    if len(kernels) != 1:
        raise CodeObjectError(f"{len(kernels)} kernels where one is expected")
    described = kernels[0]
    address = _symbols(data, sections)[described[".symbol"]]
    descriptor = _at(data, sections, address, 64)
    return _described(data, sections, described, address, descriptor, generation)


def _described(
    data: bytes, sections: list[tuple[int, ...]], described: Any, address: int, descriptor: bytes,
    generation: int,
) -> CodeObject:  # fmt: skip
    lds, scratch, kernarg = struct.unpack_from("<III", descriptor, 0)
    entry_address = address + struct.unpack_from("<q", descriptor, 16)[0]
    rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIHH", descriptor, 48)
    text = next(s for s in sections if s[3] <= entry_address < s[3] + s[5] and s[2] & 4)
    code = data[text[4] : text[4] + text[5]]
    users, register = (4, 2, 2), 0
    for k, size in enumerate(users):
        register += size if properties >> k & 1 else 0
    kernarg_register = register if properties >> 3 & 1 else None
    register += 2 * (properties >> 3 & 1) + 2 * (properties >> 4 & 1) + 2 * (properties >> 5 & 1)
    register += properties >> 6 & 1
    count = preload & 127
    entry = entry_address - text[3] + (_PREFETCHED if count else 0)
    groups: list[int | None] = [None, None, None]
    system = rsrc2 >> 1 & 31
    if generation != 12:
        for k in range(3):
            if rsrc2 >> (7 + k) & 1:
                groups[k] = system
                system += 1
    return CodeObject(
        name=described[".name"], code=code, entry=entry, kernarg_bytes=kernarg, lds_bytes=lds,
        wave_size=32 if properties & _WAVE32 else 64,
        arguments=tuple(
            Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in described.get(".args", [])
        ),
        kernarg_register=kernarg_register, preload=(register, count, preload >> 7),
        group_registers=(groups[0], groups[1], groups[2]),
        round_mode=(rsrc1 >> 12 & 3, rsrc1 >> 14 & 3),
        denormal_mode=(rsrc1 >> 16 & 3, rsrc1 >> 18 & 3),
        ieee=generation != 12 and bool(rsrc1 >> 23 & 1), scratch_bytes=scratch,
    )  # fmt: skip


def _sections(data: bytes) -> list[tuple[int, ...]]:
    start = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return [struct.unpack_from("<IIQQQQIIQQ", data, start + k * size) for k in range(count)]


def _at(data: bytes, sections: list[tuple[int, ...]], address: int, size: int) -> bytes:
    for section in sections:
        if section[3] <= address < section[3] + section[5] and section[2] & 2:
            start = section[4] + address - section[3]
            return data[start : start + size]
    raise CodeObjectError(f"nothing is loaded at {address:#x}")


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, int]:
    found = {}
    for section in sections:
        if section[1] not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(b"\0", names + name)
            found[data[names + name : end].decode()] = value
    return found


def _metadata(data: bytes, sections: list[tuple[int, ...]]) -> Any:
    for section in sections:
        if section[1] != 7:  # SHT_NOTE
            continue
        at, end = section[4], section[4] + section[5]
        while at < end:
            name, size, kind = struct.unpack_from("<III", data, at)
            start = at + 12 + (name + 3) // 4 * 4
            if kind == _NOTE_METADATA:
                return _unpacked(data, start)[0]
            at = start + (size + 3) // 4 * 4
    raise CodeObjectError("no metadata of kernels")


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at `at`, and where the next begins."""
    head = data[at]
    if head < 0x80:
        return head, at + 1
    if head >= 0xE0:
        return head - 256, at + 1
    if head & 0xF0 == 0x80:
        return _mapping(data, at + 1, head & 15)
    if head & 0xF0 == 0x90:
        return _sequence(data, at + 1, head & 15)
    if head & 0xE0 == 0xA0:
        return _text(data, at + 1, head & 31)
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at + 1
    numbers = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i",
               0xD3: "q"}  # fmt: skip
    if head in numbers:
        size = struct.calcsize(numbers[head])
        return struct.unpack_from(">" + numbers[head], data, at + 1)[0], at + 1 + size
    lengths = {0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
    if head not in lengths:
        raise CodeObjectError(f"metadata with {head:#x}")
    count = struct.unpack_from(">" + lengths[head], data, at + 1)[0]
    start = at + 1 + struct.calcsize(lengths[head])
    if head <= 0xDB:
        return _text(data, start, count)
    return (_sequence if head <= 0xDD else _mapping)(data, start, count)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    return data[at : at + size].decode(), at + size


def _sequence(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    made = []
    for _ in range(count):
        value, at = _unpacked(data, at)
        made.append(value)
    return made, at


def _mapping(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    made = {}
    for _ in range(count):
        key, at = _unpacked(data, at)
        made[key], at = _unpacked(data, at)
    return made, at
