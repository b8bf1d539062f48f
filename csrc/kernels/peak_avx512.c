/* All 24 sums in flight, as in the convolution's tile. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,fma")))

AVX512 void hy3d_peak_f32__avx512(size_t rounds, float factor, float addend, float *restrict sums)
{
    const __m512 by = _mm512_set1_ps(factor), plus = _mm512_set1_ps(addend);
    __m512 sum[24];
#pragma GCC unroll 24
    for (int v = 0; v < 24; v++) {
        sum[v] = _mm512_loadu_ps(sums + 16 * v);
    }
    for (size_t i = 0; i < rounds; i++) {
#pragma GCC unroll 24
        for (int v = 0; v < 24; v++) {
            sum[v] = _mm512_fmadd_ps(sum[v], by, plus);
        }
    }
#pragma GCC unroll 24
    for (int v = 0; v < 24; v++) {
        _mm512_storeu_ps(sums + 16 * v, sum[v]);
    }
}
#endif
