/* Lines of 16 channels to vectors of channels and back. Quarters of rows are put together by loads
 * (half the work of a shuffle, and on either port), so that only the four by four transposes
 * inside of quarters are left to the one port that shuffles. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX512

/* Rows r, r + 4, r + 8, r + 12 of four columns. */
INLINE __m512 quarters(const float *src, size_t pitch)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(src));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 4 * pitch), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 8 * pitch), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(src + 12 * pitch), 3);
}

/* Four columns of 16 rows as vectors of rows. */
INLINE void columns4(const float *src, size_t pitch, __m512 out[4])
{
    const __m512 r0 = quarters(src, pitch), r1 = quarters(src + pitch, pitch);
    const __m512 r2 = quarters(src + 2 * pitch, pitch), r3 = quarters(src + 3 * pitch, pitch);
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
    out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
}

INLINE void to_lanes4(const float *src, size_t pitch, float *dst)
{
    __m512 out[4];
    columns4(src, pitch, out);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(dst + 16 * i, out[i]);
    }
}

AVX512 void hy3d_to_lanes_f32__avx512(size_t n, const float *src, size_t pitch, float *dst)
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

INLINE void from_lanes16(const float *src, float *dst, size_t pitch)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++) {
        __m512 out[4];
        columns4(src + 4 * q, 16, out);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            _mm512_storeu_ps(dst + (4 * q + i) * pitch, out[i]);
        }
    }
}

AVX512 void hy3d_from_lanes_f32__avx512(size_t n, const float *src, float *dst, size_t pitch)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        from_lanes16(src + 16 * i, dst + i, pitch);
    }
    if (i == n) {
        return;
    }
    if (n >= 16) {
        from_lanes16(src + 16 * (n - 16), dst + n - 16, pitch);
        return;
    }
    hy3d_from_lanes_f32__ref(n - i, src + 16 * i, dst + i, pitch);
}
#endif
