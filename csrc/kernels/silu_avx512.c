/* Scale, shift and SiLU, sixteen lanes at a time; the last ones masked. */
#include "kernels/kernels.h"
#include "kernels/silu.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512dq")))
#define INLINE static inline __attribute__((always_inline)) AVX512

INLINE __m512 step(__m512 p, __m512 r, float next)
{
    return _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(next));
}

INLINE __m512 silu_of(__m512 v)
{
    /* The limit first: NaN passes from the second operand. */
    const __m512 negated = _mm512_xor_ps(v, _mm512_set1_ps(-0.0F));
    const __m512 low = _mm512_max_ps(_mm512_set1_ps(HY3D__SILU_LOW), negated);
    const __m512 x = _mm512_min_ps(_mm512_set1_ps(HY3D__SILU_HIGH), low);
    const __m512 rounded = step(x, _mm512_set1_ps(HY3D__SILU_LOG2E), HY3D__SILU_ROUND);
    const __m512 n = _mm512_sub_ps(rounded, _mm512_set1_ps(HY3D__SILU_ROUND));
    const __m512 high = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(HY3D__SILU_LN2_HIGH)));
    const __m512 r = _mm512_sub_ps(high, _mm512_mul_ps(n, _mm512_set1_ps(HY3D__SILU_LN2_LOW)));
    __m512 p = step(_mm512_set1_ps(HY3D__SILU_P4), r, HY3D__SILU_P3);
    p = step(p, r, HY3D__SILU_P2);
    p = step(p, r, HY3D__SILU_P1);
    p = step(p, r, HY3D__SILU_P0);
    p = _mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(r, r)), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0F));
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(power));
    return _mm512_div_ps(v, _mm512_add_ps(_mm512_set1_ps(1.0F), _mm512_add_ps(p, p)));
}

INLINE __m512 affine_silu(__m512 x, __m512 scale, __m512 shift, int silu)
{
    const __m512 v = _mm512_add_ps(_mm512_mul_ps(x, scale), shift);
    return silu != 0 ? silu_of(v) : v;
}

AVX512 void hy3d_affine_silu_f32__avx512(size_t n, float scale, float shift, int silu, float *x)
{
    const __m512 scales = _mm512_set1_ps(scale), shifts = _mm512_set1_ps(shift);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(x + i, affine_silu(_mm512_loadu_ps(x + i), scales, shifts, silu));
    }
    if (i < n) {
        const __mmask16 mask = (__mmask16)((1U << (n - i)) - 1U);
        const __m512 v = affine_silu(_mm512_maskz_loadu_ps(mask, x + i), scales, shifts, silu);
        _mm512_mask_storeu_ps(x + i, mask, v);
    }
}

AVX512 void hy3d_affine_silu_lanes_f32__avx512(size_t n, const float *scale, const float *shift,
                                               int silu, float *x)
{
    const __m512 scales = _mm512_loadu_ps(scale), shifts = _mm512_loadu_ps(shift);
    for (size_t i = 0; i < n; i++) {
        const __m512 v = affine_silu(_mm512_loadu_ps(x + 16 * i), scales, shifts, silu);
        _mm512_storeu_ps(x + 16 * i, v);
    }
}
#endif
