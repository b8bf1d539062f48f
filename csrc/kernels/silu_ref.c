/* Portable scale, shift and SiLU; every level repeats these operations in this order. */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/silu.h"

static float silu_of(float v)
{
    /* Written so that NaN passes. */
    float x = -v < HY3D__SILU_LOW ? HY3D__SILU_LOW : -v;
    x = x > HY3D__SILU_HIGH ? HY3D__SILU_HIGH : x;
    const float rounded = x * HY3D__SILU_LOG2E + HY3D__SILU_ROUND;
    const float n = rounded - HY3D__SILU_ROUND;
    const float r = (x - n * HY3D__SILU_LN2_HIGH) - n * HY3D__SILU_LN2_LOW;
    float p = HY3D__SILU_P4 * r + HY3D__SILU_P3;
    p = p * r + HY3D__SILU_P2;
    p = p * r + HY3D__SILU_P1;
    p = p * r + HY3D__SILU_P0;
    p = (p * (r * r) + r) + 1.0F;
    uint32_t bits;
    float power;
    memcpy(&bits, &rounded, sizeof bits);
    bits <<= 23;
    memcpy(&power, &bits, sizeof power);
    p = p * power;
    return v / (1.0F + (p + p));
}

void hy3d_affine_silu_f32__ref(size_t n, float scale, float shift, int silu, float *x)
{
    for (size_t i = 0; i < n; i++) {
        const float product = x[i] * scale;
        const float v = product + shift;
        x[i] = silu != 0 ? silu_of(v) : v;
    }
}

void hy3d_affine_silu_lanes_f32__ref(size_t n, const float *scale, const float *shift, int silu,
                                     float *x)
{
    for (size_t i = 0; i < 16 * n; i++) {
        const float product = x[i] * scale[i % 16];
        const float v = product + shift[i % 16];
        x[i] = silu != 0 ? silu_of(v) : v;
    }
}
