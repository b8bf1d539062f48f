"""Small Triton kernels, and their launch on the emulated targets."""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tools.dev.gfx.machine import Counts, Memory, Program

ARCHES = ("gfx1100", "gfx1201", "gfx942")


@triton.jit
def masked_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(out + at, tl.load(x + at, mask=there) + tl.load(y + at, mask=there), mask=there)


@triton.jit
def reduce_rows(x, sums, largest, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum and the maximum of each row of (rows, columns)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    there = (at < columns)[None, :]
    places = x + rows[:, None] * columns + at[None, :]
    tl.store(sums + rows, tl.sum(tl.load(places, mask=there, other=0.0), axis=1))
    tl.store(largest + rows, tl.max(tl.load(places, mask=there, other=-float("inf")), axis=1))


@triton.jit
def multiply(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """(M, K) times (K, N), with sums in binary32; blocks by a 2-D grid."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(
            a + i[:, None] * K + k[None, :], mask=(i < M)[:, None] & (k < K)[None, :], other=0.0
        )
        right = tl.load(
            b + k[:, None] * N + j[None, :], mask=(k < K)[:, None] & (j < N)[None, :], other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + i[:, None] * N + j[None, :], total, mask=(i < M)[:, None] & (j < N)[None, :])


@triton.jit
def functions(x, y, exps, roots, quotients, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at), tl.load(y + at)
    tl.store(exps + at, tl.exp(first))
    tl.store(roots + at, tl.sqrt_rn(first))
    tl.store(quotients + at, tl.div_rn(first, second))


@triton.jit
def divide(x, y, quotients, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(quotients + at, tl.load(x + at) / tl.load(y + at))


@triton.jit
def whole_numbers(x, y, quotients, rests, far, step, first_place, BLOCK: tl.constexpr):
    """Quotients and remainders of i32; and 64-bit places: far[step * at + first_place]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at), tl.load(y + at)
    tl.store(quotients + at, first // second)
    tl.store(rests + at, first % second)
    tl.store(far + (at.to(tl.int64) * step + first_place), first)


@triton.jit
def atomics(keys, counts, smallest, swapped, n, BLOCK: tl.constexpr):
    """How often a key comes; the smallest place of each key, 64 bits; the first block."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    key = tl.load(keys + at, mask=there, other=0)
    tl.atomic_add(counts + key, 1, mask=there)
    tl.atomic_min(smallest + key, at.to(tl.int64) - (1 << 40), mask=there)
    nothing = tl.full((), 0, tl.int64)
    tl.atomic_cas(swapped, nothing, tl.program_id(0).to(tl.int64) + 5)


@triton.jit
def program_places(out, X: tl.constexpr, Y: tl.constexpr):
    """Each program's place in a grid of three axes."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + (z * Y + y) * X + x, x + 100 * y + 10000 * z)


@functools.cache
def compiled(function: Any, arch: str, types: str, warps: int = 4, **constants: Any) -> Any:
    """A kernel compiled for a target. types: of the arguments that are no constants, with spaces
    between."""
    names = [p.name for p in function.params if not p.is_constexpr]
    signature = dict(zip(names, types.split(), strict=True))
    source = ASTSource(
        function,
        {p.name: signature.get(p.name, "constexpr") for p in function.params},
        constants,
        {},
    )
    target = GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    return triton.compile(source, target=target, options={"num_warps": warps})


def program_of(kernel: Any, arch: str) -> Program:
    program = Program.load(kernel.asm["hsaco"], arch)
    program.lds_bytes = max(program.lds_bytes, kernel.metadata.shared)
    return program


def launch(
    kernel: Any, arch: str, grid: tuple[int, ...], *arguments: Any,
    program: Program | None = None,
) -> Counts:  # fmt: skip
    """Runs a kernel; arrays are what it may touch, numbers are i32, or i64 if they say so. (array,
    bytes) is a pointer so many bytes before an array."""
    packed, memory = b"", Memory()
    for argument in arguments:
        given, before = argument if isinstance(argument, tuple) else (argument, 0)
        if isinstance(given, np.ndarray):
            packed += bytes(-len(packed) % 8) + struct.pack("<q", given.ctypes.data - before)
            memory.add(given.ctypes.data, given.nbytes)
        elif isinstance(given, np.int64):
            packed += bytes(-len(packed) % 8) + struct.pack("<q", given)
        else:
            packed += struct.pack("<i", given)
    ran = program or program_of(kernel, arch)
    packed += bytes(max(0, ran.kernarg_bytes - len(packed)))
    x, y, z = (*grid, 1, 1)[:3]
    threads = kernel.metadata.num_warps * ran.wave_size
    return ran.run((x, y, z), threads, packed, memory)
