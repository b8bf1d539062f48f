/* The rasteriser's kernels, 4 lanes. */
#include <math.h>

#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define LANES 4
#define TARGET __attribute__((target("avx2")))
#define SUFFIX(name) name##__avx2
typedef __m256d vec;
typedef __m128 half;
typedef __m128i ints;
typedef __m256d mask;
typedef __m128i few;
#define V_SET(x) _mm256_set1_pd(x)
#define V_STORE(p, v) _mm256_storeu_pd(p, v)
#define V_ADD(a, b) _mm256_add_pd(a, b)
#define V_SUB(a, b) _mm256_sub_pd(a, b)
#define V_MUL(a, b) _mm256_mul_pd(a, b)
#define V_DIV(a, b) _mm256_div_pd(a, b)
#define V_MIN(a, b) _mm256_min_pd(a, b)
#define V_MAX(a, b) _mm256_max_pd(a, b)
#define V_ABS(a) _mm256_andnot_pd(_mm256_set1_pd(-0.0), a)
#define V_NEG_IF(m, a) _mm256_xor_pd(a, _mm256_and_pd(m, _mm256_set1_pd(-0.0)))
#define V_PICK(m, a, b) _mm256_blendv_pd(b, a, m)
#define V_FLOOR(a) _mm256_floor_pd(a)
#define V_GE(a, b) _mm256_cmp_pd(a, b, _CMP_GE_OQ)
#define V_GT(a, b) _mm256_cmp_pd(a, b, _CMP_GT_OQ)
#define V_LT(a, b) _mm256_cmp_pd(a, b, _CMP_LT_OQ)
#define V_INDEX _mm256_set_pd(3, 2, 1, 0)
#define V_GE_IN(m, a, b) _mm256_and_pd(m, V_GE(a, b))
#define V_GT_IN(m, a, b) _mm256_and_pd(m, V_GT(a, b))
#define V_INTS(v) _mm256_cvtpd_epi32(v)
#define V_HALF(v) _mm256_cvtpd_ps(v)
#define V_WIDEN(h) _mm256_cvtps_pd(h)
#define M_AND_NOT(a, b) _mm256_andnot_pd(b, a)
#define M_FIRST(n) _mm256_cmp_pd(V_INDEX, _mm256_set1_pd((double)(n)), _CMP_LT_OQ)
#define M_BITS(m) ((unsigned)_mm256_movemask_pd(m))
#define M_OF(bits)                                                                                 \
    _mm256_castsi256_pd(_mm256_cmpgt_epi64(                                                        \
        _mm256_and_si256(_mm256_set1_epi64x((long long)(bits)), _mm256_set_epi64x(8, 4, 2, 1)),    \
        _mm256_setzero_si256()))
/* The even halves of 64-bit lanes. */
#define M_FEW(m)                                                                                   \
    _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(_mm256_castpd256_pd128(m)),                      \
                                    _mm_castpd_ps(_mm256_extractf128_pd(m, 1)), 0x88))
#define F_AND(a, b) _mm_and_si128(a, b)
#define F_BITS(f) ((unsigned)_mm_movemask_ps(_mm_castsi128_ps(f)))
#define I_SET(x) _mm_set1_epi32(x)
#define I_LOAD(p) _mm_loadu_si128((const void *)(p))
#define I_LESS(a, b) _mm_cmplt_epi32(a, b)
#define I_STORE(p, f, v) _mm_maskstore_epi32(p, f, v)
#define H_SET(x) _mm_set1_ps(x)
#define H_ADD(a, b) _mm_add_ps(a, b)
#define H_MUL(a, b) _mm_mul_ps(a, b)
#define H_DIV(a, b) _mm_div_ps(a, b)
#define H_LOAD(p, f) _mm_maskload_ps(p, f)
#define H_STORE(p, f, v) _mm_maskstore_ps(p, f, v)

/* Corner i of four faces from rows of four floats to vectors of four. */
static inline __attribute__((always_inline)) TARGET void corners_of(const float *clip,
                                                                    const int32_t *corner, vec *out)
{
    __m128 row[4];
    for (int i = 0; i < 4; i++) {
        row[i] = _mm_loadu_ps(clip + 4 * (size_t)corner[i]);
    }
    _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_cvtps_pd(row[i]);
    }
}
#define CORNERS(clip, corner, out) corners_of(clip, corner, out)

#include "kernels/raster_lanes.h"

TARGET void hy3d_raster_row_f32__avx2(size_t n, const int32_t *face, const float *a, const float *b,
                                      const float *c, float *restrict out)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128i none =
            _mm_cmpeq_epi32(_mm_loadu_si128((const void *)(face + i)), _mm_setzero_si128());
        const __m128 gap = _mm_castsi128_ps(none);
        const __m128 x = _mm_andnot_ps(gap, _mm_loadu_ps(a + i));
        const __m128 y = _mm_andnot_ps(gap, _mm_loadu_ps(b + i));
        const __m128 z = _mm_andnot_ps(gap, _mm_loadu_ps(c + i));
        const __m128 xy = _mm_unpacklo_ps(x, y), yz = _mm_unpackhi_ps(y, z); /* x0y0x1y1 y2z2y3z3 */
        const __m128 zx = _mm_shuffle_ps(z, x, _MM_SHUFFLE(3, 1, 2, 0));     /* z0z2x1x3 */
        const __m128 yz1 = _mm_shuffle_ps(y, z, _MM_SHUFFLE(1, 1, 1, 1));    /* y1y1z1z1 */
        const __m128 xz = _mm_shuffle_ps(x, z, _MM_SHUFFLE(3, 2, 3, 2));     /* x2x3z2z3 */
        _mm_storeu_ps(out + 3 * i, _mm_shuffle_ps(xy, zx, _MM_SHUFFLE(2, 0, 1, 0)));
        _mm_storeu_ps(out + 3 * i + 4,
                      _mm_shuffle_ps(yz1, _mm_unpacklo_ps(xz, yz), _MM_SHUFFLE(1, 0, 2, 0)));
        _mm_storeu_ps(out + 3 * i + 8,
                      _mm_shuffle_ps(_mm_shuffle_ps(z, x, _MM_SHUFFLE(3, 3, 2, 2)),
                                     _mm_unpackhi_ps(yz, yz), _MM_SHUFFLE(2, 0, 2, 0)));
    }
    for (; i < n; i++) {
        out[3 * i] = face[i] != 0 ? a[i] : 0.0F;
        out[3 * i + 1] = face[i] != 0 ? b[i] : 0.0F;
        out[3 * i + 2] = face[i] != 0 ? c[i] : 0.0F;
    }
}
#endif
