/* f16 and bf16 to f32 and back, and blending. */

#define WIDEN(name, wide_of)                                                                       \
    TARGET void SUFFIX(name)(size_t n, const uint16_t *restrict src, float *restrict dst)          \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + LANES <= n; i += LANES) {                                                       \
            V_STORE(dst + i, wide_of(H_LOAD(src + i)));                                            \
        }                                                                                          \
        if (i < n) {                                                                               \
            const some last = some_of(n - i);                                                      \
            store_some(dst + i, last, wide_of(load_some_halves(src + i, last)));                   \
        }                                                                                          \
    }
WIDEN(hy3d_cvt_f16_f32, V_OF_F16)
WIDEN(hy3d_cvt_bf16_f32, V_OF_BF16)

#define NARROW(name, half_of)                                                                      \
    TARGET void SUFFIX(name)(size_t n, const float *restrict src, uint16_t *restrict dst)          \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + LANES <= n; i += LANES) {                                                       \
            H_STORE(dst + i, half_of(V_LOAD(src + i)));                                            \
        }                                                                                          \
        if (i < n) {                                                                               \
            const some last = some_of(n - i);                                                      \
            store_some_halves(dst + i, last, half_of(load_some(src + i, last)));                   \
        }                                                                                          \
    }
NARROW(hy3d_cvt_f32_f16, V_TO_F16)
NARROW(hy3d_cvt_f32_bf16, to_bf16)

/* No multiply-add is fused: the reference rounds the product. */
TARGET void SUFFIX(hy3d_blend_f32)(size_t n, float row, const float *restrict window,
                                   const float *restrict src, float *restrict dst)
{
    const vec rows = V_SET(row);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec weight = window != NULL ? V_MUL(rows, V_LOAD(window + i)) : rows;
        V_STORE(dst + i, V_ADD(V_LOAD(dst + i), V_MUL(V_LOAD(src + i), weight)));
    }
    if (i < n) {
        const some last = some_of(n - i);
        const vec weight = window != NULL ? V_MUL(rows, load_some(window + i, last)) : rows;
        const vec product = V_MUL(load_some(src + i, last), weight);
        store_some(dst + i, last, V_ADD(load_some(dst + i, last), product));
    }
}
