"""Device code: what of a face is the same for all its pixels. Imports triton.

As csrc/kernels/raster_ref.c, operation for operation, on blocks of faces or on one. All arithmetic
is float64 without fused multiply-adds. A minus is a product with -1, and minimum and maximum are
comparisons that take the second of two equals, so that zeros have the same sign there and here.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Z/W counts scale * Z/W + offset steps of depth, rounded down. (A variable that one of these were
# assigned to would be float32.)
SCALE_COMPAT, OFFSET_COMPAT = tl.constexpr(0.49999 * 2.0**18), tl.constexpr(2.0**17)
SCALE_TOPLEFT, OFFSET_TOPLEFT = tl.constexpr(2.0**29), tl.constexpr(2.0**29)
UNSCALE_COMPAT, UNSCALE_TOPLEFT = tl.constexpr(1 / (0.49999 * 2.0**18)), tl.constexpr(2.0**-29)
# What is nearer than prior * scale + hidden is dropped.
HIDDEN_COMPAT = tl.constexpr(2.0**17 + 1e-6 / 0.49999 * (0.49999 * 2.0**18))
HIDDEN_TOPLEFT = tl.constexpr(2.0**29 + 1e-6 / 0.49999 * 2.0**29)


@triton.jit
def smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def cross(ax, ay, aw, bx, by, bw):
    """The factors of P, Q and R in det(a, b, (P, Q, R)): products of float32 are exact."""
    return ay * bw - aw * by, aw * bx - ax * bw, ax * by - ay * bx


@triton.jit
def load_corner(clip, corner, mask):
    """X, Y, Z, W of vertices; 0 where masked."""
    at = clip + corner.to(tl.int64) * 4
    x = tl.load(at, mask=mask, other=0.0).to(tl.float64)
    y = tl.load(at + 1, mask=mask, other=0.0).to(tl.float64)
    z = tl.load(at + 2, mask=mask, other=0.0).to(tl.float64)
    w = tl.load(at + 3, mask=mask, other=0.0).to(tl.float64)
    return x, y, z, w


@triton.jit
def screen(width, height, COMPAT: tl.constexpr):
    """sx and sy, by which a pixel is (P, Q, R) = ((2 column + 1 - width) sy, ..., sx sy)."""
    less = 1 if COMPAT else 0
    return (width - less).to(tl.float64), (height - less).to(tl.float64)


@triton.jit
def pixel(column, row, width, height, sx, sy):
    """P and Q of pixels."""
    p = (2 * column + 1 - width).to(tl.float64) * sy
    return p, (2 * row + 1 - height).to(tl.float64) * sx


@triton.jit
def _is_plain(z, w, COMPAT: tl.constexpr):
    """Whether a corner's depth and W are within what a face that is not careful may have."""
    size = tl.abs(w)
    plain = tl.abs(z) * SCALE_COMPAT <= size * 536870912.0 if COMPAT else tl.abs(z) <= size
    return plain & (size >= 8.673617379884035e-19) & (size <= 1.152921504606847e18)  # 2^-60, 2^60


@triton.jit
def _edge(e0, e1, e2, turned, r):
    """An edge function: factors of P and Q, the constant; and the bound of its rounding error."""
    f0, f1, f2 = e0 * turned, e1 * turned, (e2 * turned) * r
    return f0, f1, f2, ((tl.abs(f0) + tl.abs(f1)) * r + tl.abs(f2)) * 8.881784197001252e-16  # 2^-50


@triton.jit
def side_of(w):
    """-1 for a corner behind the eye, through which compat projects it; else 1."""
    return tl.where(w < 0.0, -1.0, 1.0)


@triton.jit
def prepare(
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT: tl.constexpr
):  # fmt: skip
    """Of faces: edge functions turned so that the inside is >= 0 (nine factors; times side_of they
    are the corners' weights), no rounding error of which is above `bound`; what depth in steps is
    summed of (three); whether they are odd (then the rest means nothing) or careful."""
    a0, a1, a2 = cross(x1, y1, w1, x2, y2, w2)
    b0, b1, b2 = cross(x2, y2, w2, x0, y0, w0)
    c0, c1, c2 = cross(x0, y0, w0, x1, y1, w1)
    px, py, pw = c0 * x2, c1 * y2, c2 * w2
    det = (px + py) + pw
    share = 1.0 / (tl.abs(det) * r)
    behind = (w0 < 0.0) & (w1 < 0.0) & (w2 < 0.0)
    one_side = behind | ((w0 > 0.0) & (w1 > 0.0) & (w2 > 0.0))
    turned = share * tl.where(det < 0.0, -1.0, 1.0)
    t0, t1, t2 = turned, turned, turned
    if COMPAT:
        s0, s1, s2 = side_of(w0), side_of(w1), side_of(w2)
        t0, t1, t2 = turned * s0, turned * s1, turned * s2
        d0, d1, d2 = z0 * SCALE_COMPAT * s0, z1 * SCALE_COMPAT * s1, z2 * SCALE_COMPAT * s2
    else:
        d0, d1, d2 = z0 * SCALE_TOPLEFT, z1 * SCALE_TOPLEFT, z2 * SCALE_TOPLEFT
    a0, a1, a2, a = _edge(a0, a1, a2, t0, r)
    b0, b1, b2, b = _edge(b0, b1, b2, t1, r)
    c0, c1, c2, c = _edge(c0, c1, c2, t2, r)
    bound = larger(c, larger(b, larger(a, 0.0)))
    weight = larger(tl.abs(w2), larger(tl.abs(w1), larger(tl.abs(w0), 0.0)))
    rounding = ((tl.abs(px) + tl.abs(py)) + tl.abs(pw)) * 8.881784197001252e-16
    known = (tl.abs(det) > rounding) & (bound * weight <= 2.3283064365386963e-10)  # 2^-32
    plain = one_side & _is_plain(z0, w0, COMPAT) & _is_plain(z1, w1, COMPAT)
    plain = plain & _is_plain(z2, w2, COMPAT)
    return (
        a0, a1, a2, b0, b1, b2, c0, c1, c2, bound, d0, d1, d2, known == 0, plain == 0
    )  # fmt: skip


@triton.jit
def depth_range(z0, w0, z1, w1, z2, w2):
    """Where Z/W of faces lies: between the corners', or anywhere on both sides of the eye."""
    q0, q1, q2 = z0 / w0, z1 / w1, z2 / w2
    one_side = ((w0 > 0.0) & (w1 > 0.0) & (w2 > 0.0)) | ((w0 < 0.0) & (w1 < 0.0) & (w2 < 0.0))
    low = tl.where(one_side, smaller(smaller(q0, q1), q2), float("-inf"))
    return low, tl.where(one_side, larger(larger(q0, q1), q2), float("inf"))


@triton.jit
def _columns(u0, w0, u1, w1, u2, w2, s, size, COMPAT: tl.constexpr):
    """First and last of `size` columns (or rows) whose centres a face can meet: at least those, and
    all of them where the face is on both sides of the eye. u: X or Y."""
    q0, q1, q2 = u0 / w0, u1 / w1, u2 / w2
    edge = size.to(tl.float64)
    # 2^-10 of a pixel is far beyond the rounding of what lies on the screen.
    low = (tl.minimum(tl.minimum(q0, q1), q2) * s + (edge - 1.0)) * 0.5 - 0.0009765625
    high = (tl.maximum(tl.maximum(q0, q1), q2) * s + (edge - 1.0)) * 0.5 + 0.0009765625
    if not COMPAT:
        one_side = ((w0 > 0.0) & (w1 > 0.0) & (w2 > 0.0)) | ((w0 < 0.0) & (w1 < 0.0) & (w2 < 0.0))
        low, high = tl.where(one_side, low, 0.0), tl.where(one_side, high, edge)
    low = tl.minimum(tl.maximum(tl.ceil(low), 0.0), edge)
    high = tl.minimum(tl.maximum(tl.floor(high), -1.0), edge - 1.0)
    return low.to(tl.int32), high.to(tl.int32)


@triton.jit
def box(x0, y0, w0, x1, y1, w1, x2, y2, w2, sx, sy, width, height, COMPAT: tl.constexpr):
    """First column, columns, first row, rows of a box around what a face can cover: 0 rows if that
    is nothing."""
    left, right = _columns(x0, w0, x1, w1, x2, w2, sx, width, COMPAT)
    top, bottom = _columns(y0, w0, y1, w1, y2, w2, sy, height, COMPAT)
    if COMPAT:
        visible = (w0 != 0.0) & (w1 != 0.0) & (w2 != 0.0)
    else:
        visible = (w0 > 0.0) | (w1 > 0.0) | (w2 > 0.0)
    visible = visible & (left <= right) & (top <= bottom)
    return left, right - left + 1, top, tl.where(visible, bottom - top + 1, 0)


@triton.jit
def edges_at(p, q, a0, a1, a2, b0, b1, b2, c0, c1, c2):
    """Edge functions at pixels: all are >= 0 within the face."""
    return a0 * p + (a1 * q + a2), b0 * p + (b1 * q + b2), c0 * p + (c1 * q + c2)


@triton.jit
def sum_of(e0, e1, e2, w0, w1, w2, COMPAT: tl.constexpr):
    """The sum of the corners' weights; those on both sides of the eye may cancel in it."""
    if COMPAT:
        e0, e1, e2 = e0 * side_of(w0), e1 * side_of(w1), e2 * side_of(w2)
    return (e0 + e1) + e2


@triton.jit
def steps_of(e0, e1, e2, d0, d1, d2, COMPAT: tl.constexpr):
    """Depth in steps at pixels."""
    return ((e0 * d0 + e1 * d1) + e2 * d2) + (OFFSET_COMPAT if COMPAT else OFFSET_TOPLEFT)


@triton.jit
def steps_of_depth(z, COMPAT: tl.constexpr):
    """Z/W in steps, and the other way round."""
    if COMPAT:
        return z * SCALE_COMPAT + OFFSET_COMPAT
    return z * SCALE_TOPLEFT + OFFSET_TOPLEFT


@triton.jit
def depth_of_steps(steps, COMPAT: tl.constexpr):
    if COMPAT:
        return (steps - OFFSET_COMPAT) * UNSCALE_COMPAT
    return (steps - OFFSET_TOPLEFT) * UNSCALE_TOPLEFT


@triton.jit
def is_cut(steps, z0, w0, z1, w1, z2, w2, COMPAT: tl.constexpr):
    """Whether near or far plane leave that out. No plane that all corners are on the right side of,
    or in: rounding must not cut a face that lies in a plane."""
    if COMPAT:
        return steps != steps
    is_behind = (z0 >= w0 * -1.0) & (z1 >= w1 * -1.0) & (z2 >= w2 * -1.0)
    is_before = (w0 >= z0) & (w1 >= z1) & (w2 >= z2)
    nearest = tl.where(is_behind, float("-inf"), 0.0)
    farthest = tl.where(is_before, float("inf"), 2.0 * OFFSET_TOPLEFT)
    return ((steps >= nearest) & (steps <= farthest)) == 0


@triton.jit
def is_hidden(steps, prior, COMPAT: tl.constexpr):
    """Whether the prior, Z/W as float64, drops what is so near."""
    if COMPAT:
        return steps < prior * SCALE_COMPAT + HIDDEN_COMPAT
    return steps < prior * SCALE_TOPLEFT + HIDDEN_TOPLEFT


@triton.jit
def key_of(steps, careful, face):
    """What is compared: the depth's step, then the face's number. careful: true where steps may be
    anything. Never negative: where lanes of a wave meet, Triton 3.6 makes one of their signed
    minima on CDNA, and compares them as unsigned."""
    whole = tl.floor(steps)
    held = smaller(larger(whole, -1073741824.0), 1073741824.0)
    whole = tl.where(careful, held, whole)
    return (whole.to(tl.int32).to(tl.int64) + 2147483648) * 2147483648 + face.to(tl.int64)
