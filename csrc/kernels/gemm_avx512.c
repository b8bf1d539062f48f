/* Up to 14 rows by 32 columns in 32 zmm registers: 28 sums, two vectors of b, one broadcast of a.
 * Measured at 98 to 100 % of the multipliers' peak while b's panel lies in L2. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX512
#define ROWS 14
#define STEP 4 /* of k, unrolled */

INLINE void tile(const int mr, size_t segments, size_t segment, size_t blocks, size_t block,
                 const float *a, const float *b, float *c, int accumulate,
                 const hy3d__ahead *ahead)
{
    __m512 sum[ROWS][2];
    const char *next_a = ahead->a, *next_b = ahead->b;
#pragma GCC unroll 14
    for (int r = 0; r < mr; r++) {
        sum[r][0] = _mm512_setzero_ps();
        sum[r][1] = _mm512_setzero_ps();
    }
    for (size_t s = 0; s < segments; s++) {
        const float *x = a + s * segment;
        for (size_t q = 0; q < blocks; q++, x += block - 16) {
            for (int i = 0; i < 16 / STEP; i++) {
                _mm_prefetch(next_b, _MM_HINT_T1);
                _mm_prefetch(next_b + 64, _MM_HINT_T1);
                _mm_prefetch(next_a, _MM_HINT_T1);
                next_b += ahead->b_step;
                next_a += ahead->a_step;
#pragma GCC unroll 4
                for (int u = 0; u < STEP; u++) {
                    const __m512 low = _mm512_loadu_ps(b + 32 * u);
                    const __m512 high = _mm512_loadu_ps(b + 32 * u + 16);
#pragma GCC unroll 14
                    for (int r = 0; r < mr; r++) {
                        const __m512 value = _mm512_set1_ps(x[16 * r + u]);
                        sum[r][0] = _mm512_fmadd_ps(value, low, sum[r][0]);
                        sum[r][1] = _mm512_fmadd_ps(value, high, sum[r][1]);
                    }
                }
                b += 32 * STEP;
                x += STEP;
            }
        }
    }
#pragma GCC unroll 14
    for (int r = 0; r < mr; r++) {
        float *const out = c + 32 * (size_t)r;
        if (accumulate) {
            sum[r][0] = _mm512_add_ps(_mm512_loadu_ps(out), sum[r][0]);
            sum[r][1] = _mm512_add_ps(_mm512_loadu_ps(out + 16), sum[r][1]);
        }
        _mm512_storeu_ps(out, sum[r][0]);
        _mm512_storeu_ps(out + 16, sum[r][1]);
    }
}

/* One function a row count, so that each has all its sums in registers. */
#define TILE(n)                                                                                    \
    static AVX512 __attribute__((noinline)) void tile_##n(                                         \
        size_t segments, size_t segment, size_t blocks, size_t block, const float *a,              \
        const float *b, float *c, int accumulate, const hy3d__ahead *ahead)                        \
    {                                                                                              \
        tile(n, segments, segment, blocks, block, a, b, c, accumulate, ahead);                     \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)

typedef void (*tile_fn)(size_t, size_t, size_t, size_t, const float *, const float *, float *, int,
                        const hy3d__ahead *);

AVX512 void hy3d_gemm_f32__avx512(size_t rows, size_t segments, size_t segment, size_t blocks,
                                  size_t block, const float *a, const float *b, float *c,
                                  int accumulate, const hy3d__ahead *ahead)
{
    static const tile_fn tiles[ROWS + 1] = {
        NULL,   tile_1, tile_2, tile_3, tile_4,  tile_5,  tile_6, tile_7,
        tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14};
    hy3d__ahead next = *ahead;
    /* Rows are shared out evenly: 15 as 8 + 7, since one row alone waits for the adders. */
    size_t left = (rows + ROWS - 1) / ROWS;

    while (rows > 0) {
        const size_t count = (rows + left - 1) / left;
        tiles[count](segments, segment, blocks, block, a, b, c, accumulate, &next);
        hy3d__ahead_advance(&next, segments * blocks * (16 / STEP));
        a += count * 16;
        c += count * 32;
        rows -= count;
        left--;
    }
}
#endif
