/* AVX2 + FMA + F16C. Whole vectors here, the last n % 8 elements by the reference kernel: reading
 * beyond n could touch a page that is not there. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))

static inline AVX2 __m128i load8_u16(const uint16_t *src)
{
    return _mm_loadu_si128((const __m128i *)(const void *)src);
}

AVX2 void hy3d_cvt_f16_f32__avx2(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load8_u16(src + i)));
    }
    hy3d_cvt_f16_f32__ref(n - i, src + i, dst + i);
}

AVX2 void hy3d_cvt_bf16_f32__avx2(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i wide = _mm256_cvtepu16_epi32(load8_u16(src + i));
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm256_slli_epi32(wide, 16));
    }
    hy3d_cvt_bf16_f32__ref(n - i, src + i, dst + i);
}

AVX2 void hy3d_cvt_f32_f16__avx2(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        /* The rounding is in the instruction, so that the thread's mode does not matter. */
        const __m128i half =
            _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), half);
    }
    hy3d_cvt_f32_f16__ref(n - i, src + i, dst + i);
}

/* Eight bf16 values, each in the low half of a 32-bit lane. */
static inline AVX2 __m256i round8_to_bf16(__m256i bits)
{
    const __m256i top = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

AVX2 void hy3d_cvt_f32_bf16__avx2(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        const __m256i wide = round8_to_bf16(bits);
        /* packus works within each 128-bit half. */
        const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(wide),
                                                _mm256_extracti128_si256(wide, 1));
        _mm_storeu_si128((__m128i *)(void *)(dst + i), narrow);
    }
    hy3d_cvt_f32_bf16__ref(n - i, src + i, dst + i);
}

/* No FMA: the reference rounds the product, and results must be equal at every level. */
AVX2 void hy3d_blend_f32__avx2(size_t n, float row, const float *restrict window,
                               const float *restrict src, float *restrict dst)
{
    const __m256 rows = _mm256_set1_ps(row);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 weight =
            window != NULL ? _mm256_mul_ps(rows, _mm256_loadu_ps(window + i)) : rows;
        const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(src + i), weight);
        _mm256_storeu_ps(dst + i, _mm256_add_ps(_mm256_loadu_ps(dst + i), product));
    }
    hy3d_blend_f32__ref(n - i, row, window != NULL ? window + i : NULL, src + i, dst + i);
}
#endif
