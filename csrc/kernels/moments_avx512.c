/* Two vectors of eight sums each and as many of squares. The lanes are put together, and what is
 * left of n % 16 is added, as in the reference: no multiply-add is fused. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))
#define LANES 16

AVX512 void hy3d_moments_f32__avx512(size_t n, const float *x, double shift, double *sums)
{
    const __m512d s = _mm512_set1_pd(shift);
    __m512d sum[2], square[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        sum[v] = square[v] = _mm512_setzero_pd();
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const __m512d d = _mm512_sub_pd(_mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * v)), s);
            sum[v] = _mm512_add_pd(sum[v], d);
            square[v] = _mm512_add_pd(square[v], _mm512_mul_pd(d, d));
        }
    }
    double lane[LANES], lane_square[LANES];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        _mm512_storeu_pd(lane + 8 * v, sum[v]);
        _mm512_storeu_pd(lane_square + 8 * v, square[v]);
    }
    for (size_t l = 0; i + l < n; l++) {
        const double d = (double)x[i + l] - shift;
        lane[l] += d;
        lane_square[l] += d * d;
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++) {
            lane[l] += lane[l + half];
            lane_square[l] += lane_square[l + half];
        }
    }
    sums[0] = lane[0];
    sums[1] = lane_square[0];
}
#endif
