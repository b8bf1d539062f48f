/* AVX-512 F, BW, DQ, VL. The last elements go through masked loads and stores, which touch no
 * memory outside the mask. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))

/* The lowest min(left, 16) lanes. */
static inline AVX512 __mmask16 lanes(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffU : (1U << left) - 1U);
}

AVX512 void hy3d_cvt_f16_f32__avx512(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes(n - i);
        const __m512 wide = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, src + i));
        _mm512_mask_storeu_ps(dst + i, mask, wide);
    }
}

AVX512 void hy3d_cvt_bf16_f32__avx512(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes(n - i);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src + i));
        _mm512_mask_storeu_epi32(dst + i, mask, _mm512_slli_epi32(wide, 16));
    }
}

AVX512 void hy3d_cvt_f32_f16__avx512(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes(n - i);
        const __m256i half = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, src + i),
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(dst + i, mask, half);
    }
}

/* Not vcvtneps2bf16: that one flushes denormals to zero, and is missing on Skylake. */
AVX512 void hy3d_cvt_f32_bf16__avx512(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes(n - i);
        const __m512i bits = _mm512_maskz_loadu_epi32(mask, src + i);
        const __m512i top = _mm512_srli_epi32(bits, 16);
        const __m512i half =
            _mm512_add_epi32(_mm512_and_si512(top, one), _mm512_set1_epi32(0x7fff));
        const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
        const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
        const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, infinity);
        const __m512i result =
            _mm512_mask_or_epi32(rounded, is_nan, top, _mm512_set1_epi32(0x40));
        _mm256_mask_storeu_epi16(dst + i, mask, _mm512_cvtepi32_epi16(result));
    }
}

/* No FMA: the reference rounds the product, and results must be equal at every level. */
AVX512 void hy3d_blend_f32__avx512(size_t n, float row, const float *restrict window,
                                   const float *restrict src, float *restrict dst)
{
    const __m512 rows = _mm512_set1_ps(row);
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes(n - i);
        const __m512 weight =
            window != NULL ? _mm512_mul_ps(rows, _mm512_maskz_loadu_ps(mask, window + i)) : rows;
        const __m512 product = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, src + i), weight);
        const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dst + i), product);
        _mm512_mask_storeu_ps(dst + i, mask, sum);
    }
}
#endif
