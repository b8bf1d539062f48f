/* Convolution tile in 16 ymm registers: four rows by three vectors of eight lanes, 12 sums in
 * flight, which covers the latency of both multipliers. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX2

INLINE void tile(const int mr, const int nv, size_t k, const float *a, size_t lda,
                 const float *const *b, const int32_t *offset, const float *bias, float *c,
                 size_t ldc)
{
    __m256 sum[4][3];
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            sum[r][v] = _mm256_setzero_ps();
        }
    }
    for (size_t i = 0; i < k; i++) {
        const int32_t at = offset[i];
        __m256 x[3];
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            x[v] = _mm256_loadu_ps(b[v] + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            const __m256 w = _mm256_broadcast_ss(a + (size_t)r * lda + i);
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++) {
                sum[r][v] = _mm256_fmadd_ps(w, x[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        float *const out = c + (size_t)r * ldc;
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            const __m256 base =
                bias == NULL ? _mm256_loadu_ps(out + 8 * v) : _mm256_broadcast_ss(bias + r);
            _mm256_storeu_ps(out + 8 * v, _mm256_add_ps(base, sum[r][v]));
        }
    }
}

/* 16 lanes times nv as vectors of 8: 6 = 3 + 3, 4 = 2 + 2, 2. */
INLINE void rows(const int mr, int nv, size_t k, const float *a, size_t lda, const float *const *b,
                 const int32_t *offset, const float *bias, float *c, size_t ldc)
{
    const float *half[6];
    for (int v = 0; v < nv; v++) {
        half[2 * v] = b[v];
        half[2 * v + 1] = b[v] + 8;
    }
    if (nv == 3) {
        tile(mr, 3, k, a, lda, half, offset, bias, c, ldc);
        tile(mr, 3, k, a, lda, half + 3, offset, bias, c + 24, ldc);
        return;
    }
    for (int v = 0; v < nv; v++) {
        tile(mr, 2, k, a, lda, half + 2 * v, offset, bias, c + 16 * v, ldc);
    }
}

AVX2 void hy3d_conv_f32__avx2(int mr, int nv, size_t k, const float *a, size_t lda,
                              const float *const *b, const int32_t *offset, const float *bias,
                              float *c, size_t ldc)
{
    switch (mr) {
    case 1:
        rows(1, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    case 2:
        rows(2, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    case 3:
        rows(3, nv, k, a, lda, b, offset, bias, c, ldc);
        return;
    default:
        break;
    }
    for (int r = 0; r < mr; r += 4) {
        rows(4, nv, k, a + (size_t)r * lda, lda, b, offset, bias == NULL ? NULL : bias + r,
             c + (size_t)r * ldc, ldc);
    }
}
#endif
