/* The rasteriser's kernels, 8 lanes. */
#include <math.h>

#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx2")))
#define SUFFIX(name) name##__avx512
typedef __m512d vec;
typedef __m256 half;
typedef __m256i ints;
typedef __mmask8 mask;
typedef __mmask8 few;
#define V_SET(x) _mm512_set1_pd(x)
#define V_STORE(p, v) _mm512_storeu_pd(p, v)
#define V_ADD(a, b) _mm512_add_pd(a, b)
#define V_SUB(a, b) _mm512_sub_pd(a, b)
#define V_MUL(a, b) _mm512_mul_pd(a, b)
#define V_DIV(a, b) _mm512_div_pd(a, b)
#define V_MIN(a, b) _mm512_min_pd(a, b)
#define V_MAX(a, b) _mm512_max_pd(a, b)
#define V_ABS(a) _mm512_andnot_pd(_mm512_set1_pd(-0.0), a)
#define V_NEG_IF(m, a) _mm512_mask_xor_pd(a, m, a, _mm512_set1_pd(-0.0))
#define V_PICK(m, a, b) _mm512_mask_blend_pd(m, b, a)
#define V_FLOOR(a) _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define V_GE(a, b) _mm512_cmp_pd_mask(a, b, _CMP_GE_OQ)
#define V_GT(a, b) _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ)
#define V_LT(a, b) _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)
#define V_INDEX _mm512_set_pd(7, 6, 5, 4, 3, 2, 1, 0)
#define V_GE_IN(m, a, b) _mm512_mask_cmp_pd_mask(m, a, b, _CMP_GE_OQ)
#define V_GT_IN(m, a, b) _mm512_mask_cmp_pd_mask(m, a, b, _CMP_GT_OQ)
#define V_INTS(v) _mm512_cvtpd_epi32(v)
#define V_HALF(v) _mm512_cvtpd_ps(v)
#define V_WIDEN(h) _mm512_cvtps_pd(h)
#define M_AND_NOT(a, b) ((mask)((a) & ~(b)))
#define M_FIRST(n) ((mask)((n) >= LANES ? 0xFF : (1 << (n)) - 1))
#define M_BITS(m) ((unsigned)(m))
#define M_OF(bits) ((mask)(bits))
#define M_FEW(m) (m)
#define F_AND(a, b) ((few)((a) & (b)))
#define F_BITS(f) ((unsigned)(f))
#define I_SET(x) _mm256_set1_epi32(x)
#define I_LOAD(p) _mm256_loadu_si256((const void *)(p))
#define I_LESS(a, b) _mm256_cmplt_epi32_mask(a, b)
#define I_STORE(p, f, v) _mm256_mask_storeu_epi32(p, f, v)
#define H_SET(x) _mm256_set1_ps(x)
#define H_ADD(a, b) _mm256_add_ps(a, b)
#define H_MUL(a, b) _mm256_mul_ps(a, b)
#define H_DIV(a, b) _mm256_div_ps(a, b)
#define H_LOAD(p, f) _mm256_maskz_loadu_ps(f, p)
#define H_STORE(p, f, v) _mm256_mask_storeu_ps(p, f, v)

/* Corner i of eight faces from rows of four floats to vectors of eight. */
static inline __attribute__((always_inline)) TARGET void corners_of(const float *clip,
                                                                    const int32_t *corner, vec *out)
{
    __m256 row[4], pair[4];
    for (int i = 0; i < 4; i++) {
        row[i] =
            _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(clip + 4 * (size_t)corner[i])),
                                 _mm_loadu_ps(clip + 4 * (size_t)corner[i + 4]), 1);
    }
    pair[0] = _mm256_unpacklo_ps(row[0], row[1]);
    pair[1] = _mm256_unpackhi_ps(row[0], row[1]);
    pair[2] = _mm256_unpacklo_ps(row[2], row[3]);
    pair[3] = _mm256_unpackhi_ps(row[2], row[3]);
    for (int i = 0; i < 2; i++) {
        out[2 * i] = _mm512_cvtps_pd(_mm256_shuffle_ps(pair[i], pair[i + 2], 0x44));
        out[2 * i + 1] = _mm512_cvtps_pd(_mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE));
    }
}
#define CORNERS(clip, corner, out) corners_of(clip, corner, out)

#include "kernels/raster_lanes.h"

/* Element i of output vector v is element (16 v + i) / 3 of array (16 v + i) % 3: the first two are
 * picked from two vectors at once, the third is put between them. */
static const int32_t weave[3][16] = {
    {0, 16, 0, 1, 17, 1, 2, 18, 2, 3, 19, 3, 4, 20, 4, 5},
    {21, 5, 6, 22, 6, 7, 23, 7, 8, 24, 8, 9, 25, 9, 10, 26},
    {10, 11, 27, 11, 12, 28, 12, 13, 29, 13, 14, 30, 14, 15, 31, 15},
};
static const __mmask16 third[3] = {0x4924, 0x2492, 0x9249};

TARGET void hy3d_raster_row_f32__avx512(size_t n, const int32_t *face, const float *a,
                                        const float *b, const float *c, float *restrict out)
{
    for (size_t i = 0; i < n; i += 16) {
        const size_t left = n - i;
        const __mmask16 here = (__mmask16)(left >= 16 ? 0xFFFFU : (1U << left) - 1U);
        const __m512i faces = _mm512_maskz_loadu_epi32(here, face + i);
        const __mmask16 seen = _mm512_test_epi32_mask(faces, faces);
        const __m512 x = _mm512_maskz_loadu_ps(seen, a + i), y = _mm512_maskz_loadu_ps(seen, b + i);
        const __m512 z = _mm512_maskz_loadu_ps(seen, c + i);
        const uint64_t floats = left >= 16 ? ~0ULL : (1ULL << (3 * left)) - 1ULL;
        for (int v = 0; v < 3; v++) {
            const __m512i from = _mm512_loadu_si512(weave[v]);
            const __m512 two = _mm512_permutex2var_ps(x, from, y);
            _mm512_mask_storeu_ps(out + 3 * i + 16 * v, (__mmask16)(floats >> (16 * v)),
                                  _mm512_mask_permutexvar_ps(two, third[v], from, z));
        }
    }
}
#endif
