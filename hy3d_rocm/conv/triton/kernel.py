"""Device code: convolutions of `protect()`'s Triton tier and of the fused decode. Imports triton;
nothing else of the package imports this at its top.

The convolution is a sum over kernel taps of small matrix products, on *rows*: one row holds all
channels of one input position, rows lie in the order (t, h, w), padding included. With stride 1
an output position and a tap differ in row number by a constant, so the input tile of a tap is a
block of consecutive rows: no division, no mask, no gather in the loop. The price is that outputs
are also computed for rows near the right and lower edge that have none; they are not stored. Where
the stride is not 1 the row of each output position is computed (FLAT false).

Neighbouring taps along w read rows that follow each other, hence memory that is contiguous over
kw * C elements: with dilation 1 they are one tap of that length (KW = 1 here), and the loop
runs over kt * kh taps only. CHUNKS, KH and KW are constants, since dividing by them in every step
would cost a fifth of the time (docs/triton.md): each number of channels is a kernel of its own.

`load_rows` makes rows of a box of any other input, a box at a time: it reads a piece of the video,
normalises, activates, up-samples and pads (the tier only pads), so that none of that is a tensor
of its own. A weight is put in the kernels' order by the same kernel: its taps are the positions.
`conv_rows` multiplies rows and adds bias and residual while it writes, and leaves each tile's
moments, which `combine_moments` adds up.

An output position belongs to a phase: (pt, ph, pw) of a factor (UT, UH, UW) that its coordinates
are divided by. Each phase has weights of its own. Channels that are shuffled to space are phases on
the same rows; a nearest up-sampling before a 3x3 kernel is phases too, since of three columns two
always read the same input: 2x2 sums of the weights on the input as it was (4/9 of the products).

Row numbers fit 32 bits (the planner refuses what does not); every element offset is 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(pid, count_p, count_n, GROUP: tl.constexpr):
    """Numbers of the row block and channel block: GROUP row blocks share their weights in cache."""
    per_group = GROUP * count_n
    group = pid // per_group
    first = group * GROUP
    size = min(count_p - first, GROUP)
    return first + (pid % per_group) % size, (pid % per_group) // size


@triton.jit
def _place(p, W, H):
    """(t, h, w) of position p, which lie in this order."""
    line = p // W
    return line // H, line % H, p % W


@triton.jit
def _weight_rows(w, first, channel, N, length, k):
    """Addresses of elements k of the weights, of `length` each, of some channels of N; output
    `first` is their first. Beyond the end the last one is read again."""
    o = first + tl.minimum(channel, N - 1)
    return w + (o.to(tl.int64)[:, None] * length + k[None, :])


@triton.jit
def _products(
    x_at, w_at, v_at, C, K, first, last, step_t, step_h, step_w,
    CHUNKS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The float32 sums (BP, BN) and (BP, BM) of steps first .. last of a tile: of each tap's K
    elements BK at a time. x_at, w_at, v_at: addresses (BP, BK), (BN, BK) and (BM, BK) of the first
    step; C: of a row.

    Sizes are powers of two: 96 or 192 channels are made as 64 or 128 and then, in BM, 32 or 64. BM
    0: all are made as one, and v_at is not read.
    """
    acc = tl.zeros((BP, BN), dtype=tl.float32)
    more = acc
    if BM:
        more = tl.zeros((BP, BM), dtype=tl.float32)
    for i in range(first, last):
        tap = i // CHUNKS
        k0 = (i - tap * CHUNKS) * BK
        line = tap // KW
        kw = tap - line * KW
        kt = line // KH
        kh = line - kt * KH
        step = kt * step_t + kh * step_h + kw * step_w
        if EVEN_K:
            a = tl.load(x_at + (step.to(tl.int64) * C + k0))
            b = tl.load(w_at + (tap * K + k0))
            if BM:
                c = tl.load(v_at + (tap * K + k0))
        else:
            inside = (k0 + tl.arange(0, BK) < K)[None, :]
            a = tl.load(x_at + (step.to(tl.int64) * C + k0), mask=inside, other=0.0)
            b = tl.load(w_at + (tap * K + k0), mask=inside, other=0.0)
            if BM:
                c = tl.load(v_at + (tap * K + k0), mask=inside, other=0.0)
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if BM:
            more = tl.dot(a, c.T, more, input_precision=PRECISION)
    return acc, more


@triton.jit
def _finish(
    acc, bias, out, parts, at, stored, channel, N, s_c, count, here, tiles,
    BIAS: tl.constexpr, ADD: tl.constexpr, MOMENTS: tl.constexpr, EVICT: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
):  # fmt: skip
    """What conv_rows does with the sums of some of a tile's channels. at: where the positions'
    outputs begin; count: how many are stored; here: the tile's number."""
    wanted = stored[:, None] & (channel < N)[None, :]
    if BIAS:
        acc += tl.load(bias + channel, mask=channel < N, other=0.0).to(tl.float32)[None, :]
    across = channel[None, :] if CHANNELS_LAST else channel.to(tl.int64)[None, :] * s_c
    at2 = at[:, None] + across
    if ADD:
        before = tl.load(out + at2, mask=wanted, other=0.0, eviction_policy=EVICT)
        acc += before.to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + at2, value, mask=wanted, eviction_policy=EVICT)
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
    "step_t", "step_h", "step_w", "row_t", "row_h", "row_w", "taps", "per_split", "tile0", "tiles",
)  # fmt: skip
_STRIDES = ("s_c", "s_t", "s_h", "s_w")


@triton.jit(do_not_specialize=[*_SIZES, *_STRIDES, "s_split"])
def conv_rows(
    x, w, bias, out, parts,
    P, NV, C8, K8, Wo, Ho, To, t_shift, Wi, Hi, SW, SH, ST,
    step_t, step_h, step_w, row_t, row_h, row_w, taps, per_split,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, s_split: tl.int64, tile0, tiles,
    CHUNKS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    EVEN_K: tl.constexpr, FLAT: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, MOMENTS: tl.constexpr, EVICT: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, VECTOR: tl.constexpr, SPLIT: tl.constexpr, GROUPED: tl.constexpr,
    UT: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of BP positions x BN output channels of one phase, or of one group.

    x: rows, C = 8 * C8 elements each, of which a group reads K = 8 * K8.
    w: (phases or groups * N, taps, K), K contiguous; K is kw * C with KW 1. bias: as many.
    out: (N, frames, height, width) with any strides, groups side by side; channels contiguous with
    CHANNELS_LAST (then the strides are in units of VECTOR, which tells the compiler how stores are
    aligned: tl.multiple_of does not outlive AMD's buffer addressing), else w contiguous. With SPLIT
    float32 sums of per_split steps each, `s_split` apart. With ADD what out holds is added. N is
    VECTOR * NV. EVICT: "evict_first" where out is not read soon.
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
    pt, ph, pw = 0, 0, 0
    if UT * UH * UW > 1:
        pt, ph, pw = phase // (UW * UH), phase // UW % UH, phase % UW
    K = K8 * 8
    p = pid_p * BP + tl.arange(0, BP)
    channel = pid_n * BN + tl.arange(0, BN - BM)
    # A block that reaches beyond the end reads the last position again.
    row = tl.minimum(p, P - 1)
    if not FLAT:
        ot, oh, ow = _place(row, Wo, Ho)
        row = (ot * ST * Hi + oh * SH) * Wi + ow * SW
    row += pt * row_t + ph * row_h + pw * row_w
    k = tl.arange(0, BK)
    x_at = x + (row.to(tl.int64)[:, None] * (C8 * 8) + k[None, :])
    if GROUPED:
        x_at += phase * K
    w_at = _weight_rows(w, phase * N, channel, N, taps * K, k)
    v_at = w_at
    if BM:
        further = pid_n * BN + (BN - BM) + tl.arange(0, BM)
        v_at = _weight_rows(w, phase * N, further, N, taps * K, k)
    Wl = Wi if FLAT else Wo
    Hl = Hi if FLAT else Ho
    begin, end = 0, taps * CHUNKS
    if SPLIT:
        begin = tl.program_id(2) * per_split
        end = min(begin + per_split, end)
    if UT > 1:  # of a pair of frames one may be no frame of the result: it is not multiplied
        first = pid_p * BP // Wl // Hl * UT + pt + t_shift  # the block's frames
        last = (tl.minimum(pid_p * BP + BP, P) - 1) // Wl // Hl * UT + pt + t_shift
        end = tl.where((last < 0) | (first >= To), 0, end)
    acc, more = _products(
        x_at, w_at, v_at, C8 * 8, K, begin, end, step_t, step_h, step_w, CHUNKS, KH, KW, EVEN_K,
        PRECISION, BP, BN - BM, BM, BK,
    )  # fmt: skip
    ot, oh, ow = _place(p, Wl, Hl)
    ot = ot * UT + pt + t_shift
    stored = (ow < Wo) & (oh < Ho) & (p < P) & (ot >= 0) & (ot < To)
    ow = ow * UW + pw
    oh = oh * UH + ph
    at = ot.to(tl.int64) * (s_t * VECTOR) + oh.to(tl.int64) * (s_h * VECTOR)
    at += ow.to(tl.int64) * (s_w * VECTOR) if CHANNELS_LAST else ow
    if SPLIT:
        at += tl.program_id(2).to(tl.int64) * (s_split * VECTOR)
    if GROUPED:
        at += phase * N if CHANNELS_LAST else (phase * N).to(tl.int64) * s_c
    here = tile0 + phase * count_p + pid_p
    count = 0.0
    if MOMENTS:
        count = tl.sum(stored.to(tl.float32), axis=0)
        tl.store(parts + tiles.to(tl.int64) * (2 * N) + here, count, mask=pid_n == 0)
    _finish(
        acc, bias + phase * N, out, parts, at, stored, channel, N, s_c, count, here, tiles,
        BIAS, ADD, MOMENTS, EVICT, CHANNELS_LAST,
    )  # fmt: skip
    if BM:
        _finish(
            more, bias + phase * N, out, parts, at, stored, further, N, s_c, count, here, tiles,
            BIAS, ADD, MOMENTS, EVICT, CHANNELS_LAST,
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


@triton.jit
def _load(
    pid, x, y, factor, summand,
    C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first, s_c, s_t, s_h, s_w, eps,
    REPLICATE_T: tl.constexpr, REPLICATE_H: tl.constexpr, REPLICATE_W: tl.constexpr,
    UT: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, KEEP_FIRST: tl.constexpr,
    NORM: tl.constexpr, AFFINE: tl.constexpr, SILU: tl.constexpr,
    W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One program of `load_rows`."""
    BM: tl.constexpr = BC // 3 if BC % 3 == 0 else 0
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


_PIECE = ("C", "C8", "H", "W", "Hy", "Wy", "h0", "w0", "u0", "up_frames", "first")


@triton.jit(do_not_specialize=[*_PIECE, *_STRIDES, "eps"])
def load_rows(
    x, y, factor, summand,
    C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, eps,
    REPLICATE_T: tl.constexpr, REPLICATE_H: tl.constexpr, REPLICATE_W: tl.constexpr,
    UT: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, KEEP_FIRST: tl.constexpr,
    NORM: tl.constexpr, AFFINE: tl.constexpr, SILU: tl.constexpr,
    W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y[(t, h, w), c] = act(norm(x))[c, t + u0, h + h0, w + w0] of the up-sampled, padded video.

    x: a piece, from frame `first` of the video on, (C, frames, H, W); it must hold every frame that
    the lines of y ask for, but for zeros. up_frames: frames of the up-sampled video. Hy, Wy: size
    of y's frames.
    NORM: "", or over the channels of a position "rms", "l2", "layer" (then BC holds all channels);
    after it, with AFFINE, times factor plus summand, float32 (C,).
    VECTOR 8: channels are contiguous and a multiple of 8, as are the other strides, which come in
    units of VECTOR so that the compiler knows. Channels from C to 8 * C8 are zero.
    BC: a power of two, or three times one: then two blocks of 2/3 and 1/3 of it.
    """
    _load(
        tl.program_id(0), x, y, factor, summand, C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first,
        s_c, s_t, s_h, s_w, eps, REPLICATE_T, REPLICATE_H, REPLICATE_W, UT, UH, UW, KEEP_FIRST,
        NORM, AFFINE, SILU, W_CONTIGUOUS, VECTOR, BW, BC,
    )  # fmt: skip


_WEIGHT = ("wC", "wC8", "wH", "wW", "wT", "w_c", "w_t", "w_h", "w_w")


@triton.jit(do_not_specialize=["loads", *_PIECE, *_STRIDES, *_WEIGHT])
def load_rows_and_weight(
    x, y, w, packed, loads,
    C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    wC, wC8, wH, wW, wT, w_c: tl.int64, w_t: tl.int64, w_h: tl.int64, w_w: tl.int64,
    W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr,
    W_CONTIGUOUS_W: tl.constexpr, VECTOR_W: tl.constexpr, BW_W: tl.constexpr, BC_W: tl.constexpr,
):  # fmt: skip
    """Two of `load_rows` that only pad, by one launch: of x by the first `loads` programs, of w,
    (wC, wT, wH, wW), by the others."""
    pid = tl.program_id(0)
    if pid < loads:
        _load(
            pid, x, y, y, y, C, C8, H, W, Hy, Wy, h0, w0, u0, up_frames, first,
            s_c, s_t, s_h, s_w, 0.0, False, False, False, 1, 1, 1, False,
            "", False, False, W_CONTIGUOUS, VECTOR, BW, BC,
        )  # fmt: skip
    else:
        _load(
            pid - loads, w, packed, packed, packed, wC, wC8, wH, wW, wH, wW, 0, 0, 0, wT, 0,
            w_c, w_t, w_h, w_w, 0.0, False, False, False, 1, 1, 1, False,
            "", False, False, W_CONTIGUOUS_W, VECTOR_W, BW_W, BC_W,
        )  # fmt: skip


@triton.jit(do_not_specialize=["N", "tiles"])
def combine_moments(parts, out, N, tiles, BT: tl.constexpr, BN: tl.constexpr):
    """out: float64 (2, N), mean and sum of squared deviations, of conv_rows' parts."""
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


@triton.jit(do_not_specialize=["P", "N", "Wo", "Ho", "Wi", "Hi", "line", *_STRIDES, "count", "by"])
def add_parts(
    parts, bias, out, P, N, Wo, Ho, Wi, Hi, line,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, count, by: tl.int64,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[p, o] = parts[row(p) * line + o] + the next `count` - 1, each `by` further, in order, +
    bias; parts is float32, p is (t, h, w) of frames (Ho, Wo).

    With SPLIT of a sum that was cut: row(p) is p. Else of outputs so few that all columns of the
    kernel are outputs of one narrower convolution: row(p) is p's in frames (Hi, Wi), and a part
    lies a row and N outputs further.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    wanted = (p < P)[:, None] & (o < N)[None, :]
    t, h, w = _place(p, Wo, Ho)
    row = p if SPLIT else (t * Hi + h) * Wi + w
    at = parts + (row.to(tl.int64)[:, None] * line + o[None, :])
    acc = tl.zeros((BP, BN), dtype=tl.float32)
    for _ in range(count):
        acc += tl.load(at, mask=wanted, other=0.0)
        at += by
    if BIAS:
        acc += tl.load(bias + o, mask=o < N, other=0.0).to(tl.float32)[None, :]
    to = t.to(tl.int64) * s_t + h.to(tl.int64) * s_h + w.to(tl.int64) * s_w
    to = to[:, None] + o.to(tl.int64)[None, :] * s_c
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=["PV", "N", "C8", "x_n", "x_c", "s_n", "s_c"])
def conv_points(
    x, w, bias, out, PV, N, C8, x_n: tl.int64, x_c: tl.int64, s_n: tl.int64, s_c: tl.int64,
    EVEN_K: tl.constexpr, BIAS: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """1x1x1 on NCDHW as it lies: out[n] (N, P) = w (N, 8 * C8) @ x[n] (8 * C8, P) + bias.

    PV (positions) and all distances are in units of VECTOR, so that the compiler knows how wide it
    may read and write.
    """
    P = PV * VECTOR
    pid_p, pid_n = _tile(tl.program_id(0), tl.cdiv(P, BP), tl.cdiv(N, BN), GROUP)
    n = tl.program_id(1).to(tl.int64)
    C = C8 * 8
    p = pid_p * BP + tl.arange(0, BP)
    o = pid_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    inside = (p < P)[None, :]
    x_at = x + n * (x_n * VECTOR) + k.to(tl.int64)[:, None] * (x_c * VECTOR) + p[None, :]
    w_at = w + (tl.minimum(o, N - 1).to(tl.int64)[:, None] * C + k[None, :])
    acc = tl.zeros((BN, BP), dtype=tl.float32)
    for k0 in range(0, C, BK):
        if EVEN_K:
            a = tl.load(w_at)
            b = tl.load(x_at, mask=inside, other=0.0)
        else:
            a = tl.load(w_at, mask=(k0 + k < C)[None, :], other=0.0)
            b = tl.load(x_at, mask=inside & (k0 + k < C)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        w_at += BK
        x_at += BK * (x_c * VECTOR)
    if BIAS:
        acc += tl.load(bias + o, mask=o < N, other=0.0).to(tl.float32)[:, None]
    at = out + n * (s_n * VECTOR) + o.to(tl.int64)[:, None] * (s_c * VECTOR) + p[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(o < N)[:, None] & inside)
