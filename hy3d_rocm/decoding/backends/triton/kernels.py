"""Device code of attention, of GroupNorms' factors, and of what packs weights. Imports triton;
nothing else of the package imports this at its top.

`attend` is attention over heads that torch's kernels are not trusted with on AMD cards
(hy3d_rocm/conv/attention.py): softmax(q k^T) v as the flash attention papers have it (Dao,
https://arxiv.org/abs/2307.08691), keys read a block after the other, and what was summed so far
scaled when a larger score turns up. A head of 256 to some thousand elements fits neither registers
nor LDS whole: so scores are summed over BD elements at a time, and a program makes DA + DB elements
of an output.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns(at, d, end, EVEN: tl.constexpr):
    """Elements d of some tokens; 0 from `end` on."""
    if EVEN:
        block = tl.load(at[:, None] + d[None, :])
    else:
        block = tl.load(at[:, None] + d[None, :], mask=(d < end)[None, :], other=0.0)
    return block


@triton.jit
def _store_sums(acc, total, out, at, d, end, wanted, s_d, VECTOR: tl.constexpr):
    """Sums of elements d over the sum of their weights, to where a token's output begins."""
    across = d[None, :] if VECTOR == 8 else d.to(tl.int64)[None, :] * s_d
    value = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(at[:, None] + across, value, mask=wanted[:, None] & (d < end)[None, :])


_ATTENTION = (
    "D8", "tokens", "first", "begin", "stop", "stop_by", "scale", "q_head", "k_head", "o_head",
    "o_token", "o_d",
)  # fmt: skip


@triton.jit(do_not_specialize=_ATTENTION)
def attend(
    q, k, v, out, D8, tokens, first, begin, stop, stop_by, scale,
    q_head: tl.int64, k_head: tl.int64, o_head: tl.int64, o_token: tl.int64, o_d: tl.int64,
    EVEN: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, DA: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """BM queries of a frame and head; DA + DB elements of their output.

    q: (heads, frames * tokens, D) and k, v: (heads, keys, D), D = 8 * D8, tokens dense, a head's
    distance in units of 8. out: any strides; with VECTOR 8 elements follow each other, and the
    other strides are in units of 8, so that the compiler knows how stores are aligned. Frame f of
    the queries sees keys (first + f) * begin to stop + (first + f) * stop_by. scale: of scores, for
    powers of two.
    """
    blocks = tl.cdiv(tokens, BM)
    frame = tl.program_id(0) // blocks
    head = tl.program_id(1).to(tl.int64)
    D = D8 * 8
    here = tl.program_id(0) % blocks * BM + tl.arange(0, BM)
    m = (frame * tokens + tl.minimum(here, tokens - 1)).to(tl.int64)
    n0 = (first + frame) * begin
    end = stop + (first + frame) * stop_by
    q_at = q + (head * (q_head * 8) + m * D)
    d = tl.arange(0, BD)
    da = tl.program_id(2) * (DA + DB) + tl.arange(0, DA)
    acc = tl.zeros((BM, DA), dtype=tl.float32)
    db = da
    more = acc
    if DB:
        db = tl.program_id(2) * (DA + DB) + DA + tl.arange(0, DB)
        more = tl.zeros((BM, DB), dtype=tl.float32)
    most = tl.full((BM,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    for at in range(n0, end, BN):
        n = at + tl.arange(0, BN)
        # A block that reaches beyond the end reads the last key again.
        key = head * (k_head * 8) + tl.minimum(n, end - 1).to(tl.int64) * D
        scores = tl.zeros((BM, BN), dtype=tl.float32)
        for c in range(0, D, BD):
            a = _columns(q_at, c + d, D, EVEN)
            b = _columns(k + key, c + d, D, EVEN)
            scores = tl.dot(a, b.T, scores, input_precision=PRECISION)
        scores = tl.where((n < end)[None, :], scores * scale, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, axis=1))
        weight = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(most - larger)
        total = total * shrink + tl.sum(weight, axis=1)
        weight = weight.to(v.dtype.element_ty)
        a = _columns(v + key, da, D, EVEN)
        acc = tl.dot(weight, a, acc * shrink[:, None], input_precision=PRECISION)
        if DB:
            b = _columns(v + key, db, D, EVEN)
            more = tl.dot(weight, b, more * shrink[:, None], input_precision=PRECISION)
        most = larger
    at = out + (head * (o_head * VECTOR) + m * (o_token * VECTOR))
    _store_sums(acc, total, out, at, da, D, here < tokens, o_d, VECTOR)
    if DB:
        _store_sums(more, total, out, at, db, D, here < tokens, o_d, VECTOR)


@triton.jit
def _count_of(n, n0, n1, c0, c1, c2):
    """Positions of part n."""
    return tl.where(n < n0, c0, tl.where(n < n0 + n1, c1, c2)).to(tl.float64)


_SHARES = ("C", "size", "N", "n0", "n1", "c0", "c1", "c2", "eps")


@triton.jit(do_not_specialize=_SHARES)
def group_factors(
    moments, weight, bias, out, C, size, N, n0, n1, c0, c1, c2, eps,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out: (2, C), float32, factor and summand that stand for a GroupNorm, by a program for each
    group of `size` channels.

    moments: float64 (N, 2, C), mean and sum of squared deviations of each of N parts: of n0 with c0
    positions, n1 with c1, the others with c2 (combined as Chan has it).
    """
    i = tl.arange(0, BN)
    c = tl.program_id(0) * size + i
    of = i < size
    total = tl.zeros((BN,), dtype=tl.float64)
    mean = tl.zeros((BN,), dtype=tl.float64)
    for n in range(N):
        count = _count_of(n, n0, n1, c0, c1, c2)
        mean += tl.load(moments + n * 2 * C + c, mask=of, other=0.0) * count
        total += count
    mean = mean / total
    variance = tl.zeros((BN,), dtype=tl.float64)
    for n in range(N):
        at = moments + n * 2 * C + c
        away = tl.load(at, mask=of, other=0.0) - mean
        inside = tl.load(at + C, mask=of, other=0.0)
        variance += inside + away * away * _count_of(n, n0, n1, c0, c1, c2)
    channels = size.to(tl.float64)
    centre = tl.sum(mean, axis=0) / channels
    away = tl.where(of, mean - centre, 0.0)
    whole = tl.sum(variance / total + away * away, axis=0) / channels
    factor = tl.zeros((BN,), dtype=tl.float64) + 1.0 / tl.sqrt(whole + eps)
    if WEIGHT:
        factor = factor * tl.load(weight + c, mask=of, other=0.0).to(tl.float64)
    summand = -centre * factor
    if BIAS:
        summand += tl.load(bias + c, mask=of, other=0.0).to(tl.float64)
    tl.store(out + c, factor.to(tl.float32), mask=of)
    tl.store(out + C + c, summand.to(tl.float32), mask=of)


@triton.jit
def _first_of(tap, by, folds):
    """The first of three taps that stands in `tap` of two, and 3 behind both. by: 1 where the first
    of the two has two. folds 0: the tap itself."""
    return tl.where(folds == 0, tap, tl.where(tap == 1, 1 + by, tl.where(tap == 0, 0, 3)))


_WEIGHT = (
    "outputs", "C", "R", "PH", "PW", "KT", "KH", "KW", "fold_t", "fold", "p_t", "p_h", "p_w", "s_o",
    "s_c", "s_t", "s_h", "s_w",
)  # fmt: skip


@triton.jit(do_not_specialize=_WEIGHT)
def pack_weight(
    w, out, outputs, C, R, PH, PW, KT, KH, KW, fold_t, fold,
    p_t: tl.int64, p_h: tl.int64, p_w: tl.int64, s_o: tl.int64, s_c: tl.int64,
    s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    DOUBLE: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out: (phases, outputs, KT, KH, KW, R), of a weight with any strides by phase, output, channel
    and tap; channels from C to R are zero.

    Where fold_t is 1, in frames, and fold, in rows and columns, phases are two outputs of an
    up-sampled video, and KT, KH, KW are 2: of three taps over a pair of equal inputs those that
    meet the same one are summed (in float32, with DOUBLE in float64). Of two rows or columns the
    second begins in the middle of a pair, of two frames the first.
    """
    blocks = tl.cdiv(outputs, BN)
    phase = tl.program_id(0) // blocks
    pw = phase % PW
    ph = phase // PW % PH
    pt = phase // PW // PH
    o = tl.program_id(0) % blocks * BN + tl.arange(0, BN)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    wanted = (o < outputs) & (c < C)
    stored = (o < outputs) & (c < R)
    at = w + (pt * p_t + ph * p_h + pw * p_w) + (o * s_o + c * s_c)
    to = out + (phase * outputs + o).to(tl.int64) * (KT * KH * KW * R) + c
    for t in range(KT):
        for h in range(KH):
            for x in range(KW):
                total = tl.zeros((BN, BC), dtype=tl.float64 if DOUBLE else tl.float32)
                for a in range(_first_of(t, 1 - pt, fold_t), _first_of(t + 1, 1 - pt, fold_t)):
                    for b in range(_first_of(h, ph, fold), _first_of(h + 1, ph, fold)):
                        for d in range(_first_of(x, pw, fold), _first_of(x + 1, pw, fold)):
                            tap = at + (a * s_t + b * s_h + d * s_w)
                            total += tl.load(tap, mask=wanted, other=0.0)
                tl.store(to, total.to(out.dtype.element_ty), mask=stored)
                to += R
