"""Device code: determinants of which the sign is exact. Imports triton.

As csrc/raster/exact.c, operation for operation: a determinant of float32 corners is a sum of six
products of three factors; two of them are exact in float64, with the third they are two float64
(Dekker's product), and the twelve are summed to an expansion (Shewchuk, "Adaptive precision
floating-point arithmetic and fast robust geometric predicates", 1997, theorem 10), whose parts do
not overlap. Nothing overflows or underflows. Each operation has to be rounded by itself: kernels
that use this are compiled without fused multiply-adds. A minus is a product with -1, since
Triton's is a difference from 0, which loses the sign of 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hy3d_rocm.raster.gpu.faces import cross, depth_range, larger, smaller


@triton.jit
def _sum(a, b):
    """The rounded sum, and what was rounded away."""
    whole = a + b
    b_part = whole - a
    a_part = whole - b_part
    return whole, (a - a_part) + (b - b_part)


@triton.jit
def _halves(a):
    c = 134217729.0 * a  # 2^27 + 1
    high = c - (c - a)
    return high, a - high


@triton.jit
def _product(a, b):
    """The rounded product, and what was rounded away."""
    whole = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return whole, a_low * b_low - (((whole - a_high * b_high) - a_low * b_high) - a_high * b_low)


@triton.jit
def exact_det(ax, ay, aw, bx, by, bw, p, q, r, rounds):
    """det(a, b, (p, q, r)) over (X, Y, W), float64 of one shape: the sign is exact and so is 0; the
    value is good to some 2^-50 of itself.

    A round of the loop adds a term to the expansion e. The parts that were made are the last ones,
    so that what falls out at the low end is zero. rounds: 12, which the compiler must not know: it
    would unroll the loop and interleave what follows, which takes all registers and more.
    """
    t1, t0 = _product(ay * bw, p)
    t3, t2 = _product((aw * by) * -1.0, p)
    t5, t4 = _product(aw * bx, q)
    t7, t6 = _product((ax * bw) * -1.0, q)
    t9, t8 = _product(ax * by, r)
    t11, t10 = _product((ay * bx) * -1.0, r)
    zero = tl.zeros_like(t0)
    e0, e1, e2, e3, e4, e5 = zero, zero, zero, zero, zero, zero
    e6, e7, e8, e9, e10, e11 = zero, zero, zero, zero, zero, zero
    k = 0
    while k < rounds:
        b = t0
        t0, t1, t2, t3, t4, t5, t6 = t1, t2, t3, t4, t5, t6, t7
        t7, t8, t9, t10, t11 = t8, t9, t10, t11, zero
        b, _ = _sum(b, e0)
        b, e0 = _sum(b, e1)
        b, e1 = _sum(b, e2)
        b, e2 = _sum(b, e3)
        b, e3 = _sum(b, e4)
        b, e4 = _sum(b, e5)
        b, e5 = _sum(b, e6)
        b, e6 = _sum(b, e7)
        b, e7 = _sum(b, e8)
        b, e8 = _sum(b, e9)
        b, e9 = _sum(b, e10)
        b, e10 = _sum(b, e11)
        e11 = b
        k += 1
    value = (((((zero + e0) + e1) + e2) + e3) + e4) + e5
    return (((((value + e6) + e7) + e8) + e9) + e10) + e11


@triton.jit
def _turned_sign(value):
    return (value > 0.0).to(tl.float64) - (value < 0.0).to(tl.float64)


@triton.jit
def _inside(exact, side, turn, ax, ay, aw, bx, by, bw, COMPAT: tl.constexpr):
    """Whether a pixel is inside of an edge, or on it and the edge is the face's own: under topleft
    a left one (it grows with the column) or a top one (the same along a row, it grows with the
    row). Differences of exact products have their exact sign."""
    there = exact * side
    if COMPAT:
        return there >= 0.0
    across, down = (ay * bw - aw * by) * turn, (aw * bx - ax * bw) * turn
    return (there > 0.0) | ((there == 0.0) & ((across > 0.0) | ((across == 0.0) & (down > 0.0))))


@triton.jit
def _weight(exact, ax, ay, aw, bx, by, bw, p, q, r):
    """An edge function by float64 where that is good to 2^-24 of itself, else the exact one."""
    f0, f1, f2 = cross(ax, ay, aw, bx, by, bw)
    bound = (((tl.abs(f0) + tl.abs(f1)) + tl.abs(f2)) * r) * 8.881784197001252e-16  # 2^-50
    value = f0 * p + (f1 * q + f2 * r)
    return tl.where(tl.abs(value) < bound * 16777216.0, exact, value)  # 2^24


@triton.jit
def exact_pixel(
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, p, q, r, COMPAT: tl.constexpr
):  # fmt: skip
    """As csrc/raster/odd.c: whether faces cover pixels; the barycentrics there; Z/W."""
    rounds = tl.where(r < 0.0, 0, 12)
    det = exact_det(x0, y0, w0, x1, y1, w1, x2, y2, w2, rounds)
    turn = _turned_sign(det)
    x_0 = exact_det(x1, y1, w1, x2, y2, w2, p, q, r, rounds)
    x_1 = exact_det(x2, y2, w2, x0, y0, w0, p, q, r, rounds)
    x_2 = exact_det(x0, y0, w0, x1, y1, w1, p, q, r, rounds)
    s0, s1, s2 = turn, turn, turn
    if COMPAT:
        s0, s1, s2 = turn * _turned_sign(w0), turn * _turned_sign(w1), turn * _turned_sign(w2)
    covered = _inside(x_0, s0, turn, x1, y1, w1, x2, y2, w2, COMPAT)
    covered = covered & _inside(x_1, s1, turn, x2, y2, w2, x0, y0, w0, COMPAT)
    covered = covered & _inside(x_2, s2, turn, x0, y0, w0, x1, y1, w1, COMPAT)
    e0 = _weight(x_0, x1, y1, w1, x2, y2, w2, p, q, r) * turn
    e1 = _weight(x_1, x2, y2, w2, x0, y0, w0, p, q, r) * turn
    e2 = _weight(x_2, x0, y0, w0, x1, y1, w1, p, q, r) * turn
    # Corners on both sides of the eye may cancel.
    total = (e0 + e1) + e2
    terms = (tl.abs(e0) + tl.abs(e1)) + tl.abs(e2)
    cancels = tl.abs(total) <= terms * 0.000244140625  # 2^-12
    e0, e1 = tl.where(cancels, x_0 * turn, e0), tl.where(cancels, x_1 * turn, e1)
    e2 = tl.where(cancels, x_2 * turn, e2)
    total = (e0 + e1) + e2
    has_end = (cancels == 0) | (tl.abs(total) > terms * 2.3283064365386963e-10)  # 2^-32
    inverse = 1.0 / (tl.abs(det) * r)
    z = (e0 * (z0 * inverse) + e1 * (z1 * inverse)) + e2 * (z2 * inverse)
    low, high = depth_range(z0, w0, z1, w1, z2, w2)
    z = smaller(larger(z, low), high)
    covered = covered & (det != 0.0) & has_end & (total != 0.0)
    return covered, e0 / total, e1 / total, e2 / total, z
