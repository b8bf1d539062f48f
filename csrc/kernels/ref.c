/* Portable kernels and the definition of every bit that the others must give. The conversions are
 * integer arithmetic on purpose: no floating-point mode of the calling thread can change them. */
#include <string.h>

#include "kernels/kernels.h"

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void store_bits(float *dst, uint32_t bits)
{
    /* Through memory: a float variable may lose a signalling NaN on its way. */
    memcpy(dst, &bits, sizeof bits);
}

static uint32_t f32_from_f16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000U) << 16;
    const uint32_t exponent = half >> 10 & 0x1fU;
    uint32_t fraction = half & 0x3ffU;
    if (exponent == 0x1f) {
        const uint32_t quiet = fraction != 0 ? 0x400000U : 0;
        return sign | 0x7f800000U | quiet | fraction << 13;
    }
    if (exponent != 0) {
        return sign | (exponent + 112) << 23 | fraction << 13;
    }
    if (fraction == 0) {
        return sign;
    }
    /* A denormal f16 is a normal f32: shift its first one up to where it is implied. */
    uint32_t biased = 113;
    while ((fraction & 0x400U) == 0) {
        fraction <<= 1;
        biased--;
    }
    return sign | biased << 23 | (fraction & 0x3ffU) << 13;
}

/* value / 2^shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_right_rne(uint32_t value, uint32_t shift)
{
    const uint32_t odd = value >> shift & 1U;
    return (value + ((1U << (shift - 1)) - 1) + odd) >> shift;
}

static uint32_t f16_from_f32(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) {
        return sign | 0x7e00U | (magnitude >> 13 & 0x3ffU);
    }
    if (magnitude >= 0x47800000U) { /* 2^16 and above, infinity included */
        return sign | 0x7c00U;
    }
    if (magnitude >=
        0x38800000U) { /* normal f16; a carry out of the fraction is right, up to inf */
        return sign | shift_right_rne(magnitude - (112U << 23), 13);
    }
    if (magnitude < 0x33000000U) { /* below half of the smallest denormal */
        return sign;
    }
    const uint32_t exponent = magnitude >> 23;
    const uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
    return sign | shift_right_rne(significand, 126 - exponent);
}

static uint32_t bf16_from_f32(uint32_t bits)
{
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return bits >> 16 | 0x40U;
    }
    return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
}

void hy3d_cvt_f16_f32__ref(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        store_bits(dst + i, f32_from_f16(src[i]));
    }
}

void hy3d_cvt_bf16_f32__ref(size_t n, const uint16_t *restrict src, float *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        store_bits(dst + i, (uint32_t)src[i] << 16);
    }
}

void hy3d_cvt_f32_f16__ref(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = (uint16_t)f16_from_f32(bits_of(src[i]));
    }
}

void hy3d_cvt_f32_bf16__ref(size_t n, const float *restrict src, uint16_t *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = (uint16_t)bf16_from_f32(bits_of(src[i]));
    }
}

void hy3d_blend_f32__ref(size_t n, float row, const float *restrict window,
                         const float *restrict src, float *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        const float weight = window != NULL ? row * window[i] : row;
        const float product = src[i] * weight;
        dst[i] = dst[i] + product;
    }
}
