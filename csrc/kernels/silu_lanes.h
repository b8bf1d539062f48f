/* Scale, shift and SiLU; silu.h has the constants and how they came about. */
#include "kernels/silu.h"

INLINE vec silu_step(vec p, vec r, float next)
{
    return V_ADD(V_MUL(p, r), V_SET(next));
}

INLINE vec silu_of(vec v)
{
    const vec low = V_MAX(V_SET(HY3D__SILU_LOW), V_NEGATE(v));
    const vec x = V_MIN(V_SET(HY3D__SILU_HIGH), low);
    const vec rounded = silu_step(x, V_SET(HY3D__SILU_LOG2E), HY3D__SILU_ROUND);
    const vec n = V_SUB(rounded, V_SET(HY3D__SILU_ROUND));
    const vec high = V_SUB(x, V_MUL(n, V_SET(HY3D__SILU_LN2_HIGH)));
    const vec r = V_SUB(high, V_MUL(n, V_SET(HY3D__SILU_LN2_LOW)));
    vec p = silu_step(V_SET(HY3D__SILU_P4), r, HY3D__SILU_P3);
    p = silu_step(p, r, HY3D__SILU_P2);
    p = silu_step(p, r, HY3D__SILU_P1);
    p = silu_step(p, r, HY3D__SILU_P0);
    p = V_ADD(V_MUL(p, V_MUL(r, r)), r);
    p = V_ADD(p, V_SET(1.0F));
    p = V_MUL(p, V_TO_EXPONENT(rounded));
    return V_DIV(v, V_ADD(V_SET(1.0F), V_ADD(p, p)));
}

INLINE vec affine_silu(vec x, vec scale, vec shift, int silu)
{
    const vec v = V_ADD(V_MUL(x, scale), shift);
    return silu != 0 ? silu_of(v) : v;
}

TARGET void SUFFIX(hy3d_affine_silu_f32)(size_t n, float scale, float shift, int silu, float *x)
{
    const vec scales = V_SET(scale), shifts = V_SET(shift);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        V_STORE(x + i, affine_silu(V_LOAD(x + i), scales, shifts, silu));
    }
    if (i < n) {
        const some last = some_of(n - i);
        store_some(x + i, last, affine_silu(load_some(x + i, last), scales, shifts, silu));
    }
}

TARGET void SUFFIX(hy3d_affine_silu_lanes_f32)(size_t n, const float *scale, const float *shift,
                                               int silu, float *x)
{
    vec scales[16 / LANES], shifts[16 / LANES];
#pragma GCC unroll 2
    for (size_t v = 0; v < 16 / LANES; v++) {
        scales[v] = V_LOAD(scale + LANES * v);
        shifts[v] = V_LOAD(shift + LANES * v);
    }
    for (size_t i = 0; i < n; i++) {
#pragma GCC unroll 2
        for (size_t v = 0; v < 16 / LANES; v++) {
            float *const at = x + 16 * i + LANES * v;
            V_STORE(at, affine_silu(V_LOAD(at), scales[v], shifts[v], silu));
        }
    }
}
