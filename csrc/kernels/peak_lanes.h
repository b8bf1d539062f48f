/* PEAK_SUMS sums in flight: two multiply-adds start each cycle and take four, so eight would do. */

TARGET void SUFFIX(hy3d_peak_f32)(size_t rounds, float factor, float addend, float *restrict sums)
{
    const vec by = V_SET(factor), plus = V_SET(addend);
    for (int start = 0; start < 384; start += PEAK_SUMS * LANES) {
        vec sum[PEAK_SUMS];
#pragma GCC unroll 24
        for (int v = 0; v < PEAK_SUMS; v++) {
            sum[v] = V_LOAD(sums + start + LANES * v);
        }
        for (size_t i = 0; i < rounds; i++) {
#pragma GCC unroll 24
            for (int v = 0; v < PEAK_SUMS; v++) {
                sum[v] = V_FMA(sum[v], by, plus);
            }
        }
#pragma GCC unroll 24
        for (int v = 0; v < PEAK_SUMS; v++) {
            V_STORE(sums + start + LANES * v, sum[v]);
        }
    }
}
