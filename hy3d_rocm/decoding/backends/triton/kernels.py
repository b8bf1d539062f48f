"""Device code of the fused backend. Imports triton; nothing else of the package imports this at its
top.

`load_rows` makes rows of a box (hy3d_rocm.conv.triton.kernel says what rows are): it reads a piece
of the activation, normalises, activates, up-samples and pads, so that none of that is a tensor of
its own. `conv_fused` multiplies them and adds bias and residual while it writes, and leaves each
tile's moments, which `combine_moments` adds up.

An output position belongs to a phase: (pt, ph, pw) of a factor (UT, UH, UW) that its coordinates
are divided by. Each phase has weights of its own. Channels that are shuffled to space are phases on
the same rows; a nearest up-sampling before a 3x3 kernel is phases too, since of three columns two
always read the same input: 2x2 sums of the weights on the input as it was (4/9 of the products).

`attend` is attention over heads that torch's kernels are not trusted with on AMD cards
(hy3d_rocm/conv/attention.py): softmax(q k^T) v as the flash attention papers have it (Dao,
https://arxiv.org/abs/2307.08691), keys read a block after the other, and what was summed so far
scaled when a larger score turns up. A head of 256 to some thousand elements fits neither registers
nor LDS whole: so scores are summed over BD elements at a time, and a program makes DA + DB elements
of an output.

Row numbers fit 32 bits (the planner refuses what does not); every element offset is 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hy3d_rocm.conv.triton.kernel import _products, _tile, _weight_rows

_PIECE = (
    "C", "C8", "H", "W", "Hy", "Wy", "h0", "w0", "u0", "up_frames", "first", "frames", "eps",
)  # fmt: skip


@triton.jit
def _padded(n, end, REPLICATE: tl.constexpr):
    """What is read for place n of 0 .. end: what is outside stays so, or is the nearest."""
    if REPLICATE:
        n = tl.minimum(tl.maximum(n, 0), end - 1)
    return n


@triton.jit
def _read(at, across, c, s_c, wanted, VECTOR: tl.constexpr):
    """Some channels of some positions of a line, 0 for what is not wanted."""
    down = c[None, :] if VECTOR == 8 else c.to(tl.int64)[None, :] * s_c
    # What passes once makes room in the last-level cache for the rows, which are read 27 times.
    return tl.load(at + (across + down), mask=wanted, other=0.0, eviction_policy="evict_first")


@triton.jit
def _over_channels(a, b, BM: tl.constexpr):
    """The sum of each position's channels, in two blocks with BM."""
    total = tl.sum(a, axis=1)
    if BM:
        total += tl.sum(b, axis=1)
    return total


@triton.jit
def _norm_factor(squares, C, eps, NORM: tl.constexpr):
    """What a norm multiplies by, of the sum of the squares of a position's C channels."""
    if NORM == "l2":
        factor = 1.0 / tl.maximum(tl.sqrt(squares), eps)
    else:
        factor = 1.0 / tl.sqrt(squares / C + eps)
    return factor


@triton.jit
def _changed(
    v, factor, summand, c, wanted, channels, dtype: tl.constexpr, AFFINE: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """Some channels as the convolution reads them; what is not wanted stays zero."""
    if AFFINE:
        scale = tl.load(factor + c, mask=c < channels, other=0.0)
        shift = tl.load(summand + c, mask=c < channels, other=0.0)
        v = v * scale[None, :] + shift[None, :]
    if SILU:
        v = v / (1.0 + tl.exp(-v))
    return tl.where(wanted, v, 0.0).to(dtype)


@triton.jit(do_not_specialize=[*_PIECE, "s_c", "s_t", "s_h", "s_w"])
def load_rows(
    x, y, factor, summand,
    C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first, frames,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, eps,
    REPLICATE_T: tl.constexpr, REPLICATE_H: tl.constexpr, REPLICATE_W: tl.constexpr,
    UT: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, KEEP_FIRST: tl.constexpr,
    NORM: tl.constexpr, AFFINE: tl.constexpr, SILU: tl.constexpr,
    W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y[(t, h, w), c] = act(norm(x))[c, t + u0, h + h0, w + w0] of the up-sampled, padded video.

    x: a piece, frames first .. first + frames of the video, (C, frames, H, W); it must hold every
    frame that the lines of y ask for, but for zeros. up_frames: frames of the up-sampled video.
    NORM: "", or over the channels of a position "rms", "l2", "layer" (then BC holds all channels);
    after it, with AFFINE, times factor plus summand, float32 (C,).
    VECTOR 8: channels are contiguous and a multiple of 8, as are the other strides, which come in
    units of VECTOR so that the compiler knows. Channels from C to 8 * C8 are zero.
    BC: a power of two, or three times one: then two blocks of 2/3 and 1/3 of it.
    """
    BM: tl.constexpr = BC // 3 if BC % 3 == 0 else 0
    pid = tl.program_id(0)
    count_w = tl.cdiv(Wy, BW)
    count_c = tl.cdiv(C8 * 8, BC)
    block_w = pid % count_w
    q = pid // count_w
    block_c = q % count_c
    line = q // count_c
    u = line // Hy + u0
    h = line % Hy + h0
    w = block_w * BW + tl.arange(0, BW)
    xw = w + w0
    u = _padded(u, up_frames, REPLICATE_T)
    h = _padded(h, H * UH, REPLICATE_H)
    xw = _padded(xw, W * UW, REPLICATE_W)
    inside = (u >= 0) & (u < up_frames) & (h >= 0) & (h < H * UH) & (xw >= 0) & (xw < W * UW)
    # Of what lies outside nothing is read, so that its frame may be any.
    t = u // UT - first
    if KEEP_FIRST:
        t = tl.where(u <= 0, u, 1 + (u - 1) // UT) - first
    channels = C8 * 8 if VECTOR == 8 else C
    c = block_c * BC + tl.arange(0, BC - BM)
    wanted = (inside & (w < Wy))[:, None] & (c < channels)[None, :]
    at = x + (t.to(tl.int64) * (s_t * VECTOR) + (h // UH).to(tl.int64) * (s_h * VECTOR))
    column = xw // UW
    across = column[:, None] if W_CONTIGUOUS else column.to(tl.int64)[:, None] * (s_w * VECTOR)
    value = _read(at, across, c, s_c, wanted, VECTOR)
    further = c
    there = wanted
    more = value
    if BM:
        further = block_c * BC + (BC - BM) + tl.arange(0, BM)
        there = (inside & (w < Wy))[:, None] & (further < channels)[None, :]
        more = _read(at, across, further, s_c, there, VECTOR)
    if (NORM != "" or AFFINE) or SILU:  # Triton 3.3 has no chains of three
        v = value.to(tl.float32)
        m = more.to(tl.float32)
        if NORM == "layer":
            mean = _over_channels(v, m, BM) / C
            v = tl.where(wanted, v - mean[:, None], 0.0)
            m = tl.where(there, m - mean[:, None], 0.0)
        if NORM != "":
            scale = _norm_factor(_over_channels(v * v, m * m, BM), C, eps, NORM)[:, None]
            v = v * scale
            m = m * scale
        value = _changed(v, factor, summand, c, wanted, channels, y.dtype.element_ty, AFFINE, SILU)
        if BM:
            more = _changed(
                m, factor, summand, further, there, channels, y.dtype.element_ty, AFFINE, SILU
            )
    row = line.to(tl.int64) * Wy + w
    tl.store(
        y + row[:, None] * (C8 * 8) + c[None, :], value,
        mask=(w < Wy)[:, None] & (c < C8 * 8)[None, :],
    )  # fmt: skip
    if BM:
        tl.store(
            y + row[:, None] * (C8 * 8) + further[None, :], more,
            mask=(w < Wy)[:, None] & (further < C8 * 8)[None, :],
        )  # fmt: skip


@triton.jit
def _finish(
    acc, bias, out, parts, at, stored, channel, N, s_c, count, here, tiles,
    BIAS: tl.constexpr, ADD: tl.constexpr, MOMENTS: tl.constexpr, CHANNELS_LAST: tl.constexpr,
):  # fmt: skip
    """What conv_fused does with the sums of some of a tile's channels. at: where the positions'
    outputs begin; count: how many are stored; here: the tile's number."""
    wanted = stored[:, None] & (channel < N)[None, :]
    if BIAS:
        acc += tl.load(bias + channel, mask=channel < N, other=0.0).to(tl.float32)[None, :]
    across = channel[None, :] if CHANNELS_LAST else channel.to(tl.int64)[None, :] * s_c
    at2 = at[:, None] + across
    if ADD:
        before = tl.load(out + at2, mask=wanted, other=0.0, eviction_policy="evict_first")
        acc += before.to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + at2, value, mask=wanted, eviction_policy="evict_first")
    if MOMENTS:
        # Of what is stored, in two passes: what rounding takes away would be missed otherwise.
        kept = tl.where(stored[:, None], value.to(tl.float32), 0.0)
        mean = tl.sum(kept, axis=0) / tl.maximum(count, 1.0)
        away = tl.where(stored[:, None], kept - mean[None, :], 0.0)
        at1 = parts + here.to(tl.int64) * N + channel
        tl.store(at1, mean, mask=channel < N)
        tl.store(at1 + tiles.to(tl.int64) * N, tl.sum(away * away, axis=0), mask=channel < N)


# Specialising on the values of these would compile anew for almost every shape.
_SIZES = (
    "P", "NV", "C8", "K8", "Wo", "Ho", "To", "t_shift", "Wi", "Hi", "SW", "SH", "ST",
    "step_t", "step_h", "row_t", "row_h", "row_w", "taps", "tile0", "tiles",
)  # fmt: skip
_STRIDES = ("s_c", "s_t", "s_h", "s_w")


@triton.jit(do_not_specialize=[*_SIZES, *_STRIDES])
def conv_fused(
    x, w, bias, out, parts,
    P, NV, C8, K8, Wo, Ho, To, t_shift, Wi, Hi, SW, SH, ST,
    step_t, step_h, row_t, row_h, row_w, taps,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, tile0, tiles,
    CHUNKS: tl.constexpr, KH: tl.constexpr, EVEN_K: tl.constexpr, FLAT: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, MOMENTS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, VECTOR: tl.constexpr,
    UT: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of BP positions x BN output channels of one phase.

    x: rows, C = 8 * C8 elements each.
    w: (phases, N, taps, K), K contiguous, K = kw * C. bias: (phases * N).
    out: (N, frames, height, width) with any strides; channels contiguous with CHANNELS_LAST (then
    the strides are in units of VECTOR, which tells the compiler how stores are aligned), else w
    contiguous. With ADD what out holds is added. N is VECTOR * NV.
    P: positions of a phase (FLAT: rows up to the last one that has an output). Position (t, h, w)
    of phase (pt, ph, pw) is stored at (t * UT + pt + t_shift, h * UH + ph, w * UW + pw), if that is
    a frame of 0 .. To; its first row is pt * row_t + ph * row_h + pw * row_w further.
    parts: float32 (2, tiles, phases * N) means and squared deviations of a tile's stored values,
    then (tiles) counts; the launch's tiles begin at tile0.
    """
    N = NV * VECTOR  # so that the compiler knows how the rows of the output are aligned
    BM: tl.constexpr = BN // 3 if BN % 3 == 0 else 0
    count_p = tl.cdiv(P, BP)
    pid_p, pid_n = _tile(tl.program_id(0), count_p, tl.cdiv(N, BN), GROUP)
    phase = tl.program_id(1)
    pw = phase % UW
    ph = (phase // UW) % UH
    pt = phase // (UW * UH)
    start = pt * row_t + ph * row_h + pw * row_w
    K = K8 * 8
    p = pid_p * BP + tl.arange(0, BP)
    channel = pid_n * BN + tl.arange(0, BN - BM)
    # A block that reaches beyond the end reads the last position again.
    row = tl.minimum(p, P - 1)
    if not FLAT:
        q = row // Wo
        row = ((q // Ho * ST) * Hi + (q % Ho) * SH) * Wi + (row % Wo) * SW
    row += start
    k = tl.arange(0, BK)
    x_at = x + (row.to(tl.int64)[:, None] * (C8 * 8) + k[None, :])
    w_at = _weight_rows(w, phase * N, channel, N, taps * K, k)
    v_at = w_at
    if BM:
        further = pid_n * BN + (BN - BM) + tl.arange(0, BM)
        v_at = _weight_rows(w, phase * N, further, N, taps * K, k)
    Wl = Wi if FLAT else Wo
    Hl = Hi if FLAT else Ho
    steps = taps * CHUNKS
    if UT > 1:  # of a pair of frames one may be no frame of the result: it is not multiplied
        first = pid_p * BP // Wl // Hl * UT + pt + t_shift  # the block's frames
        last = (tl.minimum(pid_p * BP + BP, P) - 1) // Wl // Hl * UT + pt + t_shift
        steps = tl.where((last < 0) | (first >= To), 0, steps)
    acc, more = _products(
        x_at, w_at, v_at, C8 * 8, K, 0, steps, step_t, step_h, 0, CHUNKS, KH, 1, EVEN_K,
        PRECISION, BP, BN - BM, BM, BK,
    )  # fmt: skip
    ow = p % Wl
    q = p // Wl
    oh = q % Hl
    ot = (q // Hl) * UT + pt + t_shift
    stored = (ow < Wo) & (oh < Ho) & (p < P) & (ot >= 0) & (ot < To)
    ow = ow * UW + pw
    oh = oh * UH + ph
    at = ot.to(tl.int64) * (s_t * VECTOR) + oh.to(tl.int64) * (s_h * VECTOR)
    at += ow.to(tl.int64) * (s_w * VECTOR) if CHANNELS_LAST else ow
    here = tile0 + phase * count_p + pid_p
    count = 0.0
    if MOMENTS:
        count = tl.sum(stored.to(tl.float32), axis=0)
        tl.store(parts + tiles.to(tl.int64) * (2 * N) + here, count, mask=pid_n == 0)
    _finish(
        acc, bias + phase * N, out, parts, at, stored, channel, N, s_c, count, here, tiles,
        BIAS, ADD, MOMENTS, CHANNELS_LAST,
    )  # fmt: skip
    if BM:
        _finish(
            more, bias + phase * N, out, parts, at, stored, further, N, s_c, count, here, tiles,
            BIAS, ADD, MOMENTS, CHANNELS_LAST,
        )  # fmt: skip


@triton.jit(do_not_specialize=["N", "tiles"])
def combine_moments(parts, out, N, tiles, BT: tl.constexpr, BN: tl.constexpr):
    """out: float64 (2, N), mean and sum of squared deviations, of conv_fused's parts."""
    o = tl.program_id(0) * BN + tl.arange(0, BN)
    of = (o < N)[None, :]
    total = tl.zeros((BN,), dtype=tl.float64)
    count = tl.zeros((BT,), dtype=tl.float64)
    counts = parts + tiles.to(tl.int64) * (2 * N)
    for first in range(0, tiles, BT):
        tile = first + tl.arange(0, BT)
        n = tl.load(counts + tile, mask=tile < tiles, other=0.0).to(tl.float64)
        at = parts + tile.to(tl.int64)[:, None] * N + o[None, :]
        mean = tl.load(at, mask=(tile < tiles)[:, None] & of, other=0.0).to(tl.float64)
        total += tl.sum(mean * n[:, None], axis=0)
        count += n
    whole = total / tl.maximum(tl.sum(count, axis=0), 1.0)
    deviations = tl.zeros((BN,), dtype=tl.float64)
    for first in range(0, tiles, BT):
        tile = first + tl.arange(0, BT)
        n = tl.load(counts + tile, mask=tile < tiles, other=0.0).to(tl.float64)
        at = parts + tile.to(tl.int64)[:, None] * N + o[None, :]
        wanted = (tile < tiles)[:, None] & of
        mean = tl.load(at, mask=wanted, other=0.0).to(tl.float64)
        inner = tl.load(at + tiles.to(tl.int64) * N, mask=wanted, other=0.0).to(tl.float64)
        away = mean - whole[None, :]
        deviations += tl.sum(inner + n[:, None] * away * away, axis=0)
    tl.store(out + o, whole, mask=o < N)
    tl.store(out + N + o, deviations, mask=o < N)


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
