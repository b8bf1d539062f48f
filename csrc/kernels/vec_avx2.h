/* The vector vocabulary of the kernels on AVX2, FMA and F16C; vec_avx512.h has the same names. Here
 * is all that a kernel's text (*_lanes.h) may use of an ISA. No operation touches memory outside of
 * the elements that it is given. */
#include <immintrin.h>

#define SUFFIX(name) name##__avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* Vectors of floats, vectors of the doubles of half as many, and some first lanes of a vector. */
#define LANES 8
#define WIDE_LANES 4
typedef __m256 vec;
typedef __m256d wide;
typedef struct some {
    __m256i mask;
    size_t count;
} some;

/* What fits 16 registers: sums in flight of each product. */
#define CONV_ROWS 4
#define CONV_STEP 1
#define GEMM_ROWS 6
#define PEAK_SUMS 12

#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET(x) _mm256_set1_ps(x)
#define V_ZERO() _mm256_setzero_ps()
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_SUB(a, b) _mm256_sub_ps(a, b)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_DIV(a, b) _mm256_div_ps(a, b)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)   /* a * b + c */
#define V_FNMA(a, b, c) _mm256_fnmadd_ps(a, b, c) /* c - a * b */
/* Where one is NaN, b. */
#define V_MIN(a, b) _mm256_min_ps(a, b)
#define V_MAX(a, b) _mm256_max_ps(a, b)
#define V_NEGATE(a) _mm256_xor_ps(a, _mm256_set1_ps(-0.0F))
/* The lowest bits of each lane as the exponent of a float. */
#define V_TO_EXPONENT(v) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23))
/* Of each quarter (four lanes): a0 b0 a1 b1, a2 b2 a3 b3; the same of pairs of lanes. */
#define V_LOW(a, b) _mm256_unpacklo_ps(a, b)
#define V_HIGH(a, b) _mm256_unpackhi_ps(a, b)
#define V_LOW_PAIRS(a, b)                                                                          \
    _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#define V_HIGH_PAIRS(a, b)                                                                         \
    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))

#define W_SET(x) _mm256_set1_pd(x)
#define W_ZERO() _mm256_setzero_pd()
#define W_ADD(a, b) _mm256_add_pd(a, b)
#define W_SUB(a, b) _mm256_sub_pd(a, b)
#define W_MUL(a, b) _mm256_mul_pd(a, b)
#define W_OF_FLOATS(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define W_STORE(p, v) _mm256_storeu_pd(p, v)

/* The first `count` lanes, LANES at most. */
INLINE some some_of(size_t count)
{
    static const int32_t ends[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return (some){_mm256_loadu_si256((const void *)(ends + LANES - count)), count};
}

/* 0 in the others. */
INLINE vec load_some(const float *p, some which)
{
    return _mm256_maskload_ps(p, which.mask);
}

/* By parts: a masked store takes 20 operations on Zen. */
INLINE void store_some(float *p, some which, vec v)
{
    __m128 part = _mm256_castps256_ps128(v);
    if (which.count >= 8) {
        V_STORE(p, v);
        return;
    }
    if ((which.count & 4) != 0) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if ((which.count & 2) != 0) {
        _mm_storel_pi((void *)p, part);
        part = _mm_movehl_ps(part, part);
        p += 2;
    }
    if ((which.count & 1) != 0) {
        _mm_store_ss(p, part);
    }
}

/* Four floats of each of the rows 0 and 4, `pitch` apart. */
INLINE vec load_quarters(const float *src, size_t pitch)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src)),
                                _mm_loadu_ps(src + 4 * pitch), 1);
}

/* Halves (f16, bf16), LANES of them. */
typedef __m128i halves;
#define H_LOAD(p) _mm_loadu_si128((const void *)(p))
#define H_STORE(p, h) _mm_storeu_si128((void *)(p), h)
#define V_OF_F16(h) _mm256_cvtph_ps(h)
/* The rounding is in the instruction, so that the thread's mode does not matter. */
#define V_TO_F16(v) _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define V_OF_BF16(h) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))

INLINE halves load_some_halves(const uint16_t *p, some which)
{
    uint16_t all[LANES] = {0};
    for (size_t i = 0; i < which.count; i++) {
        all[i] = p[i];
    }
    return H_LOAD(all);
}

INLINE void store_some_halves(uint16_t *p, some which, halves h)
{
    if (which.count >= 8) {
        H_STORE(p, h);
        return;
    }
    if ((which.count & 4) != 0) {
        _mm_storel_epi64((void *)p, h);
        h = _mm_srli_si128(h, 8);
        p += 4;
    }
    if ((which.count & 2) != 0) {
        p[0] = (uint16_t)_mm_extract_epi16(h, 0);
        p[1] = (uint16_t)_mm_extract_epi16(h, 1);
        h = _mm_srli_si128(h, 4);
        p += 2;
    }
    if ((which.count & 1) != 0) {
        p[0] = (uint16_t)_mm_extract_epi16(h, 0);
    }
}

INLINE halves to_bf16(vec v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i top = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i wide_result = _mm256_blendv_epi8(rounded, quiet, is_nan);
    /* packus works within each 128-bit half. */
    return _mm_packus_epi32(_mm256_castsi256_si128(wide_result),
                            _mm256_extracti128_si256(wide_result, 1));
}
