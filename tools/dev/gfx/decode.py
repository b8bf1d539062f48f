"""Machine code as a list of instructions, by tinygrad's tables of AMD's encodings.

The tables come from AMD's machine-readable description of its instruction sets. They lack the
encodings of buffer instructions on RDNA3 and RDNA4, which are here (AMD, "RDNA3 Instruction Set
Architecture", 15.6 MUBUF; "RDNA4 ...", VBUFFER).
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# tinygrad's name of the instruction set of each target.
# RDNA3's tables have RDNA3.5's (gfx1151) scalar arithmetic on floats, too.
INSTRUCTION_SETS = {
    "gfx1100": "rdna3", "gfx1101": "rdna3", "gfx1151": "rdna3", "gfx1200": "rdna4",
    "gfx1201": "rdna4", "gfx942": "cdna",
}  # fmt: skip
_LONGEST = 20  # bytes
_LITERAL, _DPP8, _DPP8_INACTIVE = 255, 233, 234  # codes of sources
_BUFFER = {
    # first word's upper bits: (bytes, {field: (highest bit, lowest)}, where op is)
    "rdna3": (
        0b111000, 8,
        {"offset": (11, 0), "op": (25, 18), "vaddr": (39, 32), "vdata": (47, 40), "srsrc": (52, 48),
         "tfe": (53, 53), "offen": (54, 54), "idxen": (55, 55), "soffset": (63, 56),
         "glc": (14, 14)},
    ),
    "rdna4": (
        0b110001, 12,
        {"soffset": (6, 0), "op": (21, 14), "tfe": (22, 22), "vdata": (39, 32), "srsrc": (49, 41),
         "offen": (62, 62), "idxen": (63, 63), "vaddr": (71, 64), "offset": (95, 72),
         "th": (54, 52)},
    ),
}  # fmt: skip


class UnknownInstructionError(ValueError):
    """Bytes that are no instruction of these tables."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: what it is called, and its fields as the encoding has them.

    name: AMD's, in lower case, without the ending that names an encoding (_e32, _e64). format: that
    of tinygrad's tables without variants ("VOP3", "DS", "BUFFER"). operands: of each field the
    number format ("F32") and the size in bits; none of VOPD, whose halves are of 32 bits.
    """

    pc: int
    size: int
    name: str
    format: str
    fields: Mapping[str, int]
    operands: Mapping[str, tuple[str, int]]
    second: str = ""  # the second name of a dual instruction

    def __str__(self) -> str:
        names = f"{self.name} :: {self.second}" if self.second else self.name
        return f"{self.pc:#06x} {names}"


def plain(name: str) -> str:
    """An opcode's name in lower case, without its encoding. CDNA's tables still have the name that
    the mixed multiply-add had before gfx906, where it became fused (LLVM: FeatureFmaMixInsts)."""
    name = name.lower().replace("v_mad_mix", "v_fma_mix")
    return name[:-4] if name.endswith(("_e32", "_e64")) else name


def decode(code: bytes, arch: str) -> Iterator[Instruction]:
    """The instructions of `code`, up to its padding; UnknownInstructionError for other bytes."""
    tables = INSTRUCTION_SETS[arch]
    at = 0
    while at < len(code):
        if not any(code[at:]):  # zeros pad the end
            return
        found = _buffer(code, at, tables) or _by_tables(code, at, tables)
        if found.name == "s_code_end":
            return
        yield found
        at += found.size


@dataclass(frozen=True)
class _Format:
    """An encoding of the tables: what marks it, and its fields.

    mask, value: of the bits that are fixed. allowed: (lowest bit, mask, codes) of fields that have
    some codes only. reach: the bytes that these are in. places: (name, lowest bit, mask). sources:
    those of fields that may ask for a literal. literal: the same with 32 bits behind it, or None.
    """

    kind: Any
    mask: int
    value: int
    allowed: tuple[tuple[int, int, frozenset[int]], ...]
    reach: int
    size: int
    places: tuple[tuple[str, int, int], ...]
    sources: tuple[tuple[int, int], ...]
    literal: _Format | None

    def matches(self, raw: int, size: int) -> bool:
        """What tinygrad's own look at the bytes says, which reads each field anew."""
        return (
            raw & self.mask == self.value
            and size >= self.reach
            and all(raw >> low & mask in codes for low, mask, codes in self.allowed)
        )

    def fields(self, raw: int) -> dict[str, int]:
        return {name: raw >> low & mask for name, low, mask in self.places}


def _by_tables(code: bytes, at: int, tables: str) -> Instruction:
    piece = code[at : at + _LONGEST]
    raw, size = int.from_bytes(piece, "little"), len(piece)
    word = raw & 0xFFFFFFFF
    found = next((f for f in _formats(tables) if f.matches(raw, size)), None)
    if found is None:
        raise UnknownInstructionError(f"{at:#x}: the word {word:#010x}")
    raw = int.from_bytes(piece[: found.size], "little")
    opcode = _opcode(found.kind, *(raw >> low & mask for low, mask in _opcodes_at(found.kind)))
    codes = {raw >> low & mask for low, mask in found.sources}
    if codes & {_DPP8, _DPP8_INACTIVE} and tables != "cdna":
        raise UnknownInstructionError(f"{at:#x}: {opcode.names[0]} with DPP8")
    if found.literal is not None and (_LITERAL in codes or opcode.has_literal):
        found = found.literal
        raw = int.from_bytes(piece[: found.size], "little")
    names, operands = opcode.names, opcode.operands
    return Instruction(
        at, found.size, names[0], found.kind.__name__, found.fields(raw), operands, *names[1:],
    )  # fmt: skip


def tinygrad(name: str) -> Any:
    """tinygrad's module `name`. Python's recursion limit stays as it was: tinygrad sets it to 10000
    where it is imported, and the stack of Debian's Python 3.11 overflows before that."""
    limit = sys.getrecursionlimit()
    try:
        return importlib.import_module(f"tinygrad.{name}")
    finally:
        sys.setrecursionlimit(limit)


@functools.cache
def _formats(tables: str) -> tuple[_Format, ...]:
    """The formats in the order in which they are tried."""
    amd = tinygrad("renderer.amd")
    return tuple(_format(kind) for kind in amd._load_formats()[tables])


def _format(kind: Any) -> _Format:
    dsl = tinygrad("renderer.amd.dsl")
    mask = value = 0
    for _, field in kind._fields:
        if isinstance(field, dsl.FixedBitField):
            mask |= field.mask << field.lo
            value |= field.default << field.lo
    amd = tinygrad("renderer.amd")
    for ending, source in amd._VARIANT_SRC0.items():
        if kind.__name__.endswith(ending):
            mask |= 0x1FF
            value = value & ~0x1FF | source
            break
    wide = getattr(importlib.import_module(kind.__module__), f"{kind.__name__}_LIT", None)
    return _Format(
        kind, mask, value, _allowed(kind), max(field.lo // 32 + 1 for _, field in kind._fields) * 4,
        kind._base_size,
        tuple((name, field.lo, field.mask) for name, field in kind._fields),
        tuple(
            (field.lo, field.mask)
            for name, field in kind._fields
            if type(field) in (dsl.SrcField, dsl.SSrcField) and name != "vdst"
        ),
        None if wide is None else _format(wide),
    )  # fmt: skip


def _allowed(kind: Any) -> tuple[tuple[int, int, frozenset[int]], ...]:
    dsl = tinygrad("renderer.amd.dsl")
    return tuple(
        (field.lo, field.mask, frozenset(op.value for op in field.allowed))
        for _, field in kind._fields
        if isinstance(field, dsl.EnumBitField) and field.allowed is not None
    )


@dataclass(frozen=True)
class _Opcode:
    names: tuple[str, ...]
    operands: Mapping[str, tuple[str, int]]
    has_literal: bool


@functools.cache
def _opcodes_at(kind: Any) -> tuple[tuple[int, int], ...]:
    """Where the opcode is, or both of a dual instruction: (lowest bit, mask)."""
    fields = dict(kind._fields)
    names = ("op",) if "op" in fields else ("opx", "opy")
    return tuple((fields[name].lo, fields[name].mask) for name in names)


@functools.cache
def _opcode(kind: Any, *values: int) -> _Opcode:
    fields = dict(kind._fields)
    tables = kind.__module__.split(".")[-2]
    if len(values) == 1:
        op = fields["op"]._enum(values[0])
        return _Opcode((plain(op.name),), _operands(op, tables), False)
    both = [fields[name]._enum(v) for name, v in zip(("opx", "opy"), values, strict=True)]
    has_literal = any("FMAMK" in op.name or "FMAAK" in op.name for op in both)
    return _Opcode(tuple(plain(op.name) for op in both), {}, has_literal)


@functools.cache
def _operands(op: Any, tables: str) -> Mapping[str, tuple[str, int]]:
    described = tinygrad(f"runtime.autogen.amd.{tables}.operands").OPERANDS
    # Whether a source is "src1" or "vsrc1" differs from table to table.
    return {
        re.sub(r"^vsrc(\d)$", r"src\1", name): (re.sub("^FMT_(NUM_)?", "", fmt.name), bits)
        for name, (fmt, bits, _) in described.get(op, {}).items()
    }


@functools.cache
def _buffer_names(tables: str) -> Mapping[int, str]:
    """Opcodes of buffer instructions; RDNA3's serve both, RDNA4 renumbered none that we meet."""
    enum = tinygrad(f"runtime.autogen.amd.{tables}.enum")
    kind = getattr(enum, "MUBUFOp", None) or enum.VBUFFEROp
    return {op.value: plain(op.name) for op in kind}


def _buffer(code: bytes, at: int, tables: str) -> Instruction | None:
    """A buffer instruction of RDNA, or None."""
    if tables not in _BUFFER:
        return None
    marks, size, places = _BUFFER[tables]
    raw = int.from_bytes(code[at : at + size], "little")
    if (raw >> 26) & 0x3F != marks:
        return None
    fields = {
        name: (raw >> low) & ((1 << (high - low + 1)) - 1) for name, (high, low) in places.items()
    }
    name = _buffer_names(tables).get(fields["op"])
    if name is None:
        raise UnknownInstructionError(f"{at:#x}: buffer instruction {fields['op']}")
    return Instruction(at, size, name, "BUFFER", fields, {})
