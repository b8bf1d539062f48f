"""Small kernels that Triton compiles for the three targets, executed, against NumPy."""

from __future__ import annotations

import random
from typing import Any

import gfx_kernels as kernels
import gfx_operands
import numpy as np
import pytest
import torch
from gfx_kernels import ARCHES, compiled, launch

from tools.dev.gfx import lower, opcodes

pytestmark = pytest.mark.parametrize("arch", ARCHES)


# What hardware may give where it only approximates. Of a unit in the last place: the neighbour on
# the other side of the true value. Of reciprocals in binary64 half of the bits.
_ORDINARY = "(exponent(S0.f32) > 0) && (exponent(S0.f32) < 252)"
_OFF = f"if ({{0}} {{1}} 0.0F) && {_ORDINARY} then D0.u32 = D0.u32 {{2}} 1U endif"
_COARSE = """if (exponent(S0.f64) > 0) && (exponent(S0.f64) < 2040) then
    D0.u64 = (D0.u64 & ~0x1ffffffULL) endif"""


def approximations(sign: str) -> dict[str, str]:
    way = "<" if sign == "+" else ">"
    reciprocal = "D0.f32 = 1.0F / S0.f32; " + _OFF.format("fma(D0.f32, S0.f32, -1.0F)", way, sign)
    root = "D0.f32 = sqrt(S0.f32); " + _OFF.format("fma(D0.f32, D0.f32, -S0.f32)", way, sign)
    both = "1.0F / sqrt(S0.f32)"
    inverse = f"D0.f32 = {both}; " + _OFF.format("fma(D0.f32 * D0.f32, S0.f32, -1.0F)", way, sign)
    return {
        "v_rcp_f32": reciprocal, "v_rcp_iflag_f32": reciprocal, "v_rsq_f32": inverse,
        "v_sqrt_f32": root, "v_rcp_f64": f"D0.f64 = 1.0 / S0.f64; {_COARSE}",
    }  # fmt: skip


@pytest.fixture(params=["", "+", "-"], ids=["exact", "more", "less"])
def approximate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Quotients and roots must not depend on how reciprocals are rounded. Whether they are rounded
    otherwise than to nearest."""
    if request.param:
        changed = approximations(request.param)
        monkeypatch.setattr(
            lower, "pseudo_code", lambda tables: {**opcodes.pseudo_code(tables), **changed}
        )
    return bool(request.param)


def ordinary(y: Any, bits: str) -> Any:
    """Denominators without those whose fraction is all ones: of these the last step of a division
    is right only if their reciprocal is (P. Markstein, "Computation of elementary functions on the
    IBM RISC System/6000 processor", 1990). That hardware's is, we must believe."""
    ones = {"u4": (1 << 23) - 1, "u8": (1 << 52) - 1}[bits]
    fraction = y.view(bits) & np.array(ones, bits)
    return np.where(fraction == ones, y.view(bits) ^ np.array(2, bits), y.view(bits)).view(y.dtype)


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_masked_add(arch: str) -> None:
    x, y = normal(1, 300), normal(2, 300)
    out = np.full(300, np.nan, np.float32)
    kernel = compiled(kernels.masked_add, arch, "*fp32 *fp32 *fp32 i32", BLOCK=128)
    launch(kernel, arch, (3,), x, y, out, 300)
    assert (out == x + y).all()


def test_reductions(arch: str) -> None:
    """Whole numbers, whose sums are exact in any order."""
    x = np.random.default_rng(3).integers(-1000, 1000, (16, 50)).astype(np.float32)
    sums, largest = np.zeros(16, np.float32), np.zeros(16, np.float32)
    kernel = compiled(kernels.reduce_rows, arch, "*fp32 *fp32 *fp32 i32", ROWS=8, BLOCK=64)
    launch(kernel, arch, (2,), x, sums, largest, 50)
    assert (sums == x.sum(1)).all()
    assert (largest == x.max(1)).all()


@pytest.mark.parametrize("letter", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
def test_dot(arch: str, letter: str, whole: bool) -> None:
    """(40, 50) times (50, 36), in blocks of 32 by a 2-D grid."""
    a, b = normal(4, 40, 50), normal(5, 50, 36)
    if whole:
        a, b = np.rint(4 * a), np.rint(4 * b)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[letter]
    left, right = (torch.from_numpy(v).to(dtype) for v in (a, b))
    wanted = left.double().numpy() @ right.double().numpy()
    bits = torch.float32 if letter == "fp32" else torch.int16
    c = np.full((40, 36), np.nan, np.float32)
    types = f"*{letter} *{letter} *fp32 i32 i32 i32"
    depth = 16 if letter == "fp32" else 32
    kernel = compiled(kernels.multiply, arch, types, BM=32, BN=32, BK=depth)
    launch(kernel, arch, (2, 2), left.view(bits).numpy(), right.view(bits).numpy(), c, 40, 36, 50)
    bound = 0 if whole else 50 * 2.0**-24 * (np.abs(left.double().numpy())
                                             @ np.abs(right.double().numpy()))  # fmt: skip
    assert (np.abs(c - wanted) <= bound).all()


@np.errstate(all="ignore")
def test_functions(arch: str, approximate: bool) -> None:
    """exp within the rounding of its argument; square root and quotient correctly rounded."""
    source = random.Random(6)
    x, y = (np.array([gfx_operands.floats(source, 32) for _ in range(512)], np.uint32)
            .view(np.float32) for _ in range(2))  # fmt: skip
    x[:128] = np.abs(normal(7, 128)) * 20
    y = ordinary(y, "u4") if approximate else y
    exps, roots, quotients = (np.zeros(512, np.float32) for _ in range(3))
    kernel = compiled(kernels.functions, arch, "*fp32 " * 5, BLOCK=128)
    launch(kernel, arch, (4,), x, y, exps, roots, quotients)
    wanted = np.exp(x.astype(np.float64)).astype(np.float32)
    small, large = np.abs(x) < 80, ~(np.abs(x) < 110)
    # 2 ** (x / ln 2): the product's rounding counts as often as the exponent is large.
    bound = wanted * (2 + np.abs(x)) * 2.0**-23
    assert (np.abs(exps - wanted)[small] <= bound[small]).all()
    assert same(exps[large], wanted[large])
    assert same(roots, np.sqrt(x))
    check_quotients(quotients, x, y, "u4")


@np.errstate(all="ignore")
def test_binary64_quotients(arch: str, approximate: bool) -> None:
    source = random.Random(8)
    x, y = (np.array([gfx_operands.floats(source, 64) for _ in range(1024)], np.uint64)
            .view(np.float64) for _ in range(2))  # fmt: skip
    y = ordinary(y, "u8") if approximate else y
    quotients = np.zeros(1024)
    launch(compiled(kernels.divide, arch, "*fp64 *fp64 *fp64", BLOCK=128), arch, (8,), x, y,
           quotients)  # fmt: skip
    check_quotients(quotients, x, y, "u8")


def same(x: Any, y: Any) -> bool:
    return bool(((x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))).all())


def check_quotients(quotients: Any, x: Any, y: Any, bits: str) -> None:
    """Correctly rounded; a denormal one, which is rounded twice, within a unit."""
    wanted = x / y
    normal = ~(np.abs(wanted) < np.finfo(x.dtype).tiny) | (wanted == 0)
    assert same(quotients[normal], wanted[normal]), [
        (hex(a), hex(b), q, w)
        for a, b, q, w in zip(x.view(bits), y.view(bits), quotients, wanted, strict=True)
        if not (q == w or (q != q and w != w))
    ][:20]
    away = quotients[~normal].view(bits).astype(np.int64) - wanted[~normal].view(bits).astype(int)
    assert (np.abs(away) <= 1).all()


@pytest.mark.usefixtures("approximate")
def test_whole_numbers(arch: str) -> None:
    """C's quotient and remainder; and places of 64 bits, counted from 2 ** 40 bytes before."""
    random = np.random.default_rng(9)
    x = random.integers(-(1 << 31), 1 << 31, 256).astype(np.int32)
    y = random.integers(1, 1 << 12, 256).astype(np.int32) * random.choice([-1, 1], 256).astype("i4")
    x[:6], y[:6] = [-(1 << 31), -1, 0, 5, 7, -7], [3, 1, 9, -5, -8, 2]
    quotients, rests = np.zeros(256, np.int32), np.zeros(256, np.int32)
    far = np.zeros(1 << 16, np.int32)
    kernel = compiled(kernels.whole_numbers, arch, "*i32 " * 5 + "i64 i64", BLOCK=128)
    launch(kernel, arch, (2,), x, y, quotients, rests, (far, 1 << 40), np.int64(257),
           np.int64(1 << 38))  # fmt: skip
    wide = x.astype(np.int64), y.astype(np.int64)
    wanted = np.sign(wide[0]) * np.sign(wide[1]) * (np.abs(wide[0]) // np.abs(wide[1]))
    assert (quotients == wanted).all()
    assert (rests == wide[0] - wanted * wide[1]).all()
    assert (far[::257][:256] == x).all()
    assert np.count_nonzero(far) <= 256


def test_atomics(arch: str) -> None:
    keys = np.random.default_rng(10).integers(0, 5, 300).astype(np.int32)
    counts, smallest = np.zeros(5, np.int32), np.full(5, 1 << 40, np.int64)
    swapped = np.zeros(1, np.int64)
    kernel = compiled(kernels.atomics, arch, "*i32 *i32 *i64 *i64 i32", BLOCK=128)
    launch(kernel, arch, (3,), keys, counts, smallest, swapped, 300)
    assert (counts == np.bincount(keys)).all()
    assert (smallest == [int(np.argmax(keys == k)) - (1 << 40) for k in range(5)]).all()
    assert swapped[0] == 5


def test_grids_of_three_axes(arch: str) -> None:
    out = np.zeros((4, 3, 5), np.int32)
    launch(compiled(kernels.program_places, arch, "*i32", X=5, Y=3), arch, (5, 3, 4), out)
    z, y, x = np.indices(out.shape)
    assert (out == x + 100 * y + 10000 * z).all()
