"""The instructions that our kernels use most, against what their names mean: NumPy and Python, not
AMD's pseudo-code, so that an error of its text or of our reading of it is seen.

Sources: AMD, "RDNA3 Instruction Set Architecture" and "AMD Instinct MI300 Instruction Set
Architecture", descriptions of the instructions; IEEE 754. Any NaN equals any NaN.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import exact_floats as exact
import gfx_lanes
import gfx_operands
import how_much
import numpy as np
import pytest
from exact_floats import Float

from tools.dev.gfx import opcodes
from tools.dev.gfx.decode import INSTRUCTION_SETS

DRAWS = how_much.of(gate=256, full=16384)
ONES = (1 << 32) - 1
F16, F32, F64 = ("f", 16), ("f", 32), ("f", 64)
U32, U64, PK = ("u", 32), ("u", 64), ("p", 64)


def f32(bits: int) -> np.float32:
    return np.uint32(bits & ONES).view(np.float32)


def f64(bits: int) -> np.float64:
    return np.uint64(bits).view(np.float64)


def f16(bits: int) -> np.float16:
    return np.uint16(bits & 0xFFFF).view(np.float16)


def bits(value: Any) -> int:
    """Of a NumPy scalar."""
    return int(value.view(f"u{value.dtype.itemsize}"))


def i32(value: int) -> int:
    return (value & ONES ^ 1 << 31) - (1 << 31)


def i64(value: int) -> int:
    return (value & (1 << 64) - 1 ^ 1 << 63) - (1 << 63)


def i24(value: int) -> int:
    return (value & 0xFFFFFF ^ 1 << 23) - (1 << 23)


def single(function: Callable[..., Any]) -> Callable[..., int]:
    """Of binary32 numbers one."""
    return lambda *given: bits(np.float32(function(*map(f32, given))))


def double(function: Callable[..., Any]) -> Callable[..., int]:
    return lambda *given: bits(np.float64(function(*map(f64, given))))


def exactly(width: int) -> Callable[..., int]:
    return lambda *given: exact.fma(*(Float(v, width) for v in given)).bits


def larger(a: Any, b: Any) -> Any:
    """Of a number and a NaN the number; +0 is larger than -0."""
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    return b if a < b or (a == b == 0 and np.signbit(a)) else a


def smaller(a: Any, b: Any) -> Any:
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    return a if a < b or (a == b == 0 and np.signbit(a)) else b


def saturated(value: Any, low: int, high: int) -> int:
    if np.isnan(value):
        return 0
    if np.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


def permuted(high: int, low: int, select: int) -> int:
    """v_perm_b32: bytes 0 to 3 are the second source's, 4 to 7 the first's; 8 to 11 repeat the sign
    of the bytes 1, 3, 5, 7; 12 is 0, more is 255."""
    pool = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    signs = {8: pool[1], 9: pool[3], 10: pool[5], 11: pool[7]}
    made = []
    for which in select.to_bytes(4, "little"):
        if which < 8:
            made.append(pool[which])
        elif which in signs:
            made.append(255 if signs[which] >= 128 else 0)
        else:
            made.append(0 if which == 12 else 255)
    return int.from_bytes(bytes(made), "little")


def pairs(function: Callable[..., int]) -> Callable[..., int]:
    return lambda *given: (
        function(*(v & ONES for v in given)) | function(*(v >> 32 for v in given)) << 32
    )


def field(value: int, at: int, width: int, signed: bool) -> int:
    made = value >> at & ((1 << width) - 1)
    if signed and width and made >> (width - 1):
        made -= 1 << width
    return made


# Names of all targets, the sources' types, what the result is.
RESULTS: list[tuple[str, tuple[Any, ...], Callable[..., int]]] = [
    ("v_add_f32", (F32, F32), single(operator.add)),
    ("v_sub_f32", (F32, F32), single(operator.sub)),
    ("v_mul_f32 s_mul_f32", (F32, F32), single(operator.mul)),
    ("v_add_f64", (F64, F64), double(operator.add)),
    ("v_mul_f64", (F64, F64), double(operator.mul)),
    ("v_fma_f32", (F32, F32, F32), exactly(32)),
    ("v_fma_f64", (F64, F64, F64), exactly(64)),
    ("v_max_f32 v_max_num_f32", (F32, F32), single(larger)),
    ("v_max_f64 v_max_num_f64", (F64, F64), double(larger)),
    ("v_min_f64", (F64, F64), double(smaller)),
    ("v_cvt_f16_f32", (F32,), lambda a: bits(f32(a).astype(np.float16))),
    ("v_cvt_f32_f16", (F16,), lambda a: bits(f16(a).astype(np.float32))),
    ("v_cvt_f64_f32", (F32,), lambda a: bits(f32(a).astype(np.float64))),
    ("v_cvt_f32_f64", (F64,), lambda a: bits(f64(a).astype(np.float32))),
    ("v_cvt_f32_i32 s_cvt_f32_i32", (U32,), lambda a: bits(np.int32(i32(a)).astype(np.float32))),
    ("v_cvt_f32_u32 s_cvt_f32_u32", (U32,), lambda a: bits(np.uint32(a).astype(np.float32))),
    ("v_cvt_f64_i32", (U32,), lambda a: bits(np.float64(i32(a)))),
    ("v_cvt_u32_f32 s_cvt_u32_f32", (F32,), lambda a: saturated(f32(a), 0, ONES)),
    ("v_cvt_i32_f64", (F64,), lambda a: saturated(f64(a), -(1 << 31), (1 << 31) - 1) & ONES),
    ("v_floor_f64", (F64,), double(np.floor)),
    ("v_ceil_f64", (F64,), double(np.ceil)),
    ("v_ldexp_f32", (F32, U32), lambda a, n: exact.scaled(Float(a, 32), i32(n)).bits),
    ("v_ldexp_f64", (F64, U32), lambda a, n: exact.scaled(Float(a, 64), i32(n)).bits),
    ("v_lshlrev_b32", (U32, U32), lambda n, a: a << (n & 31) & ONES),
    ("v_lshrrev_b32", (U32, U32), lambda n, a: a >> (n & 31)),
    ("v_ashrrev_i32", (U32, U32), lambda n, a: i32(a) >> (n & 31) & ONES),
    ("v_lshlrev_b64", (U32, U64), lambda n, a: a << (n & 63) & (1 << 64) - 1),
    ("v_ashrrev_i64", (U32, U64), lambda n, a: i64(a) >> (n & 63) & (1 << 64) - 1),
    ("v_lshrrev_b16", (U32, U32), lambda n, a: (a & 0xFFFF) >> (n & 15)),
    ("s_lshl_b32", (U32, U32), lambda a, n: a << (n & 31) & ONES),
    ("s_lshr_b32", (U32, U32), lambda a, n: a >> (n & 31)),
    ("s_ashr_i32", (U32, U32), lambda a, n: i32(a) >> (n & 31) & ONES),
    ("s_lshl_b64", (U64, U32), lambda a, n: a << (n & 63) & (1 << 64) - 1),
    ("s_ashr_i64", (U64, U32), lambda a, n: i64(a) >> (n & 63) & (1 << 64) - 1),
    ("v_bfe_u32", (U32, U32, U32), lambda a, b, c: field(a, b & 31, c & 31, False)),
    ("v_bfe_i32", (U32, U32, U32), lambda a, b, c: field(i32(a), b & 31, c & 31, True) & ONES),
    ("s_bfe_u32", (U32, U32), lambda a, b: field(a, b & 31, b >> 16 & 127, False)),
    ("s_bfe_i32", (U32, U32), lambda a, b: field(i32(a), b & 31, min(b >> 16 & 127, 64), True)
     & ONES),
    ("v_bfrev_b32 s_brev_b32", (U32,), lambda a: int(f"{a:032b}"[::-1], 2)),
    ("v_perm_b32", (U32, U32, U32), permuted),
    ("v_alignbit_b32", (U32, U32, U32), lambda a, b, n: (a << 32 | b) >> (n & 31) & ONES),
    ("v_add_nc_u32 v_add_u32", (U32, U32), lambda a, b: (a + b) & ONES),
    ("v_sub_nc_u32 v_sub_u32", (U32, U32), lambda a, b: (a - b) & ONES),
    ("v_subrev_nc_u32 v_subrev_u32", (U32, U32), lambda a, b: (b - a) & ONES),
    ("v_add3_u32", (U32, U32, U32), lambda a, b, c: (a + b + c) & ONES),
    ("v_lshl_add_u32", (U32, U32, U32), lambda a, n, c: ((a << (n & 31)) + c) & ONES),
    ("v_add_lshl_u32", (U32, U32, U32), lambda a, b, n: (a + b) << (n & 31) & ONES),
    ("v_lshl_or_b32", (U32, U32, U32), lambda a, n, c: (a << (n & 31) | c) & ONES),
    ("v_lshl_add_u64", (U64, U32, U64), lambda a, n, c: ((a << (n & 7)) + c) & (1 << 64) - 1),
    ("v_and_or_b32", (U32, U32, U32), lambda a, b, c: a & b | c),
    ("v_or3_b32", (U32, U32, U32), lambda a, b, c: a | b | c),
    ("v_xad_u32", (U32, U32, U32), lambda a, b, c: ((a ^ b) + c) & ONES),
    ("v_and_b32 s_and_b32", (U32, U32), lambda a, b: a & b),
    ("v_or_b32 s_or_b32", (U32, U32), lambda a, b: a | b),
    ("v_xor_b32 s_xor_b32", (U32, U32), lambda a, b: a ^ b),
    ("v_not_b32", (U32,), lambda a: a ^ ONES),
    ("s_and_not1_b32", (U32, U32), lambda a, b: a & ~b),
    ("s_andn2_b64", (U64, U64), lambda a, b: a & ~b),
    ("v_mov_b32 s_mov_b32", (U32,), lambda a: a),
    ("v_mul_lo_u32 s_mul_i32", (U32, U32), lambda a, b: a * b & ONES),
    ("v_mul_hi_u32 s_mul_hi_u32", (U32, U32), lambda a, b: a * b >> 32),
    ("v_mul_hi_i32 s_mul_hi_i32", (U32, U32), lambda a, b: i32(a) * i32(b) >> 32 & ONES),
    ("v_mul_u32_u24", (U32, U32), lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & ONES),
    ("v_mul_i32_i24", (U32, U32), lambda a, b: i24(a) * i24(b) & ONES),
    ("v_mad_i32_i24", (U32, U32, U32), lambda a, b, c: (i24(a) * i24(b) + i32(c)) & ONES),
    ("v_mad_u64_u32 v_mad_co_u64_u32", (U32, U32, U64), lambda a, b, c: (a * b + c)
     & (1 << 64) - 1),
    ("v_mad_i64_i32 v_mad_co_i64_i32", (U32, U32, U64), lambda a, b, c: (i32(a) * i32(b) + i64(c))
     & (1 << 64) - 1),
    ("v_max_i32 s_max_i32", (U32, U32), lambda a, b: max(i32(a), i32(b)) & ONES),
    ("v_min_i32 s_min_i32", (U32, U32), lambda a, b: min(i32(a), i32(b)) & ONES),
    ("v_max3_i32", (U32, U32, U32), lambda a, b, c: max(i32(a), i32(b), i32(c)) & ONES),
    ("v_maxmin_i32", (U32, U32, U32), lambda a, b, c: min(max(i32(a), i32(b)), i32(c)) & ONES),
    ("s_abs_i32", (U32,), lambda a: abs(i32(a)) & ONES),
    ("s_ctz_i32_b32", (U32,), lambda a: (a & -a).bit_length() - 1 & ONES),
    ("s_mul_u64", (U64, U64), lambda a, b: a * b & (1 << 64) - 1),
    ("s_add_nc_u64", (U64, U64), lambda a, b: (a + b) & (1 << 64) - 1),
    ("v_pack_b32_f16", (U32, U32), lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16),
    ("v_pk_add_f32", (PK, PK), pairs(single(operator.add))),
    ("v_pk_mul_f32", (PK, PK), pairs(single(operator.mul))),
    ("v_pk_fma_f32", (PK, PK, PK), pairs(exactly(32))),
]  # fmt: skip
HALVES = {"v_cvt_f16_f32": [16], "v_pack_b32_f16": [16, 16], "v_pk_add_f32": [32, 32],
          "v_pk_mul_f32": [32, 32], "v_pk_fma_f32": [32, 32]}  # fmt: skip

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "neq": lambda a, b: a != b, "nlt": lambda a, b: not a < b,
    "nle": lambda a, b: not a <= b, "ngt": lambda a, b: not a > b, "nge": lambda a, b: not a >= b,
    "lg": lambda a, b: a < b or a > b, "nlg": lambda a, b: not (a < b or a > b),
    "o": lambda a, b: a == a and b == b, "u": lambda a, b: a != a or b != b,
}  # fmt: skip


def where(names: str) -> list[tuple[str, str]]:
    """(tables, instruction) of each target that lists one of the names."""
    listed = opcodes.listed()
    return [
        (INSTRUCTION_SETS[arch], name)
        for arch in listed
        for name in names.split()
        if name in {opcodes.function_of(one) for one in listed[arch]}
    ]


def drawn(name: str, kinds: tuple[Any, ...]) -> list[list[int]]:
    source = random.Random(name)
    return [[gfx_operands.draw(source, kind) for _ in range(DRAWS)] for kind in kinds]


def floats_of(name: str) -> list[int]:
    if name in HALVES:
        return HALVES[name]
    ending = name.split("_")[-1] if "cvt" not in name else name.split("_")[2]
    return [int(ending[1:])] if ending in ("f16", "f32", "f64") else []


def plain(value: int, widths: list[int]) -> int:
    """The bits of floats with every NaN as one."""
    made, at = 0, 0
    for width in widths:
        one = Float(value >> at & ((1 << width) - 1), width)
        made |= (exact.nan(width) if one.is_nan else one).bits << at
        at += width
    return made if widths else value


@pytest.mark.parametrize(
    ("names", "kinds", "function"), [pytest.param(*case, id=case[0]) for case in RESULTS]
)
@np.errstate(all="ignore")
def test_results_are_what_the_name_says(names: str, kinds: Any, function: Any) -> None:
    found = where(names)
    assert found, names
    given = drawn(names, kinds)
    wanted = [function(*one) for one in zip(*given, strict=True)]
    for tables, name in found:
        made = []
        if name.startswith("s_"):  # one lane
            for one in zip(*given, strict=True):
                made += gfx_lanes.results(tables, name, *([v] for v in one))
        else:
            made = gfx_lanes.results(tables, name, *given)
        widths = floats_of(name)
        for k, (x, y) in enumerate(zip(made, wanted, strict=True)):
            told = f"{name} of {[hex(v[k]) for v in given]}: {x:#x}, expected {y:#x}"
            ones = 0xFFFF if name == "v_cvt_f16_f32" else (1 << 64) - 1
            assert plain(x & ones, widths) == plain(y, widths), told


@pytest.mark.parametrize("name", sorted({
    name.replace("v_cmpx", "v_cmp") for names in opcodes.listed().values() for name in names
    if name.startswith("v_cmp") and "_class_" not in name}))  # fmt: skip
@np.errstate(all="ignore")
def test_comparisons(name: str) -> None:
    _, _, what, kind = name.split("_")
    width = int(kind[1:])
    source = random.Random(name)
    given = [[gfx_operands.draw(source, (kind[0], width)) for _ in range(DRAWS)] for _ in range(2)]
    given[1][::4] = given[0][::4]
    read: Any = {"f32": f32, "f64": f64, "i32": i32, "i64": i64}.get(kind, int)
    wanted = [bool(COMPARED[what](read(a), read(b))) for a, b in zip(*given, strict=True)]
    for tables, found in where(f"{name} {name.replace('v_cmp', 'v_cmpx')}"):
        made = gfx_lanes.masks(tables, found, *given)
        assert [bool(v) for v in made] == wanted, found


@pytest.mark.parametrize(("name", "function"), [
    ("v_rcp_f32", lambda x: 1 / x), ("v_rcp_iflag_f32", lambda x: 1 / x), ("v_sqrt_f32", np.sqrt),
    ("v_exp_f32", np.exp2)])  # fmt: skip
@np.errstate(all="ignore")
def test_functions_within_a_unit_in_the_last_place(name: str, function: Any) -> None:
    (given,) = drawn(name, (F32,))
    wanted = function(np.array(given, np.uint32).view(np.float32).astype(np.float64))
    for tables, found in where(name):
        made = np.array(gfx_lanes.results(tables, found, given), np.uint32).view(np.float32)
        exactly = wanted.astype(np.float32)
        near = np.abs(made.astype(np.float64) - wanted) <= np.spacing(np.abs(exactly))
        assert (near | (made == exactly) | (np.isnan(made) & np.isnan(exactly))).all()


def test_carries() -> None:
    a, b = drawn("carries", (U32, U32))
    carry = random.Random(1).getrandbits(64)
    for tables, name in where("v_add_co_u32"):
        assert gfx_lanes.masks(tables, name, a, b) == [
            x + y >> 32 for x, y in zip(a, b, strict=True)
        ]
    bit = [carry >> k % 64 & 1 for k in range(DRAWS)]
    for tables, name in where("v_add_co_ci_u32"):
        sums = [x + y + z for x, y, z in zip(a, b, bit, strict=True)]
        assert gfx_lanes.masks(tables, name, a, b, vcc=carry) == [s >> 32 for s in sums]
        assert gfx_lanes.results(tables, name, a, b, vcc=carry) == [s & ONES for s in sums]
    (c,) = drawn("third", (U64,))
    for tables, name in where("v_mad_u64_u32 v_mad_co_u64_u32"):
        sums = [x * y + z for x, y, z in zip(a, b, c, strict=True)]
        assert gfx_lanes.masks(tables, name, a, b, c) == [s >> 64 for s in sums]
    for tables, name in where("v_cndmask_b32"):
        chosen = [y if z else x for x, y, z in zip(a, b, bit, strict=True)]
        assert gfx_lanes.results(tables, name, a, b, vcc=carry) == chosen


@pytest.mark.parametrize(("names", "flag"), [
    ("s_add_u32", lambda a, b, c: a + b > ONES), ("s_addc_u32", lambda a, b, c: a + b + c > ONES),
    ("s_add_i32 s_add_co_i32", lambda a, b, c: i32(a) + i32(b) != i32(a + b)),
    ("s_sub_i32 s_sub_co_i32", lambda a, b, c: i32(a) - i32(b) != i32(a - b)),
    ("s_and_b32", lambda a, b, c: a & b != 0), ("s_lshl_b32", lambda a, b, c: a << (b & 31) & ONES),
    ("s_max_i32", lambda a, b, c: i32(a) >= i32(b)), ("s_min_i32", lambda a, b, c: i32(a) < i32(b)),
    ("s_cmp_eq_u32", lambda a, b, c: a == b), ("s_cmp_lg_u32", lambda a, b, c: a != b),
    ("s_cmp_lt_i32", lambda a, b, c: i32(a) < i32(b)), ("s_cmp_lt_u32", lambda a, b, c: a < b),
    ("s_cmp_ge_i32", lambda a, b, c: i32(a) >= i32(b)), ("s_cmp_ge_u32", lambda a, b, c: a >= b),
    ("s_cmp_gt_i32", lambda a, b, c: i32(a) > i32(b)),
], ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
def test_scalar_flags(names: str, flag: Callable[[int, int, int], Any]) -> None:
    source = random.Random(names)
    found = where(names)
    assert found
    for tables, name in found:
        for _ in range(DRAWS):
            a, b = (gfx_operands.draw(source, U32) for _ in range(2))
            b = a if source.random() < 0.2 else b
            carry = source.getrandbits(1)
            lanes = gfx_lanes.given([a], [b], scc=carry)
            gfx_lanes.call(tables, name, lanes)
            assert lanes.scc == bool(flag(a, b, carry)), (name, hex(a), hex(b), carry)


@pytest.mark.parametrize("ieee", [0, 1])
def test_a_signalling_nan_is_not_dropped_where_the_kernel_asks_for_ieee(ieee: int) -> None:
    """v_max_f32 of a signalling NaN and 1."""
    for tables, name in where("v_max_f32"):
        (made,) = gfx_lanes.results(tables, name, [0x7F800001], [0x3F800000], ieee=ieee)
        assert np.isnan(f32(made)) == bool(ieee)


@np.errstate(all="ignore")
def test_mixed_precision() -> None:
    """Sources of v_fma_mix: binary32, or one of two halves; signs as asked."""
    source = random.Random("mix")
    for tables, name in where("v_fma_mix_f32 v_fma_mixlo_f16"):
        for _ in range(DRAWS // 8):
            fields = {key: source.getrandbits(3) for key in ("negate", "absolute", "select",
                                                             "select_high")}  # fmt: skip
            given = [[source.choice([gfx_operands.floats(source, 32), source.getrandbits(32)])
                      for _ in range(16)] for _ in range(3)]  # fmt: skip
            old = [source.getrandbits(32) for _ in range(16)]
            made = gfx_lanes.results(tables, name, *given, d=old, **fields)
            for k, one in enumerate(zip(*given, strict=True)):
                a, b, c = (mixed(v, n, **fields) for n, v in enumerate(one))
                wanted = exact.fma(a, b, c)
                if "mixlo" in name:
                    wanted = wanted.to(16)
                    assert made[k] >> 16 == old[k] >> 16
                ones = (1 << wanted.width) - 1
                assert plain(made[k] & ones, [wanted.width]) == plain(wanted.bits, [wanted.width])


def mixed(value: int, k: int, negate: int, absolute: int, select: int, select_high: int) -> Float:
    bit = 1 << k
    made = Float(value, 32)
    if select_high & bit:
        made = Float(value >> 16 if select & bit else value & 0xFFFF, 16).to(32)
    if absolute & bit:
        made = made.absolute()
    return made.negated() if negate & bit else made


def test_packed_moves() -> None:
    a, b = 0x1111111122222222, 0x3333333344444444
    wanted = {0: 0x4444444422222222, 1: 0x4444444411111111, 2: 0x3333333322222222,
              3: 0x3333333311111111}  # fmt: skip
    for tables, name in where("v_pk_mov_b32"):
        for select, made in wanted.items():
            assert gfx_lanes.results(tables, name, [a], [b], select=select) == [made]


def test_lanes_below() -> None:
    """v_mbcnt_lo_u32_b32: how many lower lanes a mask has, and what is added."""
    for tables, name in where("v_mbcnt_lo_u32_b32"):
        made = gfx_lanes.results(tables, name, [0xF0F0F0F0] * 32, [7] * 32)
        assert made == [7 + (0xF0F0F0F0 & (1 << k) - 1).bit_count() for k in range(32)]
