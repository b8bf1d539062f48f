/* Convolution tile in registers: CONV_ROWS rows by three vectors, 12 or 24 sums in flight, which
 * covers the latency of both multipliers. */

/* Term u of all sums. Three pointers reach all rows by scaled indices; eight would not fit the
 * registers. */
INLINE void conv_term(const int mr, const int nv, const int u, const float *const *row, size_t lda,
                      const float *const *b, int32_t at, vec sum[CONV_ROWS][3])
{
    vec x[3];
#pragma GCC unroll 3
    for (int v = 0; v < nv; v++) {
        x[v] = V_LOAD(b[v] + at);
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        const vec w = V_SET(row[r / 3][(size_t)(r % 3) * lda + (size_t)u]);
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            sum[r][v] = V_FMA(w, x[v], sum[r][v]);
        }
    }
}

INLINE void conv_tile(const int mr, const int nv, size_t k, const float *a, size_t lda,
                      const float *const *b, const int32_t *offset, const float *bias, float *c,
                      size_t ldc)
{
    vec sum[CONV_ROWS][3];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            sum[r][v] = V_ZERO();
        }
    }
#if CONV_STEP == 1
    for (size_t i = 0; i < k; i++) {
        const float *const row[2] = {a + i, a + 3 * lda + i};
        conv_term(mr, nv, 0, row, lda, b, offset[i], sum);
    }
#else
    const float *row[3] = {a, a + 3 * lda, a + 6 * lda};
    size_t left = k;
    for (; left >= CONV_STEP; left -= CONV_STEP, offset += CONV_STEP) {
#pragma GCC unroll 3
        for (int u = 0; u < CONV_STEP; u++) {
            conv_term(mr, nv, u, row, lda, b, offset[u], sum);
        }
        row[0] += CONV_STEP;
        row[1] += CONV_STEP;
        row[2] += CONV_STEP;
    }
    for (; left > 0; left--, offset++) {
        conv_term(mr, nv, 0, row, lda, b, offset[0], sum);
        row[0]++;
        row[1]++;
        row[2]++;
    }
#endif
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        float *const out = c + (size_t)r * ldc;
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            const vec base = bias == NULL ? V_LOAD(out + LANES * v) : V_SET(bias[r]);
            V_STORE(out + LANES * v, V_ADD(base, sum[r][v]));
        }
    }
}

/* `nv` times 16 lanes, as vectors: of 8, 6 = 3 + 3, 4 = 2 + 2, 2. */
INLINE void conv_rows(const int mr, int nv, size_t k, const float *a, size_t lda,
                      const float *const *b, const int32_t *offset, const float *bias, float *c,
                      size_t ldc)
{
    const int parts = 16 / LANES;
    const float *part[6];
    for (int v = 0; v < nv * parts; v++) {
        part[v] = b[v / parts] + LANES * (v % parts);
    }
    if (nv == 3) {
#pragma GCC unroll 2
        for (int p = 0; p < parts; p++) {
            conv_tile(mr, 3, k, a, lda, part + 3 * p, offset, bias, c + 3 * LANES * p, ldc);
        }
    } else if (nv == 2 || parts == 2) {
        for (int v = 0; v < nv * parts; v += 2) {
            conv_tile(mr, 2, k, a, lda, part + v, offset, bias, c + LANES * v, ldc);
        }
    } else {
        conv_tile(mr, 1, k, a, lda, part, offset, bias, c, ldc);
    }
}

TARGET void SUFFIX(hy3d_conv_f32)(int mr, int nv, size_t k, const float *a, size_t lda,
                                  const float *const *b, const int32_t *offset, const float *bias,
                                  float *c, size_t ldc)
{
    switch (mr) {
    case 1:
        conv_rows(1, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    case 2:
        conv_rows(2, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    case 3:
        conv_rows(3, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    default:
        break;
    }
    if (mr == 4 && CONV_ROWS != 4) {
        conv_rows(4, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    }
    for (int r = 0; r < mr; r += CONV_ROWS) {
        conv_rows(CONV_ROWS, nv, k, a + (size_t)r * lda, lda, b, offset,
                  bias == NULL ? NULL : bias + r, c + (size_t)r * ldc, ldc);
    }
}
