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
#define V_GE(a, b) _mm256_cmp_pd(a, b, _CMP_GE_OQ)
#define V_GT(a, b) _mm256_cmp_pd(a, b, _CMP_GT_OQ)
#define V_LT(a, b) _mm256_cmp_pd(a, b, _CMP_LT_OQ)
#define V_INDEX _mm256_set_pd(3, 2, 1, 0)
#define V_FLOOR_INTS(v) _mm256_cvtpd_epi32(_mm256_floor_pd(v))
#define V_HALF(v) _mm256_cvtpd_ps(v)
#define V_WIDEN(h) _mm256_cvtps_pd(h)
#define M_AND(a, b) _mm256_and_pd(a, b)
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
#else
typedef int hy3d__no_raster_avx2; /* a translation unit must not be empty */
#endif
