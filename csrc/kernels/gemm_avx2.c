/* Up to six rows by 16 columns in 16 ymm registers: 12 sums, two vectors of b, one broadcast of a.
 * A panel of 32 columns is done as two halves, one after the other, each of which reads whole
 * cache lines. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX2
#define ROWS 6
#define STEP 4 /* of k, unrolled */

INLINE void tile(const int mr, size_t segments, size_t segment, size_t blocks, size_t block,
                 const float *a, const float *b, float *c, int accumulate,
                 const hy3d__ahead *ahead)
{
    __m256 sum[ROWS][2];
    const char *next_a = ahead->a, *next_b = ahead->b;
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
        sum[r][0] = _mm256_setzero_ps();
        sum[r][1] = _mm256_setzero_ps();
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
                    const __m256 low = _mm256_loadu_ps(b + 32 * u);
                    const __m256 high = _mm256_loadu_ps(b + 32 * u + 8);
#pragma GCC unroll 6
                    for (int r = 0; r < mr; r++) {
                        const __m256 value = _mm256_broadcast_ss(x + 16 * r + u);
                        sum[r][0] = _mm256_fmadd_ps(value, low, sum[r][0]);
                        sum[r][1] = _mm256_fmadd_ps(value, high, sum[r][1]);
                    }
                }
                b += 32 * STEP;
                x += STEP;
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
        float *const out = c + 32 * (size_t)r;
        if (accumulate) {
            sum[r][0] = _mm256_add_ps(_mm256_loadu_ps(out), sum[r][0]);
            sum[r][1] = _mm256_add_ps(_mm256_loadu_ps(out + 8), sum[r][1]);
        }
        _mm256_storeu_ps(out, sum[r][0]);
        _mm256_storeu_ps(out + 8, sum[r][1]);
    }
}

#define TILE(n)                                                                                    \
    static AVX2 __attribute__((noinline)) void tile_##n(                                           \
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

typedef void (*tile_fn)(size_t, size_t, size_t, size_t, const float *, const float *, float *, int,
                        const hy3d__ahead *);

AVX2 void hy3d_gemm_f32__avx2(size_t rows, size_t segments, size_t segment, size_t blocks,
                              size_t block, const float *a, const float *b, float *c,
                              int accumulate, const hy3d__ahead *ahead)
{
    static const tile_fn tiles[ROWS + 1] = {NULL,   tile_1, tile_2, tile_3,
                                            tile_4, tile_5, tile_6};
    hy3d__ahead next = *ahead;

    for (size_t half = 0; half < 32; half += 16) {
        size_t done = 0;
        for (size_t left = (rows + ROWS - 1) / ROWS; left > 0; left--) {
            const size_t count = (rows - done + left - 1) / left;
            tiles[count](segments, segment, blocks, block, a + done * 16, b + half,
                         c + 32 * done + half, accumulate, &next);
            hy3d__ahead_advance(&next, segments * blocks * (16 / STEP));
            done += count;
        }
    }
}
#endif
