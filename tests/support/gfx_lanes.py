"""struct lanes of alu.h for ctypes, and instructions' C functions called with it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tools.dev.gfx import alu, opcodes

LANES = 64


class Lanes(ctypes.Structure):
    _fields_ = (
        ("s", ctypes.c_uint64 * LANES * 3), ("d", ctypes.c_uint64 * LANES),
        ("vcc", ctypes.c_uint64), ("out", ctypes.c_uint64), ("exec", ctypes.c_uint64),
        ("scc", ctypes.c_uint32), ("count", ctypes.c_uint32), ("ieee", ctypes.c_uint32),
        ("simm", ctypes.c_int32), ("negate", ctypes.c_uint32), ("absolute", ctypes.c_uint32),
        ("select", ctypes.c_uint32), ("select_high", ctypes.c_uint32),
    )  # fmt: skip


def call(tables: str, name: str, lanes: Lanes) -> None:
    """The function of an instruction, on what `lanes` holds."""
    address = alu.by_hand(name)
    if not address:
        text = opcodes.pseudo_code(tables)[name]
        address = alu.addresses({name: text})[name]
    ctypes.CFUNCTYPE(None, ctypes.POINTER(Lanes))(address)(lanes)


def given(*sources: Sequence[int], d: Sequence[int] = (), **more: int) -> Lanes:
    """Lanes with a list of operands for each source."""
    made = Lanes(count=len(sources[0]), **more)
    for k, values in enumerate(sources):
        made.s[k][: len(values)] = values
    made.d[: len(d)] = d
    return made


def results(tables: str, name: str, *sources: Sequence[int], **more: int) -> list[int]:
    """The destinations of all operands, 64 lanes at a time."""
    found: list[int] = []
    for at in range(0, len(sources[0]), LANES):
        lanes = given(*(values[at : at + LANES] for values in sources), **more)
        call(tables, name, lanes)
        found += lanes.d[: lanes.count]
    return found


def masks(tables: str, name: str, *sources: Sequence[int], **more: int) -> list[int]:
    """The bit that each lane adds to a mask: a comparison, a carry."""
    found: list[int] = []
    for at in range(0, len(sources[0]), LANES):
        lanes = given(*(values[at : at + LANES] for values in sources), **more)
        call(tables, name, lanes)
        found += [lanes.out >> k & 1 for k in range(lanes.count)]
    return found
