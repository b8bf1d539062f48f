/* Four vectors of four sums each and as many of squares. The lanes are put together, and what is
 * left of n % 16 is added, as in the reference: no multiply-add is fused. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define LANES 16

AVX2 void hy3d_moments_f32__avx2(size_t n, const float *x, double shift, double *sums)
{
    const __m256d s = _mm256_set1_pd(shift);
    __m256d sum[4], square[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        sum[v] = square[v] = _mm256_setzero_pd();
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m256d d = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * v)), s);
            sum[v] = _mm256_add_pd(sum[v], d);
            square[v] = _mm256_add_pd(square[v], _mm256_mul_pd(d, d));
        }
    }
    double lane[LANES], lane_square[LANES];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        _mm256_storeu_pd(lane + 4 * v, sum[v]);
        _mm256_storeu_pd(lane_square + 4 * v, square[v]);
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
