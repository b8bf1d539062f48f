/* Lines of 16 channels to vectors of channels and back, as in transpose_avx512.c with halves. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX2

/* Rows r and r + 4 of four columns. */
INLINE __m256 halves(const float *src, size_t pitch)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src)),
                                _mm_loadu_ps(src + 4 * pitch), 1);
}

/* Four columns of 8 rows as vectors of rows. */
INLINE void columns4(const float *src, size_t pitch, __m256 out[4])
{
    const __m256 r0 = halves(src, pitch), r1 = halves(src + pitch, pitch);
    const __m256 r2 = halves(src + 2 * pitch, pitch), r3 = halves(src + 3 * pitch, pitch);
    const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1));
    const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
    const __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
    const __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
    out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23));
    out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23));
    out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23));
    out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23));
}

INLINE void to_lanes4(const float *src, size_t pitch, float *dst)
{
#pragma GCC unroll 2
    for (size_t half = 0; half < 16; half += 8) {
        __m256 out[4];
        columns4(src + half * pitch, pitch, out);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            _mm256_storeu_ps(dst + 16 * i + half, out[i]);
        }
    }
}

AVX2 void hy3d_to_lanes_f32__avx2(size_t n, const float *src, size_t pitch, float *dst)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        to_lanes4(src + i, pitch, dst + 16 * i);
    }
    if (i == n) {
        return;
    }
    if (n >= 4) { /* the last four once more: no element beyond n is read */
        to_lanes4(src + n - 4, pitch, dst + 16 * (n - 4));
        return;
    }
    hy3d_to_lanes_f32__ref(n - i, src + i, pitch, dst + 16 * i);
}

/* Eight positions of 16 channels. */
INLINE void from_lanes8(const float *src, float *dst, size_t pitch)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++) {
        __m256 out[4];
        columns4(src + 4 * q, 16, out);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            _mm256_storeu_ps(dst + (4 * q + i) * pitch, out[i]);
        }
    }
}

AVX2 void hy3d_from_lanes_f32__avx2(size_t n, const float *src, float *dst, size_t pitch)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        from_lanes8(src + 16 * i, dst + i, pitch);
    }
    if (i == n) {
        return;
    }
    if (n >= 8) {
        from_lanes8(src + 16 * (n - 8), dst + n - 8, pitch);
        return;
    }
    hy3d_from_lanes_f32__ref(n - i, src + 16 * i, dst + i, pitch);
}
#endif
