/* Twelve sums in flight: two multiply-adds start each cycle and take four, so eight would do. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 void hy3d_peak_f32__avx2(size_t rounds, float factor, float addend, float *restrict sums)
{
    const __m256 by = _mm256_set1_ps(factor), plus = _mm256_set1_ps(addend);
    for (int start = 0; start < 384; start += 96) {
        __m256 sum[12];
#pragma GCC unroll 12
        for (int v = 0; v < 12; v++) {
            sum[v] = _mm256_loadu_ps(sums + start + 8 * v);
        }
        for (size_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
            for (int v = 0; v < 12; v++) {
                sum[v] = _mm256_fmadd_ps(sum[v], by, plus);
            }
        }
#pragma GCC unroll 12
        for (int v = 0; v < 12; v++) {
            _mm256_storeu_ps(sums + start + 8 * v, sum[v]);
        }
    }
}
#endif
