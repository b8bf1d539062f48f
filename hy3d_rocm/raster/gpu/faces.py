"""Device code: what of a face is the same for all its pixels. Imports triton.

As csrc/kernels/raster_ref.c, operation for operation, on blocks of faces or on one. All arithmetic
is float64 without fused multiply-adds. A minus is a product with -1, and minimum and maximum are
comparisons that take the second of two equals, so that zeros have the same sign there and here.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def bound_of(e0, e1, e2, r):
    """More than the rounding error of an edge function anywhere on the screen."""
    return ((tl.abs(e0) + tl.abs(e1)) + tl.abs(e2)) * r * 8.881784197001252e-16  # 2^-50


@triton.jit
def prepare(
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT: tl.constexpr
):  # fmt: skip
    """Edges turned so that the inside is >= 0 (nine factors), what depth is summed of (three), its
    range, and whether the face is odd: then the rest means nothing."""
    a0, a1, a2 = cross(x1, y1, w1, x2, y2, w2)
    b0, b1, b2 = cross(x2, y2, w2, x0, y0, w0)
    c0, c1, c2 = cross(x0, y0, w0, x1, y1, w1)
    px, py, pw = c0 * x2, c1 * y2, c2 * w2
    det = (px + py) + pw
    size = tl.abs(det) * r
    inverse = 1.0 / size
    front = (w0 > 0.0) & (w1 > 0.0) & (w2 > 0.0)
    behind = (w0 < 0.0) & (w1 < 0.0) & (w2 < 0.0)
    one_side = front | behind
    turned = det < 0.0
    d0, d1, d2 = z0 * inverse, z1 * inverse, z2 * inverse
    if COMPAT:
        turned = turned != behind
        side = tl.where(behind, -1.0, 1.0)
        d0, d1, d2 = d0 * side, d1 * side, d2 * side
    weight = larger(bound_of(a0, a1, a2, r) * tl.abs(w0), 0.0)
    weight = larger(bound_of(b0, b1, b2, r) * tl.abs(w1), weight)
    weight = larger(bound_of(c0, c1, c2, r) * tl.abs(w2), weight)
    rounding = ((tl.abs(px) + tl.abs(py)) + tl.abs(pw)) * 8.881784197001252e-16
    odd = (tl.abs(det) <= rounding) | (weight > size * 2.3283064365386963e-10)
    if COMPAT:
        odd = odd | (one_side == 0)
    low, high = depth_range(z0, w0, z1, w1, z2, w2)
    s = tl.where(turned, -1.0, 1.0)
    return (
        a0 * s, a1 * s, a2 * s, b0 * s, b1 * s, b2 * s, c0 * s, c1 * s, c2 * s,
        d0, d1, d2, low, high, odd,
    )  # fmt: skip


@triton.jit
def depth_range(z0, w0, z1, w1, z2, w2):
    """Where Z/W of a face lies: between its corners', or anywhere if it is on both sides of W = 0."""
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
def edges_at(p, q, r, a0, a1, a2, b0, b1, b2, c0, c1, c2):
    """The three edge functions at pixels."""
    return a0 * p + (a1 * q + a2 * r), b0 * p + (b1 * q + b2 * r), c0 * p + (c1 * q + c2 * r)


@triton.jit
def depth_of(e0, e1, e2, d0, d1, d2, low, high):
    """Z/W at pixels."""
    return smaller(larger((e0 * d0 + e1 * d1) + e2 * d2, low), high)


@triton.jit
def passes(z, near, HAS_PRIOR: tl.constexpr, COMPAT: tl.constexpr):
    """Whether neither near and far plane nor the prior drop what has the depth z."""
    kept = (z <= float("inf")) if COMPAT else (z >= -1.0) & (z <= 1.0)
    if HAS_PRIOR:
        kept = kept & ((z * 0.49999 + 0.5 < (near * 0.49999 + 0.5) + 1e-6) == 0)
    return kept


@triton.jit
def key_of(z, face, COMPAT: tl.constexpr):
    """What is compared: the depth's step, then the face's number."""
    steps = z * (0.49999 * 262144.0) + 131072.0 if COMPAT else z * 536870912.0 + 536870912.0
    steps = smaller(larger(steps, -1073741824.0), 1073741824.0)
    return tl.floor(steps).to(tl.int32).to(tl.int64) * 4294967296 + face.to(tl.int64)
