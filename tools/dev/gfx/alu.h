/* What the generated functions of arithmetic instructions share: operands of all lanes of a wave,
 * and the functions of AMD's pseudo-code. Generated code is compiled with -fwrapv and without
 * contraction. */
#ifndef HY3D_GFX_ALU_H
#define HY3D_GFX_ALU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 u128;
typedef __int128 i128;

enum { MOST_LANES = 64 };

/* Operands of one instruction: of a vector one for each lane, of a scalar one in lane 0. */
struct lanes {
    uint64_t s[3][MOST_LANES];
    uint64_t d[MOST_LANES]; /* in: the destination as it was */
    uint64_t vcc;           /* the mask that is read: VCC, or the third source */
    uint64_t out;           /* the mask that is written: a comparison's or a carry */
    uint64_t exec;
    uint32_t scc;
    uint32_t count;
    uint32_t ieee;
    int32_t simm;
    uint32_t negate, absolute, select, select_high; /* for what reads its sources in its own way */
};

static inline float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double f64_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* binary16 is computed with as float; what is stored is rounded to nearest, ties to even. */
static inline float f16_of(uint32_t bits)
{
    uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31)
        return f32_of(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return f32_of(sign | (exponent + 112) << 23 | fraction << 13);
    float value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
}

static inline uint32_t f16_bits(float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return sign | 0x7e00u | (rest >> 13 & 0x3ffu);
    if (rest >= 0x477ff000u)
        return sign | 0x7c00u;              /* 65520 and more */
    if (rest < 0x38800000u) {               /* below 2^-14: a multiple of 2^-24 */
        float scaled = f32_of(rest) + 0.5f; /* ulp of [0.5, 1) is 2^-24 */
        return sign | (f32_bits(scaled) - f32_bits(0.5f));
    }
    uint32_t up = rest + 0xfffu + (rest >> 13 & 1u);
    return sign | (up - 0x38000000u) >> 13;
}

static inline uint32_t shl32(uint32_t x, uint32_t n)
{
    return n < 32 ? x << n : 0;
}
static inline uint32_t shr32(uint32_t x, uint32_t n)
{
    return n < 32 ? x >> n : 0;
}
static inline int32_t sar32(int32_t x, uint32_t n)
{
    return x >> (n < 32 ? n : 31);
}
static inline uint64_t shl64(uint64_t x, uint32_t n)
{
    return n < 64 ? x << n : 0;
}
static inline uint64_t shr64(uint64_t x, uint32_t n)
{
    return n < 64 ? x >> n : 0;
}
static inline int64_t sar64(int64_t x, uint32_t n)
{
    return x >> (n < 64 ? n : 63);
}

static inline int64_t sign_extend(uint64_t x, uint32_t bits)
{
    if (!bits)
        return 0;
    if (bits >= 64)
        return (int64_t)x;
    return (int64_t)(x << (64 - bits)) >> (64 - bits);
}

static inline uint64_t reversed(uint64_t x, uint32_t bits)
{
    uint64_t made = 0;
    for (uint32_t k = 0; k < bits; k++)
        made |= (x >> k & 1) << (bits - 1 - k);
    return made;
}

static inline int is_signal32(float x)
{
    uint32_t bits = f32_bits(x) & 0x7fffffffu;
    return bits > 0x7f800000u && bits < 0x7fc00000u;
}

static inline int is_signal64(double x)
{
    uint64_t bits = f64_bits(x) & ~(1ull << 63);
    return bits > 0x7ff0000000000000ull && bits < 0x7ff8000000000000ull;
}

static inline float quiet32(float x)
{
    return f32_of(f32_bits(x) | 0x400000u);
}
static inline double quiet64(double x)
{
    return f64_of(f64_bits(x) | 1ull << 51);
}
static inline int sign32(float x)
{
    return (int)(f32_bits(x) >> 31);
}
static inline int sign64(double x)
{
    return (int)(f64_bits(x) >> 63);
}
static inline int32_t exponent32(float x)
{
    return (int32_t)(f32_bits(x) >> 23 & 255);
}
static inline int32_t exponent64(double x)
{
    return (int32_t)(f64_bits(x) >> 52 & 2047);
}
static inline int is_denormal32(float x)
{
    return x != 0 && exponent32(x) == 0;
}
static inline int is_denormal64(double x)
{
    return x != 0 && exponent64(x) == 0;
}

/* Conversions to integers saturate; NaN becomes 0. */
static inline uint32_t f64_to_u32(double x)
{
    if (!(x > 0))
        return 0;
    return x >= 4294967295.0 ? UINT32_MAX : (uint32_t)x;
}

static inline int32_t f64_to_i32(double x)
{
    if (isnan(x))
        return 0;
    if (x <= -2147483648.0)
        return INT32_MIN;
    return x >= 2147483647.0 ? INT32_MAX : (int32_t)x;
}

static inline uint32_t f32_to_u32(float x)
{
    return f64_to_u32((double)x);
}
static inline int32_t f32_to_i32(float x)
{
    return f64_to_i32((double)x);
}
static inline int32_t v_max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}
static inline int32_t v_min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t v_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static inline uint32_t v_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Of two numbers that, which is one; of zeros the positive one is the larger. */
static inline float v_max_f32(float a, float b)
{
    if (isnan(a))
        return b;
    if (isnan(b))
        return a;
    if (a == 0 && b == 0)
        return sign32(a) ? b : a;
    return a > b ? a : b;
}

static inline float v_min_f32(float a, float b)
{
    if (isnan(a))
        return b;
    if (isnan(b))
        return a;
    if (a == 0 && b == 0)
        return sign32(a) ? a : b;
    return a < b ? a : b;
}

#endif
