/* The vector vocabulary of the kernels on AVX-512 F, BW, DQ and VL; what the names mean is written
 * in vec_avx2.h. */
#include <immintrin.h>

#define SUFFIX(name) name##__avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define LANES 16
#define WIDE_LANES 8
typedef __m512 vec;
typedef __m512d wide;
typedef __mmask16 some;

/* What fits 32 registers. Every weight is broadcast once for three multiply-adds and every vector
 * of x is loaded once for eight, so that loads stay below what the two load ports can do; three
 * terms unrolled are 2 to 3 % faster, and with four the compiler runs out of registers. */
#define CONV_ROWS 8
#define CONV_STEP 3
#define GEMM_ROWS 14
#define PEAK_SUMS 24

#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET(x) _mm512_set1_ps(x)
#define V_ZERO() _mm512_setzero_ps()
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_SUB(a, b) _mm512_sub_ps(a, b)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_DIV(a, b) _mm512_div_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define V_MIN(a, b) _mm512_min_ps(a, b)
#define V_MAX(a, b) _mm512_max_ps(a, b)
#define V_NEGATE(a) _mm512_xor_ps(a, _mm512_set1_ps(-0.0F))
#define V_TO_EXPONENT(v) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23))
#define V_LOW(a, b) _mm512_unpacklo_ps(a, b)
#define V_HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define V_LOW_PAIRS(a, b)                                                                          \
    _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
#define V_HIGH_PAIRS(a, b)                                                                         \
    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))

#define W_SET(x) _mm512_set1_pd(x)
#define W_ZERO() _mm512_setzero_pd()
#define W_ADD(a, b) _mm512_add_pd(a, b)
#define W_SUB(a, b) _mm512_sub_pd(a, b)
#define W_MUL(a, b) _mm512_mul_pd(a, b)
#define W_OF_FLOATS(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define W_STORE(p, v) _mm512_storeu_pd(p, v)

INLINE some some_of(size_t count)
{
    return (some)((1U << count) - 1U);
}

INLINE vec load_some(const float *p, some which)
{
    return _mm512_maskz_loadu_ps(which, p);
}

INLINE void store_some(float *p, some which, vec v)
{
    _mm512_mask_storeu_ps(p, which, v);
}

/* Four floats of each of the rows 0, 4, 8, 12. Put together by loads (half the work of a shuffle,
 * and on either port): what is inside of quarters alone is left to the port that shuffles. */
INLINE vec load_quarters(const float *src, size_t pitch)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(src));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 4 * pitch), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 8 * pitch), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(src + 12 * pitch), 3);
}

typedef __m256i halves;
#define H_LOAD(p) _mm256_loadu_si256((const void *)(p))
#define H_STORE(p, h) _mm256_storeu_si256((void *)(p), h)
#define V_OF_F16(h) _mm512_cvtph_ps(h)
#define V_TO_F16(v) _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define V_OF_BF16(h) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))

INLINE halves load_some_halves(const uint16_t *p, some which)
{
    return _mm256_maskz_loadu_epi16(which, p);
}

INLINE void store_some_halves(uint16_t *p, some which, halves h)
{
    _mm256_mask_storeu_epi16(p, which, h);
}

/* Not vcvtneps2bf16: that one flushes denormals to zero, and is missing on Skylake. */
INLINE halves to_bf16(vec v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i top = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i quiet = _mm512_set1_epi32(0x40);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, top, quiet));
}
