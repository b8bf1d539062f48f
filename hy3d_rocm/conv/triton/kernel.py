"""Device code of the Triton tier. Imports triton; nothing else of the package does at its top.

The convolution is a sum over kernel taps of small matrix products, on *rows*: one row holds all
channels of one input position, rows lie in the order (n, t, h, w), padding included. With stride 1
an output position and a tap differ in row number by a constant, so the input tile of a tap is a
block of consecutive rows: no division, no mask, no gather in the loop. The price is that outputs
are also computed for rows near the right and lower edge that have none; they are not stored. Where
the stride is not 1 the row of each output position is computed (FLAT false).

Neighbouring taps along w read rows that follow each other, hence memory that is contiguous over
kw * C elements: with dilation 1 they are one tap of that length (KW = 1 here), and the loop
runs over kt * kh taps only. CHUNKS, KH and KW are constants, since dividing by them in every step
would cost a fifth of the time (docs/triton.md): each number of channels is a kernel of its own.

Input that is not such rows yet (NCDHW, or padded) is copied into them by `to_rows`, a slice at a
time, small enough to stay in the last-level cache; the weight, in their order, by `pack_weight`.

Row numbers fit 32 bits (the launcher refuses what does not); every element offset is 64-bit.
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
def _place(p, W, H, T):
    """(n, t, h, w) of position p, which lie in this order."""
    line = p // W
    frame = line // H
    return frame // T, frame % T, line % H, p % W


@triton.jit
def _input_row(p, FLAT: tl.constexpr, Wo, Ho, To, Wi, Hi, Ti, SW, SH, ST):
    """The first input row of output position p."""
    if FLAT:
        return p
    n, t, h, w = _place(p, Wo, Ho, To)
    return ((n * Ti + t * ST) * Hi + h * SH) * Wi + w * SW


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
def _store_outputs(
    acc, bias, out, at, stored, channel, first, N, s_c, BIAS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
):  # fmt: skip
    """The sums of some channels of a group of N, which begins at output `first`, with their bias,
    to the positions that begin at `at`."""
    o = first + channel
    wanted = channel < N
    if BIAS:
        acc += tl.load(bias + o, mask=wanted, other=0.0).to(tl.float32)[None, :]
    across = o[None, :] if CHANNELS_LAST else o.to(tl.int64)[None, :] * s_c
    at2 = at[:, None] + across
    tl.store(out + at2, acc.to(out.dtype.element_ty), mask=stored[:, None] & wanted[None, :])


# Specialising on the values of these would compile anew for almost every shape.
_SIZES = (
    "P", "NV", "C8", "K8", "Wo", "Ho", "To", "Wi", "Hi", "Ti", "SW", "SH", "ST",
    "step_t", "step_h", "step_w", "per_split", "taps",
)  # fmt: skip
_STRIDES = ("s_n", "s_c", "s_t", "s_h", "s_w", "s_split")
_BOX = ("C", "C8", "T", "H", "W", "Hy", "Wy", "t0", "h0", "w0")
_WEIGHT = ("wC", "wC8", "taps", "kh", "kw", "to_o", "to_line", "to_w")
_WEIGHT_STRIDES = ("w_o", "w_c", "w_t", "w_h", "w_w")


@triton.jit(do_not_specialize=[*_SIZES, *_STRIDES])
def conv_rows(
    x, w, bias, out,
    P, NV, C8, K8, Wo, Ho, To, Wi, Hi, Ti, SW, SH, ST, step_t, step_h, step_w,
    s_n: tl.int64, s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    s_split: tl.int64, per_split, taps,
    CHUNKS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    EVEN_K: tl.constexpr, FLAT: tl.constexpr, BIAS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, VECTOR: tl.constexpr, SPLIT: tl.constexpr,
    GROUPED: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of BP positions x BN output channels.

    x: rows, C = 8 * C8 elements each.
    w: (groups * N, taps, K), K contiguous. bias: (groups * N). out: any strides; channels
    contiguous with CHANNELS_LAST (then the other strides are in units of VECTOR, which tells the
    compiler how stores are aligned: tl.multiple_of does not outlive AMD's buffer addressing), else
    w contiguous; with SPLIT float32 partial sums, `s_split` apart. N is VECTOR * NV.
    P: positions (FLAT: rows of the input up to the last one that has an output).
    """
    N = NV * VECTOR  # so that the compiler knows how the rows of the output are aligned
    BM: tl.constexpr = BN // 3 if BN % 3 == 0 else 0
    pid_p, pid_n = _tile(tl.program_id(0), tl.cdiv(P, BP), tl.cdiv(N, BN), GROUP)
    group = tl.program_id(1)
    K = K8 * 8
    p = pid_p * BP + tl.arange(0, BP)
    channel = pid_n * BN + tl.arange(0, BN - BM)
    first, last = 0, taps * CHUNKS
    if SPLIT:
        first = tl.program_id(2) * per_split
        last = min(first + per_split, last)
    # A block that reaches beyond the end reads the last position again.
    row = _input_row(tl.minimum(p, P - 1), FLAT, Wo, Ho, To, Wi, Hi, Ti, SW, SH, ST)
    k = tl.arange(0, BK)
    x_at = x + (row.to(tl.int64)[:, None] * (C8 * 8) + k[None, :])
    if GROUPED:
        x_at += group * K
    w_at = _weight_rows(w, group * N, channel, N, taps * K, k)
    v_at = w_at
    if BM:
        further = pid_n * BN + (BN - BM) + tl.arange(0, BM)
        v_at = _weight_rows(w, group * N, further, N, taps * K, k)
    acc, more = _products(
        x_at, w_at, v_at, C8 * 8, K, first, last, step_t, step_h, step_w, CHUNKS, KH, KW, EVEN_K,
        PRECISION, BP, BN - BM, BM, BK,
    )  # fmt: skip
    if FLAT:
        on, ot, oh, ow = _place(p, Wi, Hi, Ti)
        stored = (ow < Wo) & (oh < Ho) & (ot < To) & (p < P)
    else:
        on, ot, oh, ow = _place(p, Wo, Ho, To)
        stored = p < P
    if CHANNELS_LAST:
        at = on.to(tl.int64) * (s_n * VECTOR) + ot.to(tl.int64) * (s_t * VECTOR)
        at += oh.to(tl.int64) * (s_h * VECTOR) + ow.to(tl.int64) * (s_w * VECTOR)
    else:
        at = on.to(tl.int64) * s_n + ot.to(tl.int64) * s_t + oh.to(tl.int64) * s_h + ow
    if SPLIT:
        at += tl.program_id(2).to(tl.int64) * (s_split * VECTOR)
    _store_outputs(acc, bias, out, at, stored, channel, group * N, N, s_c, BIAS, CHANNELS_LAST)
    if BM:
        _store_outputs(more, bias, out, at, stored, further, group * N, N, s_c, BIAS, CHANNELS_LAST)


@triton.jit
def _copy_box(
    pid, x, y, C, C8, T, H, W, Hy, Wy, t0, h0, w0, s_c, s_t, s_h, s_w,
    PADDED: tl.constexpr, W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One program of `to_rows`."""
    count_w = tl.cdiv(Wy, BW)
    count_c = tl.cdiv(C8 * 8, BC)
    block_w = pid % count_w
    q = pid // count_w
    block_c = q % count_c
    line = q // count_c
    t = line // Hy + t0
    h = line % Hy + h0
    w = block_w * BW + tl.arange(0, BW)
    c = block_c * BC + tl.arange(0, BC)
    xw = w + w0
    channels = C8 * 8 if VECTOR == 8 else C
    wanted = (c < channels)[:, None] & (w < Wy)[None, :]
    if PADDED:
        inside = (t >= 0) & (t < T) & (h >= 0) & (h < H) & (xw >= 0) & (xw < W)
        wanted = wanted & inside[None, :]
    at = x + (t.to(tl.int64) * (s_t * VECTOR) + h.to(tl.int64) * (s_h * VECTOR))
    across = xw[None, :] if W_CONTIGUOUS else xw.to(tl.int64)[None, :] * (s_w * VECTOR)
    down = c[:, None] if VECTOR == 8 else c.to(tl.int64)[:, None] * s_c
    value = tl.load(at + (across + down), mask=wanted, other=0.0)
    row = line.to(tl.int64) * Wy + w
    tl.store(
        y + row[None, :] * (C8 * 8) + c[:, None], value,
        mask=(c < C8 * 8)[:, None] & (w < Wy)[None, :],
    )  # fmt: skip


@triton.jit
def _pack(
    pid, w, y, C, C8, taps, kh, kw, to_o, to_line, to_w, s_o, s_c, s_t, s_h, s_w,
    DENSE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One program of `pack_weight`: BT taps x BC channels of one output."""
    count_c = tl.cdiv(C8 * 8, BC)
    count_t = tl.cdiv(taps, BT)
    block_c = pid % count_c
    q = pid // count_c
    tap = (q % count_t) * BT + tl.arange(0, BT)
    o = (q // count_t).to(tl.int64)
    c = block_c * BC + tl.arange(0, BC)
    line = tap // kw
    column = tap - line * kw
    if DENSE:
        across = tap[None, :]
    else:
        kt = line // kh
        across = kt.to(tl.int64) * s_t + (line - kt * kh).to(tl.int64) * s_h
        across = (across + column.to(tl.int64) * s_w)[None, :]
    value = tl.load(
        w + o * s_o + (across + c.to(tl.int64)[:, None] * s_c),
        mask=(c < C)[:, None] & (tap < taps)[None, :], other=0.0,
    )  # fmt: skip
    row = o * to_o + line.to(tl.int64) * to_line + column.to(tl.int64) * to_w
    tl.store(
        y + row[None, :] * (C8 * 8) + c[:, None], value,
        mask=(c < C8 * 8)[:, None] & (tap < taps)[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=[*_BOX, *_STRIDES[1:5]])
def to_rows(
    x, y, C, C8, T, H, W, Hy, Wy, t0, h0, w0,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    PADDED: tl.constexpr, W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Copies a box of x into rows: y[(t, h, w), c] = x[c, t + t0, h + h0, w + w0].

    VECTOR 8: channels are contiguous (s_c is 1) and a multiple of 8, as are the other strides,
    which come in units of VECTOR so that the compiler knows.

    Positions outside of x (T, H, W) are zero, and channels from C to 8 * C8. Hy, Wy: size of the
    box.
    """
    _copy_box(
        tl.program_id(0), x, y, C, C8, T, H, W, Hy, Wy, t0, h0, w0, s_c, s_t, s_h, s_w,
        PADDED, W_CONTIGUOUS, VECTOR, BW, BC,
    )  # fmt: skip


@triton.jit(do_not_specialize=[*_WEIGHT, *_WEIGHT_STRIDES])
def pack_weight(
    w, y, wC, wC8, taps, kh, kw, to_o: tl.int64, to_line: tl.int64, to_w: tl.int64,
    w_o: tl.int64, w_c: tl.int64, w_t: tl.int64, w_h: tl.int64, w_w: tl.int64,
    DENSE: tl.constexpr, BT: tl.constexpr, WBC: tl.constexpr,
):  # fmt: skip
    """The weight in the order in which the others read it: y[o, tap, c] = w[o, c, tap].

    A row of y is o * to_o + line * to_line + column * to_w, where tap = line * kw + column;
    channels from wC to 8 * wC8 are zero. With DENSE the taps are contiguous, so that a tile reads a
    stretch of memory as it lies (BT is hardly more than the taps) and is turned within the program;
    else lanes go along the channels.
    """
    _pack(
        tl.program_id(0), w, y, wC, wC8, taps, kh, kw, to_o, to_line, to_w,
        w_o, w_c, w_t, w_h, w_w, DENSE, BT, WBC,
    )  # fmt: skip


@triton.jit(do_not_specialize=["copies", *_BOX, *_STRIDES[1:5], *_WEIGHT, *_WEIGHT_STRIDES])
def to_rows_and_pack(
    x, y, w, packed, copies, C, C8, T, H, W, Hy, Wy, t0, h0, w0,
    s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    wC, wC8, taps, kh, kw, to_o: tl.int64, to_line: tl.int64, to_w: tl.int64,
    w_o: tl.int64, w_c: tl.int64, w_t: tl.int64, w_h: tl.int64, w_w: tl.int64,
    PADDED: tl.constexpr, W_CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
    DENSE: tl.constexpr, BT: tl.constexpr, WBC: tl.constexpr,
):  # fmt: skip
    """`to_rows` by the first `copies` programs, `pack_weight` by the others: one launch less."""
    pid = tl.program_id(0)
    if pid < copies:
        _copy_box(
            pid, x, y, C, C8, T, H, W, Hy, Wy, t0, h0, w0, s_c, s_t, s_h, s_w,
            PADDED, W_CONTIGUOUS, VECTOR, BW, BC,
        )  # fmt: skip
    else:
        _pack(
            pid - copies, w, packed, wC, wC8, taps, kh, kw, to_o, to_line, to_w,
            w_o, w_c, w_t, w_h, w_w, DENSE, BT, WBC,
        )  # fmt: skip


@triton.jit
def _store_sums(
    acc, bias, out, p, o, P, N, Wo, Ho, To, s_n, s_c, s_t, s_h, s_w, BIAS: tl.constexpr
):
    """Float32 sums of positions p, (n, t, h, w), and outputs o: their bias added, into out."""
    if BIAS:
        acc += tl.load(bias + o, mask=o < N, other=0.0).to(tl.float32)[None, :]
    n, t, h, w = _place(p, Wo, Ho, To)
    to = n.to(tl.int64) * s_n + t.to(tl.int64) * s_t + h.to(tl.int64) * s_h + w.to(tl.int64) * s_w
    tl.store(
        out + to[:, None] + o.to(tl.int64)[None, :] * s_c, acc.to(out.dtype.element_ty),
        mask=(p < P)[:, None] & (o < N)[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=["P", "N", "Wo", "Ho", "To", "splits", *_STRIDES])
def add_splits(
    parts, bias, out, P, N, Wo, Ho, To,
    s_n: tl.int64, s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64,
    s_split: tl.int64, splits,
    BIAS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out = sum of the float32 parts (splits, P, N), in order, + bias; P is (n, t, h, w)."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    wanted = (p < P)[:, None] & (o < N)[None, :]
    at = parts + (p.to(tl.int64)[:, None] * N + o[None, :])
    acc = tl.zeros((BP, BN), dtype=tl.float32)
    for _ in range(splits):
        acc += tl.load(at, mask=wanted, other=0.0)
        at += s_split
    _store_sums(acc, bias, out, p, o, P, N, Wo, Ho, To, s_n, s_c, s_t, s_h, s_w, BIAS)


@triton.jit(do_not_specialize=["P", "N", "Wo", "Ho", "To", "Wi", "Hi", "Ti", "kernel_w", *_STRIDES])
def add_columns(
    parts, bias, out, P, N, Wo, Ho, To, Wi, Hi, Ti,
    s_n: tl.int64, s_c: tl.int64, s_t: tl.int64, s_h: tl.int64, s_w: tl.int64, kernel_w,
    BIAS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[p, o] = sum over kw of parts[row(p) + kw, kw * N + o] + bias; parts is float32.

    For outputs so few that all columns of the kernel are outputs of one narrower convolution.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.arange(0, BN)
    wanted = (p < P)[:, None] & (o < N)[None, :]
    n, t, h, w = _place(p, Wo, Ho, To)
    row = (((n * Ti + t) * Hi + h) * Wi + w).to(tl.int64)
    wide = kernel_w * N
    at = parts + (row[:, None] * wide + o[None, :])
    acc = tl.zeros((BP, BN), dtype=tl.float32)
    for _ in range(kernel_w):
        acc += tl.load(at, mask=wanted, other=0.0)
        at += wide + N
    _store_sums(acc, bias, out, p, o, P, N, Wo, Ho, To, s_n, s_c, s_t, s_h, s_w, BIAS)


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
