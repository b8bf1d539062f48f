/* Scale, shift and SiLU, eight lanes at a time; the last n % 8 elements by the reference, whose
 * bits are the same. */
#include "kernels/kernels.h"
#include "kernels/silu.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) AVX2

INLINE __m256 step(__m256 p, __m256 r, float next)
{
    return _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(next));
}

INLINE __m256 silu_of(__m256 v)
{
    /* The limit first: NaN passes from the second operand. */
    const __m256 negated = _mm256_xor_ps(v, _mm256_set1_ps(-0.0F));
    const __m256 low = _mm256_max_ps(_mm256_set1_ps(HY3D__SILU_LOW), negated);
    const __m256 x = _mm256_min_ps(_mm256_set1_ps(HY3D__SILU_HIGH), low);
    const __m256 rounded = step(x, _mm256_set1_ps(HY3D__SILU_LOG2E), HY3D__SILU_ROUND);
    const __m256 n = _mm256_sub_ps(rounded, _mm256_set1_ps(HY3D__SILU_ROUND));
    const __m256 high = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(HY3D__SILU_LN2_HIGH)));
    const __m256 r = _mm256_sub_ps(high, _mm256_mul_ps(n, _mm256_set1_ps(HY3D__SILU_LN2_LOW)));
    __m256 p = step(_mm256_set1_ps(HY3D__SILU_P4), r, HY3D__SILU_P3);
    p = step(p, r, HY3D__SILU_P2);
    p = step(p, r, HY3D__SILU_P1);
    p = step(p, r, HY3D__SILU_P0);
    p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0F));
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(rounded), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    return _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0F), _mm256_add_ps(p, p)));
}

INLINE __m256 affine_silu(__m256 x, __m256 scale, __m256 shift, int silu)
{
    const __m256 v = _mm256_add_ps(_mm256_mul_ps(x, scale), shift);
    return silu != 0 ? silu_of(v) : v;
}

AVX2 void hy3d_affine_silu_f32__avx2(size_t n, float scale, float shift, int silu, float *x)
{
    const __m256 scales = _mm256_set1_ps(scale), shifts = _mm256_set1_ps(shift);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, affine_silu(_mm256_loadu_ps(x + i), scales, shifts, silu));
    }
    hy3d_affine_silu_f32__ref(n - i, scale, shift, silu, x + i);
}

AVX2 void hy3d_affine_silu_lanes_f32__avx2(size_t n, const float *scale, const float *shift,
                                           int silu, float *x)
{
    const __m256 scales[2] = {_mm256_loadu_ps(scale), _mm256_loadu_ps(scale + 8)};
    const __m256 shifts[2] = {_mm256_loadu_ps(shift), _mm256_loadu_ps(shift + 8)};
    for (size_t i = 0; i < 2 * n; i++) {
        const __m256 from = _mm256_loadu_ps(x + 8 * i);
        _mm256_storeu_ps(x + 8 * i, affine_silu(from, scales[i % 2], shifts[i % 2], silu));
    }
}
#endif
