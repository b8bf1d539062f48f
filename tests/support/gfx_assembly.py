"""Programs of a few instructions in assembly text, assembled by the LLVM that Triton brings.

    out = lanes("gfx1100", "v_add_f32_e64 v20, -v4, |v5|", given)

`given` has four words for each lane, in v4 to v7; what comes back is v20 to v23 of each lane.
"""

from __future__ import annotations

import functools
import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton._C.libtriton import amd, llvm

from tools.dev.gfx.code_object import CodeObject
from tools.dev.gfx.machine import Memory, Program

_WORDS = {
    "gfx1100": {
        "pointers": "s_load_b128 s[4:7], s[0:1], 0x0", "scalars": "s_waitcnt lgkmcnt(0)",
        "load": "global_load_b128", "all": "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "store": "global_store_b128", "exec": "s_mov_b32 exec_lo, s12",
        "keep": "s_mov_b32 s12, exec_lo",
    },
    "gfx1201": {
        "pointers": "s_load_b128 s[4:7], s[0:1], 0x0", "scalars": "s_wait_kmcnt 0x0",
        "load": "global_load_b128",
        "all": "s_wait_loadcnt 0x0\n s_wait_dscnt 0x0\n s_wait_kmcnt 0x0",
        "store": "global_store_b128", "exec": "s_mov_b32 exec_lo, s12",
        "keep": "s_mov_b32 s12, exec_lo",
    },
    "gfx942": {
        "pointers": "s_load_dwordx4 s[4:7], s[0:1], 0x0", "scalars": "s_waitcnt lgkmcnt(0)",
        "load": "global_load_dwordx4", "all": "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "store": "global_store_dwordx4", "exec": "s_mov_b64 exec, s[12:13]",
        "keep": "s_mov_b64 s[12:13], exec",
    },
}  # fmt: skip


def wave_size(arch: str) -> int:
    return 64 if arch == "gfx942" else 32


@functools.cache
def assembled(text: str, arch: str) -> bytes:
    """The code of some instructions; ValueError where LLVM does not accept them. Where halves of
    registers are named (v4.h), they are the operands of 16-bit instructions."""
    llvm.init_targets()
    features = "+real-true16" if re.search(r"\bv\d+\.[hl]\b", text) else ""
    made = amd.assemble_amdgcn(f".text\n{text}\n", arch, features)
    if not made:
        raise ValueError(f"{arch}: {text}")
    start = struct.unpack_from("<Q", made, 0x28)[0]
    size, count = struct.unpack_from("<HH", made, 0x3A)
    for k in range(count):
        _, kind, flags, _, at, length = struct.unpack_from("<IIQQQQ", made, start + k * size)
        if kind == 1 and flags & 4:
            return bytes(made[at : at + length])
    raise ValueError("no code")


def program(text: str, arch: str, lds: int = 0) -> Program:
    """A kernel of assembly text: s[0:1] point to its arguments, s2 is the workgroup's x (RDNA4:
    ttmp9), v0 the work-item."""
    return Program(
        CodeObject(
            name="assembled", code=assembled(text, arch), entry=0, kernarg_bytes=16, lds_bytes=lds,
            wave_size=wave_size(arch), arguments=(), kernarg_register=0, preload=(0, 0, 0),
            group_registers=(2, None, None), round_mode=(0, 0), denormal_mode=(3, 3), ieee=False,
            scratch_bytes=0,
        ),
        arch,
    )  # fmt: skip


def lanes(
    arch: str, body: str, given: NDArray[np.uint32], lds: int = 0, more: NDArray[Any] | None = None,
) -> NDArray[np.uint32]:  # fmt: skip
    """Runs a body for as many work-items as `given` has rows. more: further memory; its address is
    in s[8:9] and its size, bytes, in s10."""
    word = _WORDS[arch]
    text = f"""
        {word["pointers"]}
        v_lshlrev_b32_e32 v1, 4, v0
        {word["scalars"]}
        {word["load"]} v[4:7], v1, s[4:5]
        {word["all"]}
        {word["keep"]}
        v_mov_b32_e32 v20, 0
        v_mov_b32_e32 v21, 0
        v_mov_b32_e32 v22, 0
        v_mov_b32_e32 v23, 0
        s_mov_b32 s8, {0 if more is None else more.ctypes.data & 0xFFFFFFFF:#x}
        s_mov_b32 s9, {0 if more is None else more.ctypes.data >> 32:#x}
        s_mov_b32 s10, {0 if more is None else more.nbytes:#x}
        {body}
        {word["all"]}
        {word["exec"]}
        {word["store"]} v1, v[20:23], s[6:7]
        s_endpgm
    """
    given = np.ascontiguousarray(given, np.uint32)
    out = np.zeros_like(given)
    memory = Memory()
    for one in (given, out, more):
        if one is not None:
            memory.add(one.ctypes.data, one.nbytes)
    kernarg = struct.pack("<QQ", given.ctypes.data, out.ctypes.data)
    program(text, arch, lds).run((1, 1, 1), len(given), kernarg, memory)
    return out
