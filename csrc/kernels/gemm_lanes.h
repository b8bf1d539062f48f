/* Up to GEMM_ROWS rows by two vectors of columns in registers: two vectors of b, one broadcast of
 * a. Measured at 98 to 100 % of the multipliers' peak while b's panel lies in L2. A panel of 32
 * columns is done 2 * LANES at a time, each of which reads whole cache lines. */
#define GEMM_STEP 4 /* of k, unrolled */

INLINE void gemm_tile(const int mr, size_t segments, size_t segment, size_t blocks, size_t block,
                      const float *a, const float *b, float *c, int accumulate,
                      const hy3d__ahead *ahead)
{
    vec sum[GEMM_ROWS][2];
    const char *next_a = ahead->a, *next_b = ahead->b;
#pragma GCC unroll 14
    for (int r = 0; r < mr; r++) {
        sum[r][0] = V_ZERO();
        sum[r][1] = V_ZERO();
    }
    for (size_t s = 0; s < segments; s++) {
        const float *x = a + s * segment;
        for (size_t q = 0; q < blocks; q++, x += block - 16) {
            for (int i = 0; i < 16 / GEMM_STEP; i++) {
                _mm_prefetch(next_b, _MM_HINT_T1);
                _mm_prefetch(next_b + 64, _MM_HINT_T1);
                _mm_prefetch(next_a, _MM_HINT_T1);
                next_b += ahead->b_step;
                next_a += ahead->a_step;
#pragma GCC unroll 4
                for (int u = 0; u < GEMM_STEP; u++) {
                    const vec low = V_LOAD(b + 32 * u);
                    const vec high = V_LOAD(b + 32 * u + LANES);
#pragma GCC unroll 14
                    for (int r = 0; r < mr; r++) {
                        const vec value = V_SET(x[16 * r + u]);
                        sum[r][0] = V_FMA(value, low, sum[r][0]);
                        sum[r][1] = V_FMA(value, high, sum[r][1]);
                    }
                }
                b += 32 * GEMM_STEP;
                x += GEMM_STEP;
            }
        }
    }
#pragma GCC unroll 14
    for (int r = 0; r < mr; r++) {
        float *const out = c + 32 * (size_t)r;
        if (accumulate) {
            sum[r][0] = V_ADD(V_LOAD(out), sum[r][0]);
            sum[r][1] = V_ADD(V_LOAD(out + LANES), sum[r][1]);
        }
        V_STORE(out, sum[r][0]);
        V_STORE(out + LANES, sum[r][1]);
    }
}

/* One function a row count, so that each has all its sums in registers. */
typedef void (*gemm_tile_fn)(size_t, size_t, size_t, size_t, const float *, const float *, float *,
                             int, const hy3d__ahead *);
#define GEMM_TILE(n)                                                                               \
    static TARGET __attribute__((noinline)) void gemm_tile_##n(                                    \
        size_t segments, size_t segment, size_t blocks, size_t block, const float *a,              \
        const float *b, float *c, int accumulate, const hy3d__ahead *ahead)                        \
    {                                                                                              \
        gemm_tile(n, segments, segment, blocks, block, a, b, c, accumulate, ahead);                \
    }
GEMM_TILE(1)
GEMM_TILE(2)
GEMM_TILE(3)
GEMM_TILE(4)
GEMM_TILE(5)
GEMM_TILE(6)
#if GEMM_ROWS == 14
GEMM_TILE(7)
GEMM_TILE(8)
GEMM_TILE(9)
GEMM_TILE(10)
GEMM_TILE(11)
GEMM_TILE(12)
GEMM_TILE(13)
GEMM_TILE(14)
#endif

TARGET void SUFFIX(hy3d_gemm_f32)(size_t rows, size_t segments, size_t segment, size_t blocks,
                                  size_t block, const float *a, const float *b, float *c,
                                  int accumulate, const hy3d__ahead *ahead)
{
    static const gemm_tile_fn tiles[GEMM_ROWS + 1] = {
        NULL,         gemm_tile_1,  gemm_tile_2,  gemm_tile_3,
        gemm_tile_4,  gemm_tile_5,  gemm_tile_6,
#if GEMM_ROWS == 14
        gemm_tile_7,  gemm_tile_8,  gemm_tile_9,  gemm_tile_10,
        gemm_tile_11, gemm_tile_12, gemm_tile_13, gemm_tile_14,
#endif
    };
    hy3d__ahead next = *ahead;

    for (size_t column = 0; column < 32; column += 2 * LANES) {
        /* Rows are shared out evenly: 15 as 8 + 7, since one row alone waits for the adders. */
        size_t done = 0;
        for (size_t left = (rows + GEMM_ROWS - 1) / GEMM_ROWS; left > 0; left--) {
            const size_t count = (rows - done + left - 1) / left;
            tiles[count](segments, segment, blocks, block, a + 16 * done, b + column,
                         c + 32 * done + column, accumulate, &next);
            hy3d__ahead_advance(&next, segments * blocks * (16 / GEMM_STEP));
            done += count;
        }
    }
}
