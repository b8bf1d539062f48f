/* Lines of 16 channels to vectors of channels and back. */

/* Four columns of LANES rows as vectors of rows. */
INLINE void columns4(const float *src, size_t pitch, vec out[4])
{
    const vec r0 = load_quarters(src, pitch), r1 = load_quarters(src + pitch, pitch);
    const vec r2 = load_quarters(src + 2 * pitch, pitch);
    const vec r3 = load_quarters(src + 3 * pitch, pitch);
    out[0] = V_LOW_PAIRS(V_LOW(r0, r1), V_LOW(r2, r3));
    out[1] = V_HIGH_PAIRS(V_LOW(r0, r1), V_LOW(r2, r3));
    out[2] = V_LOW_PAIRS(V_HIGH(r0, r1), V_HIGH(r2, r3));
    out[3] = V_HIGH_PAIRS(V_HIGH(r0, r1), V_HIGH(r2, r3));
}

INLINE void to_lanes4(const float *src, size_t pitch, float *dst)
{
#pragma GCC unroll 2
    for (size_t l = 0; l < 16; l += LANES) {
        vec out[4];
        columns4(src + l * pitch, pitch, out);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            V_STORE(dst + 16 * i + l, out[i]);
        }
    }
}

TARGET void SUFFIX(hy3d_to_lanes_f32)(size_t n, const float *src, size_t pitch, float *dst)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        to_lanes4(src + i, pitch, dst + 16 * i);
    }
    if (i == n) {
        return;
    }
    if (n >= 4) { /* the last four once more: no element beyond n is read */
        to_lanes4(src + n - 4, pitch, dst + 16 * (n - 4));
        return;
    }
    hy3d_to_lanes_f32__ref(n - i, src + i, pitch, dst + 16 * i);
}

/* LANES positions of 16 channels. */
INLINE void from_lanes(const float *src, float *dst, size_t pitch)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++) {
        vec out[4];
        columns4(src + 4 * q, 16, out);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            V_STORE(dst + (4 * q + i) * pitch, out[i]);
        }
    }
}

TARGET void SUFFIX(hy3d_from_lanes_f32)(size_t n, const float *src, float *dst, size_t pitch)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        from_lanes(src + 16 * i, dst + i, pitch);
    }
    if (i == n) {
        return;
    }
    if (n >= LANES) {
        from_lanes(src + 16 * (n - LANES), dst + n - LANES, pitch);
        return;
    }
    hy3d_from_lanes_f32__ref(n - i, src + 16 * i, dst + i, pitch);
}
