"""Faults that are planted in small kernels are found, and the instruction is named."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from typing import Any

import gfx_kernels as kernels
import numpy as np
import pytest
from gfx_kernels import ARCHES, compiled, launch

from tools.dev.gfx.decode import Instruction
from tools.dev.gfx.lower import UnsupportedError
from tools.dev.gfx.machine import Fault, Program

pytestmark = pytest.mark.parametrize("arch", ARCHES)
S_NOP = 0xBF800000
S_GETREG_B32 = 0xB8800000
S_SETHALT = {"gfx1100": 0xBF820000, "gfx1201": 0xBF820000, "gfx942": 0xBF8D0000}
S_BRANCH_TO_ITSELF = {"gfx1100": 0xBFA0FFFF, "gfx1201": 0xBFA0FFFF, "gfx942": 0xBF82FFFF}


def patched(program: Program, places: Iterable[int], word: int = S_NOP) -> Program:
    """The program with some words of its code replaced."""
    code = bytearray(program.object.code)
    for at in places:
        struct.pack_into("<I", code, at, word)
    made = Program(dataclasses.replace(program.object, code=bytes(code)), program.arch)
    made.lds_bytes = program.lds_bytes
    return made


def executed(program: Program) -> list[Instruction]:
    return [one for one in program.instructions if one.pc >= program.object.entry]


def end_of(program: Program) -> int:
    return next(one.pc for one in executed(program) if one.name == "s_endpgm")


def adding(arch: str, program: Program | None = None, length: int = 300) -> None:
    x, out = np.ones(300, np.float32), np.zeros(300, np.float32)
    launch(added(arch), arch, (3,), x, x.copy(), out, length, program=program)


def added(arch: str) -> Any:
    return compiled(kernels.masked_add, arch, "*fp32 *fp32 *fp32 i32", BLOCK=128)


def test_a_wait_that_is_missing(arch: str) -> None:
    program = kernels.program_of(added(arch), arch)
    waits = [one for one in executed(program) if one.name.startswith("s_wait") and
             one.name not in ("s_wait_alu", "s_waitcnt_depctr")]  # fmt: skip
    assert waits
    adding(arch, program)
    for one in waits:
        with pytest.raises(Fault, match=r"is used before its load was waited for at 0x\w+ v_") as e:
            adding(arch, patched(program, [one.pc]))
        assert e.value.kind == "hazard"


def test_a_barrier_that_is_missing(arch: str) -> None:
    kernel = compiled(kernels.reduce_rows, arch, "*fp32 *fp32 *fp32 i32", ROWS=8, BLOCK=64)
    program = kernels.program_of(kernel, arch)
    barriers = [one.pc for one in executed(program) if one.name.startswith("s_barrier")]
    parts = 2 if arch == "gfx1201" else 1  # to signal, to wait
    assert len(barriers) >= 2 * parts
    for k in range(0, len(barriers), parts):
        x, sums = np.ones((16, 50), np.float32), np.zeros((2, 16), np.float32)
        with pytest.raises(Fault, match=r"of LDS.* without a barrier at 0x\w+ ds_") as e:
            launch(kernel, arch, (2,), x, sums[0], sums[1], 50,
                   program=patched(program, barriers[k : k + parts]))  # fmt: skip
        assert e.value.kind == "hazard"


def test_an_access_outside_of_a_tensor(arch: str) -> None:
    with pytest.raises(Fault, match=r"out of bounds: lane \d+ reads 4 bytes .* at 0x\w+ "
                                    r"(global|buffer)_load_\w+, wave \d of workgroup \(2, 0, 0\)"
                       ) as e:  # fmt: skip
        adding(arch, length=301)
    assert e.value.kind == "bounds"


def test_an_instruction_that_is_not_modelled(arch: str) -> None:
    program = kernels.program_of(added(arch), arch)
    at = end_of(program)
    with pytest.raises(UnsupportedError, match=f"{arch}: {at:#06x} s_sethalt: .* is not modelled"):
        patched(program, [at], S_SETHALT[arch])
    with pytest.raises(UnsupportedError, match=f"{arch}: s_getreg_b32: the name HW_REGISTERS"):
        patched(program, [at], S_GETREG_B32)
    with pytest.raises(UnsupportedError, match=f"{arch}: masked_add: unknown instruction, {at:#x}"):
        patched(program, [at], 0xFFFFFFFF)


def test_a_program_without_an_end(arch: str) -> None:
    program = kernels.program_of(added(arch), arch)
    endless = patched(program, [end_of(program)], S_BRANCH_TO_ITSELF[arch])
    x = np.zeros(300, np.float32)
    memory = kernels.Memory()
    memory.add(x.ctypes.data, x.nbytes)
    kernarg = struct.pack("<QQQi", *[x.ctypes.data] * 3, 300) + bytes(64)
    with pytest.raises(Fault, match=r"no end after 1000 instructions at .* s_branch") as e:
        endless.run((1, 1, 1), 128, kernarg, memory, most_steps=1000)
    assert e.value.kind == "end"
