"""How instructions read their sources and write their results: programs of a few instructions,
assembled by LLVM, against what AMD's ISA documents say of the fields.

Sources: AMD, "RDNA3", "RDNA4" and "AMD Instinct MI300" Instruction Set Architecture: modifiers of
VOP3, SDWA, DPP, LDS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gfx_assembly
import numpy as np
import pytest
from gfx_assembly import lanes, wave_size
from numpy.typing import NDArray

from tools.dev.gfx.lower import UnsupportedError
from tools.dev.gfx.machine import Fault

ALL = ("gfx1100", "gfx1201", "gfx942")
RDNA, CDNA = ALL[:2], ALL[2:]
Words = NDArray[np.uint32]


def given(arch: str, seed: int = 1) -> Words:
    """Four words of each lane: floats of ordinary size in the first two, anything in the others."""
    random = np.random.default_rng(seed)
    n = wave_size(arch)
    made = random.integers(0, 1 << 32, (n, 4), dtype=np.uint32)
    made[:, :2] = (4 * random.standard_normal((n, 2))).astype(np.float32).view(np.uint32)
    return made


def floats(x: Words) -> NDArray[np.float32]:
    return x.view(np.float32)


def halves(x: Words) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """The lower and the upper half of each word."""
    both = np.ascontiguousarray(x).view(np.float16).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def packed(low: Any, high: Any) -> Words:
    return np.stack([low, high], 1).astype(np.float16).view(np.uint32)[:, 0]


def words(value: Any) -> Words:
    return np.asarray(value, np.float32).view(np.uint32)


def half_lanes(x: Words) -> Words:
    """Words whose halves are ordinary binary16 numbers."""
    return packed(
        *(np.float16(v) for v in ((x & 0xFFF) / 64.0 - 30, (x >> 16 & 0xFFF) / 64.0 - 30))
    )


def clamped(x: Any) -> Any:
    return np.where(np.isnan(x), 0, np.clip(x, 0, 1))


# (targets, body, what v20 is of v4 ... v7 by column)
FLOATS: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
    (ALL, "v_add_f32_e64 v20, -v4, |v5|", lambda a, b: -a + np.abs(b)),
    (ALL, "v_mul_f32_e64 v20, -|v4|, v5", lambda a, b: -np.abs(a) * b),
    (ALL, "v_sub_f32_e32 v20, v4, v5", lambda a, b: a - b),
    (ALL, "v_add_f32_e64 v20, v4, v5 clamp", lambda a, b: clamped(a + b)),
    (ALL, "v_rcp_f32_e32 v21, 0\n v_mul_f32_e64 v20, v21, 0 clamp", lambda a, b: np.zeros_like(a)),
    (ALL, "v_add_f32_e32 v20, 0.5, v4", lambda a, b: np.float32(0.5) + a),
    (ALL, "v_add_f32_e32 v20, -4.0, v4", lambda a, b: a - np.float32(4)),
    (ALL, "v_mul_f32_e32 v20, 0.15915494, v4", lambda a, b: a * np.float32(0.15915494)),
    (ALL, "v_add_f32_e32 v20, 0x42f60000, v4", lambda a, b: a + np.float32(123)),
    (ALL, "v_add_f32_e32 v20, 3, v4", lambda a, b: a + np.uint32(3).view(np.float32)),
    (ALL, "v_cvt_f32_i32_e32 v20, -7", lambda a, b: np.float32(-7) + 0 * a),
    (ALL, "s_mov_b32 s20, 0x40400000\n v_mul_f32_e32 v20, s20, v4", lambda a, b: a * np.float32(3)),
    (ALL, "s_mov_b32 s20, 0x40400000\n v_mul_f32_e64 v20, -s20, v4",
     lambda a, b: a * np.float32(-3)),
    (RDNA, "v_fmamk_f32 v20, v4, 0x40400000, v5",
     lambda a, b: (3 * a.astype(float) + b).astype(np.float32)),
    (RDNA, "v_mov_b32_e32 v21, 2.0\n v_fmaak_f32 v20, v4, v21, 0x40400000",
     lambda a, b: (2 * a.astype(float) + 3).astype(np.float32)),
    (ALL, "v_mov_b32_e32 v20, v5\n v_fmac_f32_e32 v20, 2.0, v4",
     lambda a, b: (2 * a.astype(float) + b).astype(np.float32)),
    (ALL, "v_cmp_lt_f32_e32 vcc, v4, v5\n v_cndmask_b32_e32 v20, v4, v5, vcc", np.maximum),
    (RDNA, "v_dual_mov_b32 v20, v5 :: v_dual_mov_b32 v21, v4\n"
     "v_dual_mov_b32 v20, v21 :: v_dual_mov_b32 v21, v20", lambda a, b: a),
    (RDNA, "v_dual_add_f32 v20, v4, v5 :: v_dual_mul_f32 v21, v5, v4\n"
     "v_mov_b32_e32 v20, v21", lambda a, b: a * b),
    (RDNA, "v_mov_b32_e32 v20, v5\n v_dual_fmac_f32 v20, 2.0, v4 :: v_dual_mov_b32 v21, 0",
     lambda a, b: (2 * a.astype(float) + b).astype(np.float32)),
    (CDNA, "v_accvgpr_write_b32 a3, v4\n s_nop 4\n v_accvgpr_read_b32 v20, a3", lambda a, b: a),
    (CDNA, "v_accvgpr_write_b32 a3, v4\n s_nop 4\n v_accvgpr_mov_b32 a5, a3\n s_nop 4\n"
     "v_accvgpr_read_b32 v20, a5", lambda a, b: a),
    (CDNA, "v_pk_add_f32 v[20:21], v[4:5], 1.0 op_sel_hi:[1,0]",
     lambda a, b: (a.astype(float) + 1).astype(np.float32)),
]  # fmt: skip


def spelled(body: str, arch: str) -> str:
    """VCC is 32 bits where a wave has 32 lanes."""
    return (
        body if arch == "gfx942" else body.replace("vcc", "vcc_lo").replace("vcc_lo_lo", "vcc_lo")
    )


def on(cases: list[Any]) -> Any:
    return pytest.mark.parametrize(
        ("arch", "body", "wanted"),
        [pytest.param(arch, *case[1:], id=f"{arch} {case[1]}") for case in cases
         for arch in case[0]],
    )  # fmt: skip


@on(FLOATS)
@np.errstate(all="ignore")
def test_floats(arch: str, body: str, wanted: Callable[..., Any]) -> None:
    x = given(arch)
    made = lanes(arch, spelled(body, arch), x)[:, 0]
    assert (made == words(wanted(floats(x)[:, 0], floats(x)[:, 1]))).all()


def wide(x: Words) -> NDArray[np.uint64]:
    return np.ascontiguousarray(x).view(np.uint64)


INTEGERS: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
    (RDNA, "v_add_nc_u32_e32 v20, -16, v6", lambda c, d: c - np.uint32(16)),
    (CDNA, "v_add_u32_e32 v20, -16, v6", lambda c, d: c - np.uint32(16)),
    (RDNA, "v_add_nc_u32_e32 v20, 64, v6", lambda c, d: c + np.uint32(64)),
    (ALL, "v_and_b32_e32 v20, 0xff00ff00, v6", lambda c, d: c & 0xFF00FF00),
    (ALL, "v_mov_b32_e32 v20, 1.0", lambda c, d: 0 * c + 0x3F800000),
    (ALL, "v_cmp_gt_i32_e64 s[20:21], 0, v6\n v_cndmask_b32_e64 v20, v6, v7, s[20:21]",
     lambda c, d: np.where(c.astype(np.int32) < 0, d, c)),
    (ALL, "v_cmp_gt_u32_e32 vcc, v6, v7\n v_cndmask_b32_e64 v20, -v6, |v7|, vcc",
     lambda c, d: np.where(c > d, d & 0x7FFFFFFF, c ^ 0x80000000)),
    (ALL, "v_bfe_u32 v20, v6, 8, 5", lambda c, d: c >> 8 & 31),
    (ALL, "v_mbcnt_lo_u32_b32 v20, -1, 5\n v_mbcnt_hi_u32_b32 v20, -1, v20",
     lambda c, d: np.arange(len(c)) + 5),
    (ALL, "v_readfirstlane_b32 s20, v6\n v_mov_b32_e32 v20, s20", lambda c, d: 0 * c + c[0]),
    (ALL, "v_readlane_b32 s20, v6, 13\n v_mov_b32_e32 v20, s20", lambda c, d: 0 * c + c[13]),
    (ALL, "s_mov_b32 s21, 29\n v_readlane_b32 s20, v6, s21\n v_mov_b32_e32 v20, s20",
     lambda c, d: 0 * c + c[29]),
    (ALL, "v_mov_b32_e32 v20, v6\n s_mov_b32 s21, 77\n v_writelane_b32 v20, s21, 9",
     lambda c, d: np.where(np.arange(len(c)) == 9, 77, c)),
    (ALL, "s_mov_b32 s20, -5\n s_ashr_i32 s20, s20, 1\n v_mov_b32_e32 v20, s20",
     lambda c, d: 0 * c + 0xFFFFFFFD),
    (ALL, "s_movk_i32 s20, 0x8001\n v_mov_b32_e32 v20, s20", lambda c, d: 0 * c + 0xFFFF8001),
    (ALL, "s_mov_b32 s20, 70000\n s_mulk_i32 s20, 0xfffe\n v_mov_b32_e32 v20, s20",
     lambda c, d: 0 * c + (-140000 & 0xFFFFFFFF)),
    (ALL, "s_mov_b32 s20, 7\n s_cmp_eq_u32 s20, 7\n s_cselect_b32 s21, 3, 4\n"
     "v_mov_b32_e32 v20, s21", lambda c, d: 0 * c + 3),
    (ALL, "s_mov_b64 s[20:21], -2\n v_mov_b32_e32 v20, s21", lambda c, d: 0 * c + 0xFFFFFFFF),
    (ALL, "s_mov_b64 s[20:21], 0x12345678\n v_mov_b32_e32 v20, s21", lambda c, d: 0 * c),
    (RDNA, "v_mov_b32_e32 v20, null", lambda c, d: 0 * c),
    (ALL, "v_pack_b32_f16 v20, v6, v7 op_sel:[1,0,0]", lambda c, d: c >> 16 | d << 16),
    # Of inactive lanes nothing is written; a comparison makes zeros of them.
    (ALL, "v_mov_b32_e32 v20, v6\n s_mov_b32 exec_lo, 0xff0\n v_mov_b32_e32 v20, v7",
     lambda c, d: np.where(lane_in(c, 0xFF0), d, c)),
    (ALL, "s_mov_b32 vcc_lo, -1\n s_mov_b32 exec_lo, 0xff0\n v_cmp_eq_u32_e64 vcc, v6, v6\n"
     "s_mov_b32 exec_lo, -1\n v_cndmask_b32_e32 v20, v6, v7, vcc",
     lambda c, d: np.where(lane_in(c, 0xFF0), d, c)),
    (RDNA, "v_cmpx_gt_i32_e32 0, v6\n v_mov_b32_e32 v20, v7",
     lambda c, d: np.where(c.astype(np.int32) < 0, d, 0)),
    (RDNA, "s_mov_b32 vcc_lo, 0x55\n v_cmpx_gt_i32_e32 0, v6\n s_mov_b32 exec_lo, -1\n"
     "v_mov_b32_e32 v20, vcc_lo", lambda c, d: 0 * c + 0x55),
    (CDNA, "v_cmpx_gt_i32_e32 vcc, 0, v6\n v_mov_b32_e32 v20, v7\n s_mov_b64 exec, -1\n"
     "v_cndmask_b32_e32 v21, v6, v7, vcc\n v_xor_b32_e32 v20, v20, v21",
     lambda c, d: np.where(c.astype(np.int32) < 0, 0, c)),
    (RDNA, "v_cmp_gt_i32_e32 vcc_lo, 0, v6\n s_and_saveexec_b32 s20, vcc_lo\n"
     "v_mov_b32_e32 v20, v7\n s_or_b32 exec_lo, exec_lo, s20\n v_add_nc_u32_e32 v20, 1, v20",
     lambda c, d: np.where(c.astype(np.int32) < 0, d, 0) + np.uint32(1)),
    (CDNA, "v_cmp_gt_i32_e32 vcc, 0, v6\n s_and_saveexec_b64 s[20:21], vcc\n"
     "v_mov_b32_e32 v20, v7\n s_or_b64 exec, exec, s[20:21]\n v_add_u32_e32 v20, 1, v20",
     lambda c, d: np.where(c.astype(np.int32) < 0, d, 0) + np.uint32(1)),
    # SDWA: parts of sources, their sign, the part of the result, and what becomes of the rest.
    (CDNA, "v_add_u32_sdwa v20, v6, v7 dst_sel:DWORD src0_sel:BYTE_2 src1_sel:WORD_1",
     lambda c, d: (c >> 16 & 255) + (d >> 16)),
    (CDNA, "v_add_u32_sdwa v20, sext(v6), v7 dst_sel:DWORD src0_sel:BYTE_3 src1_sel:BYTE_0",
     lambda c, d: (c.view(np.int32) >> 24).view(np.uint32) + (d & 255)),
    (CDNA, "v_add_u32_sdwa v20, v6, sext(v7) dst_sel:DWORD src0_sel:WORD_0 src1_sel:WORD_1",
     lambda c, d: (c & 0xFFFF) + (d.view(np.int32) >> 16).view(np.uint32)),
    (CDNA, "v_mov_b32_e32 v20, v7\n v_mov_b32_sdwa v20, v6 dst_sel:BYTE_1"
     " dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3", lambda c, d: d & 0xFFFF00FF | c >> 24 << 8),
    (CDNA, "v_mov_b32_e32 v20, v7\n v_mov_b32_sdwa v20, v6 dst_sel:WORD_1 dst_unused:UNUSED_PAD"
     " src0_sel:WORD_0", lambda c, d: c << 16),
    # 16-bit results: RDNA keeps the upper half, CDNA clears it.
    (RDNA, "v_mov_b32_e32 v20, v7\n v_lshrrev_b16 v20, 3, v6",
     lambda c, d: d & 0xFFFF0000 | (c & 0xFFFF) >> 3),
    (CDNA, "v_mov_b32_e32 v20, v7\n v_lshrrev_b16_e32 v20, 3, v6", lambda c, d: (c & 0xFFFF) >> 3),
]  # fmt: skip


def lane_in(c: Any, mask: int) -> Any:
    return np.array([mask >> k % 32 & 1 if k < 32 else 1 if mask == -1 else k >= 32
                     for k in range(len(c))], bool)  # fmt: skip


def masks(body: str, arch: str) -> str:
    body = spelled(body, arch)
    return body if arch == "gfx942" else body.replace("s[20:21], 0, v6", "s20, 0, v6").replace(
        "v7, s[20:21]", "v7, s20")  # fmt: skip


@on(INTEGERS)
def test_integers(arch: str, body: str, wanted: Callable[..., Any]) -> None:
    x = given(arch)
    made = lanes(arch, masks(body, arch), x)[:, 0]
    assert (made == np.asarray(wanted(x[:, 2], x[:, 3])).astype(np.uint32)).all()


@pytest.mark.parametrize("arch", ALL)
def test_binary64(arch: str) -> None:
    """Inline constants, signs and a literal, which is the upper half."""
    x = given(arch)
    numbers = np.random.default_rng(2).standard_normal((len(x), 2))
    body = "v_add_f64 v[20:21], -v[4:5], 2.0\n v_mul_f64 v[22:23], |v[6:7]|, v[4:5]"
    made = lanes(arch, body, numbers.view(np.uint32)).view(np.float64)
    assert (made == np.stack([-numbers[:, 0] + 2, np.abs(numbers[:, 1]) * numbers[:, 0]], 1)).all()
    if arch in RDNA:
        body = "v_add_f64 v[20:21], v[4:5], 0x40180000\n v_add_f64 v[22:23], v[4:5], v[6:7] clamp"
        made = lanes(arch, body, numbers.view(np.uint32)).view(np.float64)
        assert (made == np.stack([numbers[:, 0] + 6, clamped(numbers.sum(1))], 1)).all()


@pytest.mark.parametrize("arch", ALL)
def test_carries(arch: str) -> None:
    """A sum of 64 bits of two registers each."""
    x = given(arch)
    vcc = "vcc" if arch == "gfx942" else "vcc_lo"
    first = f"v_add_co_u32 v20, {vcc}, v4, v6\n"
    second = "v_addc_co_u32_e32" if arch == "gfx942" else "v_add_co_ci_u32_e32"
    made = lanes(arch, f"{first} {second} v21, {vcc}, v5, v7, {vcc}", x)[:, :2]
    assert (wide(made)[:, 0] == wide(x[:, :2])[:, 0] + wide(x[:, 2:])[:, 0]).all()


@pytest.mark.parametrize("arch", ALL)
def test_halves(arch: str) -> None:
    """op_sel chooses halves of sources and of the result, whose other half stays; of a mixed
    multiply-add it chooses halves or binary32."""
    x = half_lanes(given(arch).reshape(-1)).reshape(-1, 4)
    (al, ah), (bl, bh) = (halves(x[:, k].copy()) for k in range(2))
    if arch in RDNA:
        body = "v_mov_b32_e32 v20, v7\n v_add_f16_e64 v20.h, v4.h, -v5.l\n"
        body += "v_mov_b32_e32 v21, v7\n v_mul_f16_e64 v21.l, |v4.l|, v5.h"
        made = lanes(arch, body, x)
        assert (made[:, 0] == (packed(0 * ah, ah - bl) & 0xFFFF0000 | x[:, 3] & 0xFFFF)).all()
        assert (
            made[:, 1] == (packed(np.abs(al) * bh, 0 * ah) & 0xFFFF | x[:, 3] & 0xFFFF0000)
        ).all()
    body = "v_fma_mix_f32 v20, v4, -v5, |v6| op_sel:[1,0,0] op_sel_hi:[1,1,0]\n"
    body += (
        "v_mov_b32_e32 v21, v7\n v_fma_mixhi_f16 v21, v4, v5, -1.0 op_sel:[0,1,0] op_sel_hi:[1,1,0]"
    )
    made = lanes(arch, body, x)
    with np.errstate(all="ignore"):
        wanted = ah.astype(float) * -bl.astype(float) + np.abs(floats(x)[:, 2].astype(float))
        assert (made[:, 0] == words(wanted.astype(np.float32))).all()
    wanted = (al.astype(float) * bh.astype(float) - 1).astype(np.float32)
    assert (made[:, 1] == (packed(0 * ah, wanted) & 0xFFFF0000 | x[:, 3] & 0xFFFF)).all()


def test_packed_binary32() -> None:
    x = given("gfx942")
    x[:, 2:] = given("gfx942", 3)[:, :2]
    a, b, c, d = floats(x).T
    made = floats(lanes("gfx942", "v_pk_add_f32 v[20:21], v[4:5], v[6:7] op_sel:[1,0]"
                        " op_sel_hi:[0,1] neg_lo:[0,1] neg_hi:[1,0]\n"
                        "v_pk_mul_f32 v[22:23], v[4:5], v[6:7] op_sel_hi:[0,1]", x))  # fmt: skip
    assert (np.stack([b - c, -a + d, a * c, a * d]) == made.T).all()


# DPP: where lane l reads from, or -1 for nowhere.
CONTROLS: dict[str, Callable[[int], int]] = {
    "quad_perm:[2,0,3,1]": lambda n: n // 4 * 4 + [2, 0, 3, 1][n % 4],
    "row_shl:3": lambda n: n + 3 if n % 16 < 13 else -1,
    "row_shr:5": lambda n: n - 5 if n % 16 >= 5 else -1,
    "row_ror:6": lambda n: n // 16 * 16 + (n - 6) % 16,
    "row_mirror": lambda n: n // 16 * 16 + 15 - n % 16,
    "row_half_mirror": lambda n: n // 8 * 8 + 7 - n % 8,
}
ON_RDNA = {
    "row_share:7": lambda n: n // 16 * 16 + 7,
    "row_xmask:9": lambda n: n // 16 * 16 + (n % 16 ^ 9),
}
ON_CDNA = {
    "row_bcast:15": lambda n: n // 16 * 16 - 1 if n >= 16 else -1,
    "row_bcast:31": lambda n: 31 if n >= 32 else -1,
    "wave_shr:1": lambda n: n - 1,
}


def controls() -> list[Any]:
    return [
        pytest.param(arch, text, source, id=f"{arch} {text}")
        for arch in ALL
        for text, source in {**CONTROLS, **(ON_RDNA if arch in RDNA else ON_CDNA)}.items()
    ]


@pytest.mark.parametrize(("arch", "text", "source"), controls())
def test_dpp(arch: str, text: str, source: Callable[[int], int]) -> None:
    """Three manners: zeros from nowhere; nothing is written where there is no source; masks. Lanes
    that are not active are none to read from."""
    x = given(arch)
    n, c, d = len(x), x[:, 2].astype(np.int64), x[:, 3].astype(np.int64)
    start = "v_mov_b32_e32 {0}, v7\n v_mov_b32_dpp {0}, v6 "
    off = "s_mov_b32 exec_lo, 0xfffffdff\n"
    made = lanes(arch,
                 start.format("v20") + f"{text} row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
                 + start.format("v21") + f"{text} row_mask:0xf bank_mask:0xf\n"
                 + start.format("v22") + f"{text} row_mask:0x1 bank_mask:0x6 bound_ctrl:1\n"
                 + "v_mov_b32_e32 v23, v7\n" + off
                 + f"v_mov_b32_dpp v23, v6 {text} row_mask:0xf bank_mask:0xf", x)  # fmt: skip
    for k in range(n):
        at = source(k)
        read = int(c[at]) if at >= 0 else None
        assert made[k, 0] == (0 if read is None else read)
        assert made[k, 1] == (d[k] if read is None else read)
        writes = k < 16 and k // 4 % 4 in (1, 2)
        assert made[k, 2] == ((0 if read is None else read) if writes else d[k])
        assert made[k, 3] == (d[k] if k == 9 or at in (9, -1) else read)


@pytest.mark.parametrize("arch", ALL)
def test_dpp_of_an_operation(arch: str) -> None:
    """The first source comes from another lane, the second from the lane itself."""
    x = given(arch)
    a, b = floats(x)[:, 0], floats(x)[:, 1]
    body = "v_add_f32_dpp v20, v4, v5 row_ror:4 row_mask:0xf bank_mask:0xf"
    made = lanes(arch, body, x)[:, 0]
    k = np.arange(len(x))
    assert (made == words(a[k // 16 * 16 + (k - 4) % 16] + b)).all()


@pytest.mark.parametrize("arch", RDNA)
def test_permlane(arch: str) -> None:
    """Each lane names a lane of its row, or of the other row, by four bits of two scalars."""
    x = given(arch)
    select = [0x76543210, 0x0123CDEF]
    text = "".join(f"s_mov_b32 s{20 + k}, {v:#x}\n" for k, v in enumerate(select))
    made = lanes(arch, text + "v_permlane16_b32 v20, v6, s20, s21\n"
                 "v_permlanex16_b32 v21, v6, s20, s21", x)  # fmt: skip
    chosen = np.array([select[k % 16 // 8] >> 4 * (k % 8) & 15 for k in range(32)])
    row = np.arange(32) // 16 * 16
    assert (made[:, 0] == x[row + chosen, 2]).all()
    assert (made[:, 1] == x[(row ^ 16) + chosen, 2]).all()


@pytest.mark.parametrize("arch", ALL)
def test_exchanges_by_lds(arch: str) -> None:
    """ds_bpermute reads from the lane that an address names, ds_permute writes to it; lanes that
    are not active give zeros. ds_swizzle: within 32 lanes by masks, or within four."""
    n = wave_size(arch)
    order = np.random.default_rng(4).permutation(n).astype(np.uint32)
    x = given(arch)
    x[:, 2] = 4 * order
    # v22: with lane 3 inactive. Where it is read from, there is a zero.
    off = "s_mov_b32 exec_lo, 0xfffffff7\n"
    made = lanes(arch, "ds_bpermute_b32 v20, v6, v7\n ds_permute_b32 v21, v6, v7\n"
                 "ds_swizzle_b32 v23, v7 offset:swizzle(BITMASK_PERM, \"1p0i1\")\n"
                 f"{off} ds_bpermute_b32 v22, v6, v7", x)  # fmt: skip
    data = x[:, 3]
    assert (made[:, 0] == data[order]).all()
    assert (made[order, 1] == data).all()
    k = np.arange(n)
    assert (made[:, 2] == np.where(k == 3, 0, np.where(order == 3, 0, data[order]))).all()
    # Of five bits: 1 sets, p keeps, 0 clears, i inverts.
    lane = k & ~31 | ((k & 0b01010) ^ 0b00010 | 0b10001)
    assert (made[:, 3] == data[lane]).all()


@pytest.mark.parametrize("arch", ALL)
def test_swizzle_of_four_lanes(arch: str) -> None:
    x = given(arch)
    body = "ds_swizzle_b32 v20, v7 offset:swizzle(QUAD_PERM, 3, 0, 2, 1)"
    k = np.arange(len(x))
    assert (lanes(arch, body, x)[:, 0] == x[k // 4 * 4 + np.array([3, 0, 2, 1])[k % 4], 3]).all()


# What makes each branch be taken, and what not.
BRANCHES = {
    "s_branch": ("", None),
    "s_cbranch_scc0": ("s_cmp_eq_u32 0, 1", "s_cmp_eq_u32 1, 1"),
    "s_cbranch_scc1": ("s_cmp_eq_u32 1, 1", "s_cmp_eq_u32 0, 1"),
    "s_cbranch_vccz": ("s_mov_b64 vcc, 0", "s_mov_b64 vcc, 4"),
    "s_cbranch_vccnz": ("s_mov_b64 vcc, 4", "s_mov_b64 vcc, 0"),
    "s_cbranch_execz": ("s_mov_b64 exec, 0", "s_mov_b64 exec, 4"),
    "s_cbranch_execnz": ("s_mov_b64 exec, 4", "s_mov_b64 exec, 0"),
}


@pytest.mark.parametrize("arch", ALL)
@pytest.mark.parametrize("branch", BRANCHES)
def test_branches(arch: str, branch: str) -> None:
    """Over a scalar instruction, which no mask stops."""
    for way, taken in zip(BRANCHES[branch], (True, False), strict=True):
        if way is None:
            continue
        body = f"s_mov_b32 s20, 1\n {way}\n {branch} .Lend\n s_mov_b32 s20, 2\n .Lend:\n"
        body += "s_mov_b64 exec, -1\n v_mov_b32_e32 v20, s20"
        assert (lanes(arch, body, given(arch))[:, 0] == (1 if taken else 2)).all()


@pytest.mark.parametrize("arch", ALL)
def test_a_loop(arch: str) -> None:
    add = "s_add_co_i32" if arch == "gfx1201" else "s_add_i32"
    body = f"""s_mov_b32 s20, 0
        s_mov_b32 s21, 5
        .Lagain:
        {add} s20, s20, s21
        {add} s21, s21, -1
        s_cmp_lg_u32 s21, 0
        s_cbranch_scc1 .Lagain
        v_mov_b32_e32 v20, s20"""
    assert (lanes(arch, body, given(arch))[:, 0] == 15).all()


@pytest.mark.parametrize("arch", ALL)
def test_a_wave_that_is_not_full(arch: str) -> None:
    """The last wave has 7 work-items; its other lanes are not active."""
    x = np.concatenate([given(arch), given(arch, 2)])[: wave_size(arch) + 7]
    body = "v_mov_b32_e32 v20, v6\n s_bcnt1_i32_b64 s20, exec\n v_mov_b32_e32 v21, s20"
    if arch in RDNA:
        body = body.replace("b64 s20, exec", "b32 s20, exec_lo")
    made = lanes(arch, body, x)
    assert (made[:, 0] == x[:, 2]).all()
    assert (made[:, 1] == np.where(np.arange(len(x)) < wave_size(arch), wave_size(arch), 7)).all()


def test_what_is_not_modelled_is_refused() -> None:
    for body, reason in (
        ("v_add_f32_e64 v20, v4, v5 mul:2", "output modifier"),
        ("v_add_nc_u32_e64 v20, v4, v5 clamp", "saturate"),
        ("v_mov_b32_dpp v20, v4 dpp8:[7,6,5,4,3,2,1,0]", "DPP8"),
        ("v_interp_p10_f32 v20, v4, v5, v6 wait_exp:0", "is not modelled"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            gfx_assembly.program(body, "gfx1100")


# Passes of the unit, and how many wait states beyond them a reader needs (LLVM, gfx940).
PRODUCTS = {
    "v_mfma_f32_16x16x16_f16 v[20:23], v[4:5], v[6:7], 0": (4, 3),
    "v_mfma_f32_32x32x8_f16 v[20:35], v[4:5], v[6:7], 0": (8, 3),
    "v_mfma_f32_16x16x4_f32 v[20:23], v4, v6, 0": (8, 2),
    "v_mfma_f32_32x32x2_f32 v[20:35], v4, v6, 0": (16, 2),
}


@pytest.mark.parametrize(("product", "needed"), PRODUCTS.items())
def test_a_matrix_product_is_waited_for(product: str, needed: tuple[int, int]) -> None:
    def waits(count: int) -> str:
        return "\n".join(f"s_nop {min(16, count - k) - 1}" for k in range(0, count, 16))

    whole = sum(needed)
    lanes("gfx942", f"{product}\n {waits(whole)}\n v_mov_b32_e32 v20, v20", given("gfx942"))
    with pytest.raises(Fault, match=rf"is used {whole - 1} wait states after .* needs {whole} at"):
        lanes("gfx942", f"{product}\n {waits(whole - 1)}\n v_mov_b32_e32 v20, v20", given("gfx942"))
    again = product.rsplit(" ", 1)[0] + " " + product.split()[1].rstrip(",")
    lanes("gfx942", f"{product}\n {again}\n {waits(whole)}", given("gfx942"))  # adds to all of it
