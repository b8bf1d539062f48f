/* Convolution tile in 32 zmm registers: eight rows by three vectors, 24 sums in flight. Every
 * weight is broadcast once for three multiply-adds and every vector of x is loaded once for eight,
 * so that loads (also those that cross cache lines) stay below what the two load ports can do. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,fma")))
/* Terms, unrolled: fewer instructions beside the multiply-adds, 2 to 3 %. With four the compiler runs
 * out of registers. */
#define STEP 3
#define INLINE static inline __attribute__((always_inline)) AVX512

/* One term of all sums. */
INLINE void term(const int mr, const int nv, const int u, const float *const *row, size_t lda,
                 const float *const *b, int32_t at, __m512 sum[8][3])
{
    __m512 x[3];
#pragma GCC unroll 3
    for (int v = 0; v < nv; v++) {
        x[v] = _mm512_loadu_ps(b[v] + at);
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        const __m512 w = _mm512_set1_ps(row[r / 3][(size_t)(r % 3) * lda + (size_t)u]);
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            sum[r][v] = _mm512_fmadd_ps(w, x[v], sum[r][v]);
        }
    }
}

INLINE void tile(const int mr, const int nv, size_t k, const float *a, size_t lda,
                 const float *const *b, const int32_t *offset, const float *bias, float *c,
                 size_t ldc)
{
    __m512 sum[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            sum[r][v] = _mm512_setzero_ps();
        }
    }
    /* Three pointers reach all rows by scaled indices; eight would not fit the registers. */
    const float *row[3] = {a, mr > 3 ? a + 3 * lda : a, mr > 6 ? a + 6 * lda : a};
    size_t left = k;
    for (; left >= STEP; left -= STEP, offset += STEP) {
#pragma GCC unroll 3
        for (int u = 0; u < STEP; u++) {
            term(mr, nv, u, row, lda, b, offset[u], sum);
        }
        row[0] += STEP;
        row[1] += STEP;
        row[2] += STEP;
    }
    for (; left > 0; left--, offset++) {
        term(mr, nv, 0, row, lda, b, offset[0], sum);
        row[0]++;
        row[1]++;
        row[2]++;
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        float *const out = c + (size_t)r * ldc;
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            const __m512 base =
                bias == NULL ? _mm512_loadu_ps(out + 16 * v) : _mm512_set1_ps(bias[r]);
            _mm512_storeu_ps(out + 16 * v, _mm512_add_ps(base, sum[r][v]));
        }
    }
}

INLINE void rows(const int mr, int nv, size_t k, const float *a, size_t lda,
                 const float *const *b, const int32_t *offset, const float *bias, float *c,
                 size_t ldc)
{
    switch (nv) {
    case 1:
        tile(mr, 1, k, a, lda, b, offset, bias, c, ldc);
        break;
    case 2:
        tile(mr, 2, k, a, lda, b, offset, bias, c, ldc);
        break;
    default:
        tile(mr, 3, k, a, lda, b, offset, bias, c, ldc);
        break;
    }
}

AVX512 void hy3d_conv_f32__avx512(int mr, int nv, size_t k, const float *a, size_t lda,
                 const float *const *b, const int32_t *offset, const float *bias, float *c,
                 size_t ldc)
{
    switch (mr) {
    case 1:
        rows(1, nv, k, a, lda, b, offset, bias, c, ldc);
        break;
    case 2:
        rows(2, nv, k, a, lda, b, offset, bias, c, ldc);
        break;
    case 3:
        rows(3, nv, k, a, lda, b, offset, bias, c, ldc);
        break;
    case 4:
        rows(4, nv, k, a, lda, b, offset, bias, c, ldc);
        break;
    default:
        rows(8, nv, k, a, lda, b, offset, bias, c, ldc);
        break;
    }
}
#endif
