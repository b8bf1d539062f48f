/* 16 sums and as many of squares. They are put together, and what is left of n % 16 is added, as in
 * the reference: no multiply-add is fused. */
#define MOMENTS_LANES 16
#define MOMENTS_VECTORS (MOMENTS_LANES / WIDE_LANES)

TARGET void SUFFIX(hy3d_moments_f32)(size_t n, const float *x, double shift, double *sums)
{
    const wide s = W_SET(shift);
    wide sum[MOMENTS_VECTORS], square[MOMENTS_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < MOMENTS_VECTORS; v++) {
        sum[v] = square[v] = W_ZERO();
    }
    size_t i = 0;
    for (; i + MOMENTS_LANES <= n; i += MOMENTS_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < MOMENTS_VECTORS; v++) {
            const wide d = W_SUB(W_OF_FLOATS(x + i + WIDE_LANES * v), s);
            sum[v] = W_ADD(sum[v], d);
            square[v] = W_ADD(square[v], W_MUL(d, d));
        }
    }
    double lane[MOMENTS_LANES], lane_square[MOMENTS_LANES];
#pragma GCC unroll 4
    for (int v = 0; v < MOMENTS_VECTORS; v++) {
        W_STORE(lane + WIDE_LANES * v, sum[v]);
        W_STORE(lane_square + WIDE_LANES * v, square[v]);
    }
    for (size_t l = 0; i + l < n; l++) {
        const double d = (double)x[i + l] - shift;
        lane[l] += d;
        lane_square[l] += d * d;
    }
    for (size_t half = MOMENTS_LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++) {
            lane[l] += lane[l + half];
            lane_square[l] += lane_square[l + half];
        }
    }
    sums[0] = lane[0];
    sums[1] = lane_square[0];
}
