"""Matrix instructions against a product in binary64, with operands laid out as AMD documents it.

The layouts are those of AMD's matrix instruction calculator
(https://github.com/ROCm/amd_matrix_instruction_calculator, commit 2ef91896), as its
--detail-instruction prints them: which register, half and lane has an element of A, B, C and D. A
product does not depend on the order of the depth, as long as A and B have the same: for RDNA4 the
calculator's and Triton's differ, and both are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gfx_assembly import lanes, wave_size

from tools.dev.gfx.lower import UnsupportedError
from tools.dev.gfx.machine import Fault

# (register, half) and the lanes of A[i][k] (B[k][i] has the same), by shape.
Place = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    arch: str
    name: str
    type: str
    rows: int
    depth: int
    operand: Callable[[int, int], Place]
    result: Callable[[int, int], tuple[int, int]]  # (register, lane) of D[i][j]


def on_rdna3(i: int, k: int) -> Place:
    return k // 2, k % 2, (i, i + 16)


def on_rdna4(i: int, k: int) -> Place:
    return 2 * (k // 8) + k // 2 % 2, k % 2, (16 * (k // 4 % 2) + i,)


def halves_of_32(i: int, k: int) -> Place:
    return k // 2 % 2, k % 2, (32 * (k // 4) + i,)


def halves_of_16(i: int, k: int) -> Place:
    return k // 2 % 2, k % 2, (16 * (k // 4) + i,)


def result_of_32(i: int, j: int) -> tuple[int, int]:
    return 4 * (i // 8) + i % 4, 32 * (i // 4) % 64 + j


def result_of_16(i: int, j: int) -> tuple[int, int]:
    return i % 4, 16 * (i // 4) + j


SHAPES = [
    *(Shape("gfx1100", f"v_wmma_f32_16x16x16_{t}", t, 16, 16, on_rdna3,
            lambda i, j: (i // 2, 16 * i % 32 + j)) for t in ("f16", "bf16")),
    *(Shape("gfx1201", f"v_wmma_f32_16x16x16_{t}", t, 16, 16, on_rdna4,
            lambda i, j: (i % 8, 16 * (i // 8) + j)) for t in ("f16", "bf16")),
    *(Shape("gfx942", f"v_mfma_f32_32x32x8_{t}", t, 32, 8, halves_of_32, result_of_32)
      for t in ("f16", "bf16")),
    *(Shape("gfx942", f"v_mfma_f32_16x16x16_{t}", t, 16, 16, halves_of_16, result_of_16)
      for t in ("f16", "bf16")),
    Shape("gfx942", "v_mfma_f32_32x32x2_f32", "f32", 32, 2, lambda i, k: (0, 0, (32 * k + i,)),
          result_of_32),
    Shape("gfx942", "v_mfma_f32_16x16x4_f32", "f32", 16, 4, lambda i, k: (0, 0, (16 * k + i,)),
          result_of_16),
]  # fmt: skip
A_AT, B_AT, C_AT, D_AT, WORDS = 0, 8, 16, 32, 64  # of a lane, in memory
_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def bits(x: Any, kind: str) -> Any:
    made = torch.from_numpy(x).to(_TYPES[kind])
    return made.view(torch.int32 if kind == "f32" else torch.int16).numpy().astype(np.int64)


def rounded(x: Any, kind: str) -> Any:
    return torch.from_numpy(x).to(_TYPES[kind]).double().numpy()


def laid_out(shape: Shape, a: Any, b: Any, c: Any) -> Any:
    """What each lane has in memory: A (i, k), B (k, j), C (i, j)."""
    memory = np.zeros((wave_size(shape.arch), WORDS), np.uint32)
    mask = 0xFFFFFFFF if shape.type == "f32" else 0xFFFF
    for matrix, start in ((bits(a, shape.type), A_AT), (bits(b.T.copy(), shape.type), B_AT)):
        for (i, k), value in np.ndenumerate(matrix):
            register, half, where = shape.operand(i, k)
            for lane in where:
                memory[lane, start + register] |= np.uint32((int(value) & mask) << 16 * half)
    for (i, j), value in np.ndenumerate(c.astype(np.float32).view(np.uint32)):
        register, lane = shape.result(i, j)
        memory[lane, C_AT + register] = value
    return memory


def product(shape: Shape, memory: Any, text: str) -> Any:
    """Runs an instruction with A in v[32:...], B in v[40:...], C in v[48:...], D in v[64:...]."""
    load, store = ("global_load_dwordx4", "global_store_dwordx4") if shape.arch == "gfx942" else (
        "global_load_b128", "global_store_b128")  # fmt: skip
    wait = "s_wait_loadcnt 0x0" if shape.arch == "gfx1201" else "s_waitcnt vmcnt(0)"
    body = "v_lshlrev_b32_e32 v24, 8, v0\n"
    for at in range(0, D_AT, 4):
        body += f"{load} v[{32 + at}:{35 + at}], v24, s[8:9] offset:{4 * at}\n"
    body += f"{wait}\n{text}\n s_nop 15\n s_nop 15\n"
    for at in range(0, D_AT - C_AT, 4):
        body += f"{store} v24, v[{64 + at}:{67 + at}], s[8:9] offset:{4 * (D_AT + at)}\n"
    lanes(shape.arch, body, np.zeros((len(memory), 4), np.uint32), more=memory)
    made = np.zeros((shape.rows, shape.rows), np.float32)
    for i in range(shape.rows):
        for j in range(shape.rows):
            register, lane = shape.result(i, j)
            made[i, j] = memory[lane, D_AT + register : D_AT + register + 1].view(np.float32)[0]
    return made


def registers(shape: Shape, c: str = "") -> str:
    """The instruction's text; c: what stands for C."""
    words = max(shape.operand(0, k)[0] for k in range(shape.depth)) + 1
    results = shape.rows**2 // wave_size(shape.arch)

    def span(first: int, count: int) -> str:
        return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"

    return (f"{shape.name} {span(64, results)}, {span(32, words)}, {span(40, words)}, "
            f"{c or span(48, results)}")  # fmt: skip


def matrices(shape: Shape, whole: bool) -> Any:
    random = np.random.default_rng(len(shape.name))
    rows, depth = shape.rows, shape.depth
    drawn = [random.standard_normal(size) for size in ((rows, depth), (depth, rows), (rows, rows))]
    return [np.rint(8 * x) if whole else x for x in drawn]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.arch}-{s.name}")
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
def test_products(shape: Shape, whole: bool) -> None:
    """D = A B + C: all bits of whole numbers; of real ones within the rounding of each sum."""
    a, b, c = matrices(shape, whole)
    made = product(shape, laid_out(shape, a, b, c), registers(shape))
    a, b, c = rounded(a, shape.type), rounded(b, shape.type), c.astype(np.float32).astype(float)
    size = np.abs(a) @ np.abs(b) + np.abs(c)
    assert (np.abs(made - (a @ b + c)) <= (0 if whole else shape.depth * 2.0**-24 * size)).all()


@pytest.mark.parametrize("shape", SHAPES[::2], ids=lambda s: f"{s.arch}-{s.name}")
def test_a_constant_is_added(shape: Shape) -> None:
    a, b, c = matrices(shape, True)
    for text, value in (("0", 0.0), ("1.0", 1.0)):
        made = product(shape, laid_out(shape, a, b, c), registers(shape, text))
        assert (made == a @ b + value).all()


def test_sums_in_accumulation_registers() -> None:
    shape = SHAPES[4]
    a, b, c = matrices(shape, True)
    text = "".join(f"v_accvgpr_write_b32 a{k}, v{48 + k}\n" for k in range(16))
    text += "s_nop 4\n v_accvgpr_write_b32 a32, v32\n v_accvgpr_write_b32 a33, v33\n s_nop 4\n"
    text += f"{shape.name} a[0:15], a[32:33], v[40:41], a[0:15]\n s_nop 15\n s_nop 15\n"
    text += "".join(f"v_accvgpr_read_b32 v{64 + k}, a{k}\n" for k in range(16))
    assert (product(shape, laid_out(shape, a, b, c), text) == a @ b + c).all()


def test_rdna3_wants_its_operands_twice() -> None:
    """Lanes 16 to 31 repeat the first 16; swapped operands give the transposed product."""
    shape = SHAPES[0]
    a, b, c = matrices(shape, True)
    memory = laid_out(shape, a, b, 0 * c)
    swapped = registers(shape).replace("v[32:39], v[40:47]", "v[40:47], v[32:39]")
    assert (product(shape, memory.copy(), swapped) == (a @ b).T).all()
    memory[20, A_AT] ^= 1
    with pytest.raises(Fault, match=r"lane 20 does not repeat lane 4 for WMMA at .* v_wmma_f32"):
        product(shape, memory, registers(shape))


@pytest.mark.parametrize("shape", SHAPES[::4], ids=lambda s: f"{s.arch}-{s.name}")
def test_all_lanes_take_part(shape: Shape) -> None:
    memory = laid_out(shape, *matrices(shape, True))
    with pytest.raises(Fault, match=r"a matrix product of some lanes at .* v_(wmma|mfma)_f32"):
        product(shape, memory, "s_mov_b32 exec_lo, 0xfffffff\n" + registers(shape))


def test_what_is_not_modelled_is_refused() -> None:
    for arch, text, reason in (
        ("gfx942", "v_mfma_f32_32x32x4_2b_f16 v[0:31], v[32:33], v[34:35], v[0:31]", "this matrix"),
        ("gfx942", "v_mfma_f32_32x32x2_f32 v[0:15], v32, v33, v[0:15] blgp:1", "modified operands"),
        ("gfx942", "v_mfma_i32_32x32x16_i8 v[0:15], v[32:33], v[34:35], v[0:15]", "this matrix"),
        ("gfx1100", "v_wmma_f16_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "this matrix"),
        ("gfx1100", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7] neg_lo:[1,0,0]",
         "modified operands"),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8 v[0:7], v[8:9], v[10:11], v[0:7]", "this matrix"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=reason):
            lanes(arch, text, np.zeros((wave_size(arch), 4), np.uint32))
